"""The files of a tokenizer: which one counts, and reading them with errors that name them."""

import contextlib
import itertools
import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bert_jax import strict_json
from bert_jax.data.tokenizer import special_tokens
from bert_jax.errors import UsageError, brief, some
from bert_jax.files import writing
from bert_jax.progress import note_once

# How BertTokenizer prepares text, yes, no or not given: tokenizer_config.json's name for it ->
# tokenizer.json's.
_FLAGS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
# The classes that read a bare vocabulary as it is read here, without "Tokenizer" and "Fast": of
# vocab.txt, and of vocab.json with merges.txt.
_WORDPIECE = (
    *("Bert", "ConvBert", "DistilBert", "Electra", "Funnel", "LayoutLM", "Lxmert", "MPNet"),
    *("MobileBert", "PreTrained", "SqueezeBert"),
)
_BYTE_LEVEL = ("Roberta", "Bart", "GPT2", "LED", "Longformer", "PreTrained")
# No embedding has more rows. A stray id beyond would take memory and time for all before it.
_HIGHEST_ID = (1 << 24) - 1


def find(directory: Path) -> Path:
    """Returns the file that says what a directory's tokenizer is.

    A workdir, a step of one and a corpus have theirs in a folder `tokenizer`.
    """
    if directory.parent.name == "checkpoints" and directory.name.isdigit():
        directory = directory.parent.parent
    if (directory / "tokenizer").is_dir():
        directory = directory / "tokenizer"
    for name in ("tokenizer.json", "vocab.txt"):
        if (directory / name).is_file():
            return directory / name
    if (directory / "vocab.json").is_file() and (directory / "merges.txt").is_file():
        return directory / "vocab.json"
    found = sorted(directory.glob("*.model"))
    if len(found) == 1:
        return found[0]
    raise UsageError(
        f"tokenizer {directory}: holds neither tokenizer.json nor vocab.txt nor vocab.json with "
        "merges.txt nor one .model "
        "(transformers' save_pretrained of a model alone leaves the tokenizer out: save the "
        "tokenizer to the same directory, too)"
    )


def read_config(path: Path) -> dict[str, Any]:
    """Returns the fields of a tokenizer_config.json; none if there is no such file."""
    if not path.is_file():
        return {}
    config = parse_json(path)
    if not isinstance(config, dict):
        raise UsageError(f"{path} is not a JSON object")
    for flag in _FLAGS:
        if not isinstance(config.get(flag), bool | None):
            raise UsageError(f"{path}: {flag} is {brief(config[flag])}; write true, false or null")
    _require_one_meaning(config, path)
    return config


def _require_one_meaning(config: dict[str, Any], path: Path) -> None:
    """Raises UsageError if special_tokens_map.json names a special token otherwise."""
    other = path.with_name("special_tokens_map.json")
    theirs = parse_json(other) if other.is_file() else {}
    names = special_tokens.configured(theirs if isinstance(theirs, dict) else {})
    for role, name in special_tokens.configured(config).items():
        if names.get(role, name) != name:
            raise UsageError(
                f"{path} has {role}_token {brief(name)}, but {other} has {brief(names[role])}; "
                "make them agree, or remove the wrong one"
            )


def require_same_vocabulary(
    path: Path, kind: str, tokens_of: Callable[[list[int]], list[str]]
) -> None:
    """Raises UsageError if the vocabulary beside a tokenizer.json numbers its tokens otherwise.

    `tokens_of` gives the tokens of ids, and the unknown one for an id that has none.
    """
    names = {"wordpiece": "vocab.txt", "bpe": "vocab.json"}
    if kind not in names or not (other := path.with_name(names[kind])).is_file():
        return
    if kind == "wordpiece":
        lines = read_text(other).removesuffix("\n").split("\n")
        theirs = dict(enumerate(lines))
    else:
        values = parse_json(other)
        numbered = values.items() if isinstance(values, dict) else ()
        theirs = {id_: token for token, id_ in numbered if id_ in range(1 << 24)}
    for (id_, token), ours in zip(theirs.items(), tokens_of(list(theirs)), strict=True):
        if token != ours:
            raise UsageError(
                f"{path} and {other} are two vocabularies: id {id_} is {brief(ours)} in the one "
                f"and {brief(token)} in the other; remove the file that is wrong"
            )
    if path == other:
        return
    content = parse_json(path)
    added = {entry["id"] for entry in content.get("added_tokens") or ()}
    lacking = sorted({*content["model"]["vocab"].values()} - theirs.keys() - added)
    if lacking:
        (token,) = tokens_of(lacking[:1])
        raise UsageError(
            f"{path} and {other} are two vocabularies: the latter has no id {lacking[0]}, which is "
            f"{brief(token)} in the former, and lacks {len(lacking):,} in all; remove the file "
            "that is wrong"
        )


def require_agreement(normalizer: dict[str, Any], config: dict[str, Any], path: Path) -> None:
    """Raises UsageError if tokenizer_config.json prepares text otherwise than `path` beside it.

    The classes of `transformers` obey the former, most others the latter. `normalizer` is that of
    `path`, a BertNormalizer; `config` what `read_config` gave.
    """
    written, declared = dict(normalizer), dict(config)
    for settings, lowercase in ((written, "lowercase"), (declared, "do_lower_case")):
        if settings.get("strip_accents", False) is None:  # what null means
            case = settings.get(lowercase)
            settings["strip_accents"] = written["lowercase"] if case is None else case
    for theirs, ours in _FLAGS.items():
        if declared.get(theirs) is not None and declared[theirs] != written[ours]:
            raise UsageError(
                f"{path} has {ours}={written[ours]}, but {path.parent / 'tokenizer_config.json'} "
                f"has {theirs}={declared[theirs]}; make them agree"
            )


def require_one_space(
    pre_tokenizer: dict[str, Any] | None, config: dict[str, Any], path: Path
) -> None:
    """Raises UsageError if tokenizer_config.json has another answer than `path` beside it to
    whether a text begins with a space, in which `transformers` obeys the former.
    """
    written, name = (pre_tokenizer or {}).get("add_prefix_space"), "add_prefix_space"
    if written is not None and config.get(name) not in (None, written):
        raise UsageError(
            f"{path} has {name}={written}, but {path.parent / 'tokenizer_config.json'} has "
            f"{name}={config[name]}; make them agree"
        )


def require_class(path: Path, config: dict[str, Any]) -> None:
    """Raises UsageError if the class that a directory names, in one of two files, cuts text
    otherwise than `path` is read: a bare vocabulary does not say how, and what RoFormer's does
    first is in no file.
    """
    named, model = path.with_name("tokenizer_config.json"), path.with_name("config.json")
    name = config.get("tokenizer_class")
    if name is None and model.is_file():
        named, values = model, parse_json(model)
        name = values.get("tokenizer_class") if isinstance(values, dict) else None
    kind = str(name).removesuffix("Fast").removesuffix("Tokenizer")
    is_byte_level = path.name in ("vocab.json", "merges.txt")
    known, is_whole = _BYTE_LEVEL if is_byte_level else _WORDPIECE, path.suffix == ".json"
    is_other = kind not in known if is_byte_level or not is_whole else kind == "RoFormer"
    if isinstance(name, str) and is_other:
        raise UsageError(
            f"{named} has tokenizer_class {brief(name)}, which cuts text otherwise than "
            f"{known[0]}Tokenizer before it looks into {path.name}: the ids would be others than "
            f"the model knows; where it was trained with {known[0]}Tokenizer, write that there"
        )


def require_no_added_tokens(
    vocabulary: Path, ids: Mapping[str, int], config: dict[str, Any]
) -> None:
    """Raises UsageError if a file beside a bare vocabulary adds tokens that it lacks: an
    added_tokens.json or the tokenizer_config.json, which says `config`.
    """
    path, declared = vocabulary.parent / "added_tokens.json", config.get("added_tokens_decoder")
    added = parse_json(path) if path.is_file() else {}
    if not isinstance(added, dict):
        raise UsageError(f"{path} is not a JSON object")
    numbered = [(token, str(id_)) for token, id_ in added.items()]
    if not added and isinstance(declared, dict):
        path = vocabulary.parent / "tokenizer_config.json"
        entries = [(e.get("content"), id_) for id_, e in declared.items() if isinstance(e, dict)]
        numbered = [(token, id_) for token, id_ in entries if isinstance(token, str)]
    if other := [token for token, id_ in numbered if str(ids.get(token)) != id_]:
        raise UsageError(
            f"{path} adds {', '.join(map(brief, other[:5]))} to {vocabulary.name}, which alone is "
            "read: have transformers save the tokenizer as tokenizer.json"
        )


def require_extra_tokens(path: Path, config: dict[str, Any], known: Container[str]) -> None:
    """Raises UsageError if a file beside `path` names special tokens that the tokenizer in it does
    not find in text before it is cut up (`known`), as the classes of `transformers` do. Notes where
    they find none at all.
    """
    other = path.with_name("special_tokens_map.json")
    theirs = parse_json(other) if other.is_file() else {}
    beside = path.with_name("tokenizer_config.json")
    for file, fields in ((beside, config), (other, theirs if isinstance(theirs, dict) else {})):
        for name in ("additional_special_tokens", "extra_special_tokens"):
            named = fields.get(name)
            named = named.values() if isinstance(named, dict) else named
            named = named if isinstance(named, Iterable) else ()
            found = [each.get("content") if isinstance(each, dict) else each for each in named]
            if lacking := [each for each in found if isinstance(each, str) and each not in known]:
                raise UsageError(
                    f"{file} has {some(map(brief, lacking))} in {name}, which {path.name} does not "
                    "have as such: have transformers save the tokenizer as tokenizer.json, or "
                    "remove them there if no text has them"
                )
    if config.get("split_special_tokens"):
        note_once(
            f"{beside} has split_special_tokens: here special tokens in a text, as [MASK], are "
            "always whole"
        )
    sides = [side for side in ("truncation_side", "padding_side") if config.get(side) == "left"]
    if sides:
        note_once(
            f"{path.parent} has {' and '.join(sides)} left: here a text that is too long loses its "
            "end, and padding stands at the end"
        )


def without_dropout(backend: Any, path: Path) -> Any:
    """Returns a backend that gives a text the same ids each time: without BPE's dropout, which
    leaves out merges at random (Provilkov et al. 2020). That is noted.
    """
    if getattr(backend.model, "dropout", None):
        note_once(
            f"{path} has dropout {backend.model.dropout:g}, which gives a text other ids each "
            "time: text is encoded without it, always alike"
        )
        backend.model.dropout = None
    return backend


def require_ids(vocab: dict[str, int], source: str) -> None:
    """Checks that every token has an id of its own, and that none is beyond all embeddings."""
    token_of: dict[int, str] = {}
    for token, id_ in vocab.items():
        if id_ > _HIGHEST_ID:
            raise UsageError(f"{source}: {brief(token)} has id {id_}, above {_HIGHEST_ID}")
        if id_ in token_of:
            both = " and ".join(sorted(map(brief, (token_of[id_], token))))
            raise UsageError(f"{source}: {both} have one id, {id_}; a token has its own")
        token_of[id_] = token


def parse_json(path: Path) -> Any:
    return strict_json.parse_file(path, read_text(path))


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: {error}") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def write_text(path: Path, text: str) -> None:
    with writing(path):
        path.write_text(text + "\n", encoding="utf-8", newline="\n")


@contextlib.contextmanager
def refused_by_library(what: str) -> Iterator[None]:
    """Raises UsageError that says `what` of a file, and why `tokenizers` does not take it.

    The library raises nothing narrower than Exception, and a PanicException, which is not even one.
    """
    try:
        yield
    except (UsageError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise UsageError(f"{what}: {brief(str(error))}") from error


def class_fields(state: dict[str, Any], is_bert: bool, segments: int) -> dict[str, Any]:
    """Returns what a tokenizer_config.json says of the class that gives the ids of a serialised
    backend, and of its inputs.
    """
    inputs = ["input_ids", *["token_type_ids"] * (segments > 1), "attention_mask"]
    fields = {"model_input_names": inputs, "clean_up_tokenization_spaces": False}
    if state["model"]["type"] == "WordPiece" and is_bert:
        normalizer = state["normalizer"]
        flags = {theirs: normalizer[ours] for theirs, ours in _FLAGS.items()}
        return fields | {"tokenizer_class": "BertTokenizer"} | flags
    # Any named class rebuilds normaliser and pre-tokenizer its own way, and gives other ids without
    # a word; the generic one takes tokenizer.json as it is, but for this field in transformers 4.
    fields["tokenizer_class"] = "PreTrainedTokenizerFast"
    if (space := (state["pre_tokenizer"] or {}).get("add_prefix_space")) is not None:
        fields["add_prefix_space"] = space
    return fields


def without_prefix(backend: Any) -> Any | None:
    """Returns a backend that puts no space before a text, else as this one. None if it is one, or
    if the words after the first would change, too.
    """
    state = json.loads(backend.to_str())
    fields = (("prepend", ""), ("prepend_scheme", "never"), ("add_prefix_space", False))
    found = False
    for name, inside in (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")):
        part = state[name] or {}
        steps = part.get(inside, [])
        for step, (field, none) in itertools.product([part, *steps], fields):
            if step.get(field, none) != none:
                step[field], found = none, True
        # Cut by it, as XLM-R's, each word would be a text.
        steps[:] = [step for step in steps if step["type"] != "WhitespaceSplit"]
    if not found:
        return None
    changed = type(backend).from_str(json.dumps(state))
    two, one = (changed.encode(text, add_special_tokens=False).ids for text in ("a a", "a"))
    words = backend.encode("a a", add_special_tokens=False).ids
    return changed if two[len(one) :] == words[len(words) // 2 :] else None


def with_prefix(backend: Any) -> Any:
    """Returns a backend that puts a space before a text, or before each of the words that it is
    given apart, else as this one.
    """
    state = json.loads(backend.to_str())
    if (state["pre_tokenizer"] or {}).get("type") == "ByteLevel":
        state["pre_tokenizer"]["add_prefix_space"] = True
    else:
        rest = [state["normalizer"]] if state["normalizer"] else []
        prepend = {"type": "Prepend", "prepend": " "}
        state["normalizer"] = {"type": "Sequence", "normalizers": [prepend, *rest]}
    return type(backend).from_str(json.dumps(state))
