"""Reads and writes the files of a tokenizer, with errors that name them."""

import contextlib
import itertools
import json
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bert_jax import strict_json
from bert_jax.errors import UsageError, brief, some
from bert_jax.files import writing

# How BertTokenizer prepares text (true, false or null): the name in tokenizer_config.json -> the
# name in tokenizer.json.
_FLAGS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
# The classes, without "Tokenizer" and "Fast", that return the same ids as this package: from
# vocab.txt, from vocab.json with merges.txt, and from a SentencePiece .model.
_WORDPIECE = (
    *("Bert", "ConvBert", "DistilBert", "Electra", "Funnel", "LayoutLM", "Lxmert", "MPNet"),
    *("MobileBert", "SqueezeBert"),
)
_BYTE_LEVEL = ("Roberta", "Bart", "GPT2", "LED", "Longformer")
_SENTENCEPIECE = ("XLMRoberta", "Camembert")
GENERIC = ("PreTrained", "TokenizersBackend")  # read tokenizer.json unchanged
# The classes that transformers cannot write as tokenizer.json, because a program splits text first.
_SLOW = (
    *("BertGeneration", "BertJapanese", "Bertweet", "Esm", "Flaubert", "FSMT", "MLuke", "Phobert"),
    *("ProphetNet", "RoCBert", "RoFormer", "Tapas", "XLM"),
)
# The tokenizer class of a model type, for a config.json that names only the type.
_CLASS_OF_TYPE = {
    (".model", "xlm-roberta"): "XLMRoberta",
    (".model", "camembert"): "Camembert",
    (".model", "albert"): "Albert",
    (".model", "deberta-v2"): "DebertaV2",
    (".txt", "esm"): "Esm",
}
# The defaults of classes: transformers 4.57 and 5.24, models/bert and models/roberta.
_BERT = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
_IMPLIED: dict[str, dict[str, Any]] = {
    **dict.fromkeys(_WORDPIECE, _BERT),
    **{kind: {"add_prefix_space": False} for kind in _BYTE_LEVEL},
}
# No embedding has more rows. A stray higher id would cost memory and time for all ids below it.
_HIGHEST_ID = (1 << 24) - 1


def find(directory: Path) -> Path:
    """Returns the file that defines a directory's tokenizer.

    Workdirs, their steps and corpora keep it in the folder `tokenizer`.
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
        f"tokenizer {directory}: needs tokenizer.json, vocab.txt, vocab.json with merges.txt, or "
        "one .model "
        "(save_pretrained of a model does not write the tokenizer: save the tokenizer to the same "
        "directory)"
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
    return config


def class_of(path: Path, config: dict[str, Any]) -> tuple[str | None, Path]:
    """Returns the class that a directory names for the tokenizer file `path`, without "Tokenizer"
    and "Fast", and the file that names it: tokenizer_config.json (`config`), else config.json.
    """
    named, name = path.with_name("tokenizer_config.json"), config.get("tokenizer_class")
    model = path.with_name("config.json")
    if name is None and model.is_file():
        values = parse_json(model)
        values = values if isinstance(values, dict) else {}
        named, name = model, values.get("tokenizer_class")
        if name is None:
            name = _CLASS_OF_TYPE.get((path.suffix, str(values.get("model_type"))))
    kind = name.removesuffix("Fast").removesuffix("Tokenizer") if isinstance(name, str) else None
    return kind, named


def with_implied(config: dict[str, Any], kind: str | None) -> dict[str, Any]:
    """Returns a tokenizer_config.json with the defaults of its class."""
    return _IMPLIED.get(kind or "", {}) | config


def require_agreement(state: dict[str, Any], config: dict[str, Any], path: Path) -> None:
    """Raises UsageError if tokenizer_config.json, or the class that it names, prepares text
    differently from `path` in the same directory, with the content `state`.

    The classes of `transformers` follow tokenizer_config.json, most other loaders tokenizer.json.
    """
    kind, named = class_of(path, config)
    declared = with_implied(config, kind)
    normalizer, cut = state["normalizer"] or {}, state["pre_tokenizer"] or {}
    written = {"add_prefix_space": cut.get("add_prefix_space")}
    if normalizer.get("type") == "BertNormalizer":
        written |= {theirs: normalizer[ours] for theirs, ours in _FLAGS.items()}
        for settings in (written, declared):
            if settings.get("strip_accents", False) is None:  # null means: same as lowercase
                case = settings.get("do_lower_case")
                settings["strip_accents"] = written["do_lower_case"] if case is None else case
    for name, value in written.items():
        if None not in (value, declared.get(name)) and declared[name] != value:
            ours = _FLAGS.get(name, name)
            who = str(named) if config.get(name) is not None else f"{kind}Tokenizer in {named}"
            raise UsageError(
                f"{path} has {ours}={value}, but {who} has {name}={declared[name]}; make them "
                f"agree: write {json.dumps(name)}: {json.dumps(value)} in {named.parent}/"
                "tokenizer_config.json if the model was trained so, else let the class write its "
                f"own tokenizer.json: {conversion(path.parent)}"
            )


def require_class(path: Path, config: dict[str, Any]) -> None:
    """Raises UsageError if the class that a directory names returns other ids than this package
    reads from `path`. A bare vocabulary does not describe how text is split, and no file describes
    the words that a program splits first.
    """
    kind, named = class_of(path, config)
    if path.suffix == ".model":
        known = _SENTENCEPIECE
    elif path.name in ("vocab.json", "merges.txt"):
        known = _BYTE_LEVEL
    elif path.suffix != ".json":
        known = _WORDPIECE
    else:
        known = () if kind == "RoFormer" else (kind,)
    if kind is None or kind in (*known, *GENERIC):
        return
    told = f"{named} has tokenizer_class {kind}Tokenizer, which gives other ids than {path.name}"
    if kind in _SLOW:
        usual = _BYTE_LEVEL[0] if path.suffix == ".json" and known else _WORDPIECE[0]
        raise UsageError(
            f"{told}, and transformers cannot write it as a tokenizer.json; where the model was "
            f"trained with {usual}Tokenizer, write that class there, else train another tokenizer"
        )
    raise UsageError(
        f"{told} by itself; have transformers write a tokenizer.json, and name the new directory: "
        f"{conversion(path.parent)}"
    )


def conversion(directory: Path) -> str:
    """Returns the command by which transformers writes a directory's tokenizer.json."""
    old, new = str(directory), f"{directory}-converted"
    code = f"AutoTokenizer.from_pretrained({old!r}).save_pretrained({new!r})"
    return f'python -c "from transformers import AutoTokenizer; {code}"'


def require_no_added_tokens(
    vocabulary: Path, ids: Mapping[str, int], config: dict[str, Any]
) -> None:
    """Raises UsageError if another file of the directory adds tokens to a bare vocabulary:
    added_tokens.json or tokenizer_config.json (`config`).
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
            f"{path} adds {', '.join(map(brief, other[:5]))} to {vocabulary.name}, which is read "
            f"by itself: have transformers write a tokenizer.json: {conversion(vocabulary.parent)}"
        )


def require_extra_tokens(path: Path, config: dict[str, Any], known: Container[str]) -> None:
    """Raises UsageError if another file of the directory names special tokens that transformers
    matches before the text is split, but the tokenizer in `path` does not (it matches `known`).
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
                    "define as special: remove them if no text has them, or have transformers "
                    f"write a tokenizer.json: {conversion(path.parent)}"
                )


def require_ids(vocab: dict[str, int], source: str) -> None:
    """Raises UsageError if two tokens have one id, or an id is higher than any embedding."""
    token_of: dict[int, str] = {}
    for token, id_ in vocab.items():
        if id_ > _HIGHEST_ID:
            raise UsageError(f"{source}: {brief(token)} has id {id_}, above {_HIGHEST_ID}")
        if id_ in token_of:
            both = " and ".join(sorted(map(brief, (token_of[id_], token))))
            raise UsageError(f"{source}: {both} share id {id_}; give each token a separate id")
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
    """Raises UsageError with `what` and the library's reason if `tokenizers` rejects a file.

    The library raises Exception itself, and PanicException, which is not an Exception.
    """
    try:
        yield
    except (UsageError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise UsageError(f"{what}: {brief(str(error))}") from error


def class_fields(state: dict[str, Any], is_bert: bool, segments: int) -> dict[str, Any]:
    """Returns the fields of a tokenizer_config.json for the class that reproduces the ids of a
    serialized backend, and for its inputs.
    """
    inputs = ["input_ids", *["token_type_ids"] * (segments > 1), "attention_mask"]
    fields = {"model_input_names": inputs, "clean_up_tokenization_spaces": False}
    if state["model"]["type"] == "WordPiece" and is_bert:
        normalizer = state["normalizer"]
        flags = {theirs: normalizer[ours] for theirs, ours in _FLAGS.items()}
        return fields | {"tokenizer_class": "BertTokenizer"} | flags
    # Specific classes rebuild normalizer and pre-tokenizer, and silently return other ids. The
    # generic class reads tokenizer.json unchanged, except for this field in transformers 4.
    fields["tokenizer_class"] = "PreTrainedTokenizerFast"
    if (space := (state["pre_tokenizer"] or {}).get("add_prefix_space")) is not None:
        fields["add_prefix_space"] = space
    return fields


def without_prefix(backend: Any) -> Any | None:
    """Returns a backend that differs only in putting no space before a text; None if this backend
    puts no space there, or if the words after the first would change as well.
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
        # If it splits the text, as in XLM-R, each word is a text.
        steps[:] = [step for step in steps if step["type"] != "WhitespaceSplit"]
    if not found:
        return None
    changed = type(backend).from_str(json.dumps(state))
    two, one = (changed.encode(text, add_special_tokens=False).ids for text in ("a a", "a"))
    words = backend.encode("a a", add_special_tokens=False).ids
    return changed if two[len(one) :] == words[len(words) // 2 :] else None


def with_prefix(backend: Any) -> Any:
    """Returns a backend that differs only in putting a space before a text, or before each of
    several single words.
    """
    state = json.loads(backend.to_str())
    if (state["pre_tokenizer"] or {}).get("type") == "ByteLevel":
        state["pre_tokenizer"]["add_prefix_space"] = True
    else:
        rest = [state["normalizer"]] if state["normalizer"] else []
        prepend = {"type": "Prepend", "prepend": " "}
        state["normalizer"] = {"type": "Sequence", "normalizers": [prepend, *rest]}
    return type(backend).from_str(json.dumps(state))
