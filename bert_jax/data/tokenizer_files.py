"""The files of a tokenizer: which one counts, and reading them with errors that name them."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bert_jax import strict_json
from bert_jax.errors import UsageError, brief

# How BertTokenizer prepares text, yes, no or not said: tokenizer_config.json's name for it ->
# tokenizer.json's.
_FLAGS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


def find(directory: Path) -> Path:
    """The file that says what a directory's tokenizer is."""
    for name in ("tokenizer.json", "vocab.txt"):
        if (directory / name).is_file():
            return directory / name
    found = sorted(directory.glob("*.model"))
    if len(found) == 1:
        return found[0]
    raise UsageError(
        f"tokenizer {directory}: holds neither tokenizer.json nor vocab.txt nor one .model"
    )


def read_config(path: Path) -> dict[str, Any]:
    """The fields of a tokenizer_config.json; none if there is no such file."""
    if not path.is_file():
        return {}
    config = parse_json(path)
    if not isinstance(config, dict):
        raise UsageError(f"{path} is not a JSON object")
    for flag in _FLAGS:
        if not isinstance(config.get(flag), bool | None):
            raise UsageError(f"{path}: {flag} is {brief(config[flag])}; write true, false or null")
    return config


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


def require_no_added_tokens(vocabulary: Path, line_of: Mapping[str, int]) -> None:
    """Raises UsageError if added_tokens.json beside a vocab.txt has tokens that it lacks."""
    path = vocabulary.parent / "added_tokens.json"
    if not path.is_file():
        return
    added = parse_json(path)
    if not isinstance(added, dict):
        raise UsageError(f"{path} is not a JSON object")
    other = [token for token, id_ in added.items() if line_of.get(token, 0) - 1 != id_]
    if other:
        raise UsageError(
            f"{path} adds {', '.join(map(brief, other[:5]))} to {vocabulary.name}, which alone is "
            "read: have transformers save the tokenizer as tokenizer.json"
        )


def parse_json(path: Path) -> Any:
    try:
        return strict_json.parse(read_text(path))
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from error


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: {error}") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def write(path: Path, text: str) -> None:
    path.write_text(text + "\n", encoding="utf-8", newline="\n")


@contextlib.contextmanager
def refused_by_library(what: str) -> Iterator[None]:
    """`what`, said of a file, with the reason that `tokenizers` has for not taking it.

    The library raises nothing narrower than Exception, and a PanicException, which is not even one.
    """
    try:
        yield
    except (UsageError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise UsageError(f"{what}: {brief(str(error))}") from error
