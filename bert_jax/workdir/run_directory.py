"""The description of a run in its workdir: config.json and tokenizer/."""

import contextlib
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from bert_jax import config as configs
from bert_jax import config_loader, strict_json
from bert_jax.config import TrainConfig
from bert_jax.config.resume import Change, allowed_changes, differences
from bert_jax.data.corpus.several import compared_entropy
from bert_jax.data.corpus.store import MANIFEST, Corpus, read_manifest
from bert_jax.data.tokenizer import hub
from bert_jax.errors import BertJaxError, UsageError
from bert_jax.files import write_json
from bert_jax.versions import installed
from bert_jax.workdir import checkpoint, location, log_reader

CONFIG, TOKENIZER = "config.json", "tokenizer"
# The result of fine-tuning.
RESULT = "result.json"
# The corpora of a mixture, in the corpus description in config.json.
SOURCES = "corpora"
_NEW_CONFIG = f"{CONFIG}.new"


def holds_run(
    directory: Path,
    config: TrainConfig,
    corpus: Corpus,
    *,
    init_from: Path | str | None,
    allowed: Sequence[str] = (),
) -> tuple[bool, list[Change]]:
    """Returns whether `directory` already has this run, and the allowed changes.

    False if the directory is free for the run. Raises UsageError if it holds something else,
    ResumeRefused if it holds a run that differs. Writes nothing.
    """

    def changes(stored: dict[str, Any]) -> list[Change]:
        return input_changes(
            stored,
            corpus,
            init_from=None if init_from is None else str(init_from),
            has_steps=bool(checkpoint.steps(directory)),
        )

    return holds(directory, config, changes, allowed=allowed)


def holds(
    directory: Path,
    config: TrainConfig,
    changes: Callable[[dict[str, Any]], list[Change]],
    *,
    allowed: Sequence[str] = (),
    has_allow_change: bool = True,
) -> tuple[bool, list[Change]]:
    """Like `holds_run`, for any run; `changes` returns the differences from the content of its
    config.json that are outside of the config.

    `has_allow_change` is as in `config.resume.allowed_changes`.
    """
    path = directory / CONFIG
    if path.is_file():
        stored = strict_json.load_object(path)
        return True, allowed_changes(
            config_loader.config_in(stored, path),
            config,
            others=changes(stored),
            allowed=allowed,
            name=location.at(directory).name,
            has_allow_change=has_allow_change,
            has_steps=bool(checkpoint.steps(directory)) or (directory / RESULT).is_file(),
        )
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"`workdir` {directory} is a file; choose a directory")
    if directory.is_dir() and not is_free(directory):
        raise UsageError(
            f"`workdir` {directory} is not empty and is not a run; choose another directory"
        )
    return False, []


def input_changes(
    stored: dict[str, Any], corpus: Corpus, *, init_from: str | None, has_steps: bool
) -> list[Change]:
    """Returns the changes between the inputs that a config.json records and these inputs."""
    changes: list[Change] = []
    was = stored.get("corpus") or {}
    if SOURCES in was and corpus.sources:
        old = {name: each["fingerprint"][:12] for name, each in was[SOURCES].items()}
        new = {name: each.fingerprint[:12] for name, each in corpus.sources.items()}
        changes += [(f"corpus.{name}", *values) for name, *values in differences(old, new)]
    elif was.get("fingerprint") != corpus.fingerprint:
        changes.append(("corpus", str(was.get("fingerprint"))[:12], corpus.fingerprint[:12]))
    if "tokenizer_hash" in was and was["tokenizer_hash"] != corpus.tokenizer_hash:
        changes.append(("tokenizer", was["tokenizer_hash"][:12], corpus.tokenizer_hash[:12]))
    beginning = stored.get("init_from")
    if is_same_place(beginning, init_from):
        beginning = init_from
    # The initial parameters matter until the first checkpoint. Later `init_from` may be omitted.
    if beginning != init_from and not (has_steps and init_from is None):
        changes.append(("`init_from`", beginning, init_from))
    return changes


def is_same_place(one: str | None, other: str | None) -> bool:
    """Returns whether two names lead to the same place: a folder may have several paths."""
    if one is None or other is None:
        return one == other
    return one == other or Path(one).resolve() == Path(other).resolve()


def is_free(directory: Path) -> bool:
    """Returns whether a directory is empty, or has only files of an interrupted start."""
    but_for = (location.LOCK, location.OWNER)
    names = {path.name for path in directory.iterdir() if not path.name.startswith(but_for)}
    return not names or (_NEW_CONFIG in names and names <= {_NEW_CONFIG, TOKENIZER})


def claim(directory: Path) -> None:
    """Creates the directory, and marks it as belonging to a run that starts."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / _NEW_CONFIG).touch()


def create(
    directory: Path,
    config: TrainConfig,
    corpus: Corpus,
    *,
    init_from: Path | str | None,
) -> None:
    """Makes `directory` the workdir of a new run: its config and its tokenizer."""
    claim(directory)
    shutil.copytree(corpus.directory / "tokenizer", directory / TOKENIZER, dirs_exist_ok=True)
    write_config(
        directory,
        config,
        corpus=_named(corpus),
        init_from=None if init_from is None else str(init_from),
    )


def stored(place: Path | location.Location) -> dict[str, Any]:
    """Returns the content of config.json of the run in a folder, or at a place that need not be
    opened; empty if it does not exist.

    Raises UsageError if the file is damaged.
    """
    place = location.Location(str(place), place) if isinstance(place, Path) else place
    path, text = f"{place.name}/{CONFIG}", place.document(CONFIG)
    found = {} if text is None else strict_json.parse_file(path, text)
    if not isinstance(found, dict):
        raise UsageError(f"{path} is damaged: expected a JSON object")
    return found


def result_of(directory: Path) -> dict[str, Any]:
    """Returns the result.json of a fine-tuning run; empty if it does not exist.

    Raises UsageError if the file is damaged.
    """
    return strict_json.load_object(directory / RESULT, default={})


def corpus_of(workdir: Path | str) -> Path | dict[str, Path] | None:
    """Returns the place of the corpus that the run in `workdir` names, or the places of its sources
    by name; None if it names none.

    A relative path is resolved from the working directory, as at the start of the run, and from
    each folder above the workdir, because both may have moved together. Of several matches, the
    corpus that the run was trained on is returned; without a match, the recorded path.
    """
    directory = location.opened(workdir).path
    named = stored(directory).get("corpus") or {}
    if SOURCES in named:
        return {name: _place_of(each, directory) for name, each in named[SOURCES].items()}
    return None if named.get("directory") is None else _place_of(named, directory)


def _place_of(corpus: dict[str, Any], directory: Path) -> Path:
    """Returns the place of a corpus, given its description in config.json of a run."""
    named = Path(corpus["directory"])
    tried = [named, Path(corpus.get("absolute", named))]
    tried += [parent / named for parent in directory.resolve().parents]
    there = [path for path in tried if (path / MANIFEST).is_file()]
    for path in there:
        with contextlib.suppress(BertJaxError):
            if read_manifest(path)["fingerprint"] == corpus.get("fingerprint"):
                return path
    return there[0] if there else tried[1]


def nearby(path: Path) -> str:
    """Returns a hint for messages about a directory with workdirs in it, such as the directory of
    several runs; "" for other directories.
    """
    there = sorted([*path.glob("*"), *path.glob("runs/*")])
    found = [each for each in there if (each / CONFIG).is_file() and (each / TOKENIZER).is_dir()]
    several = f" of {len(found)} in it" * (len(found) > 1)
    return f"; {found[0]} is one{several}" if found else ""


def is_continued(directory: Path) -> bool:
    """Returns whether the run in `directory`, if it exists, started from trained parameters."""
    begun = stored(directory)
    return bool(begun.get("init_from") or begun.get("mean_of"))


def change(directory: Path, config: TrainConfig, corpus: Corpus) -> None:
    """Records a changed config or corpus for the run in `directory`; the initial ones are kept."""
    begun = stored(directory)
    kept = {key: begun[key] for key in begun if key not in ("config", "versions", "corpus")}
    write_config(directory, config, corpus=_named(corpus), **kept)


def entropy_of(described: dict[str, Any], rows: list[dict[str, Any]]) -> float | None:
    """Returns the unigram entropy to compare with the validation losses in the rows of a run; None
    if the run has no corpus. `described` is the content of its `config.json`.
    """
    corpus = described.get("corpus") or {}
    sources = corpus.get(SOURCES) or {}
    if None in (each.get("unigram_entropy_nats") for each in (corpus, *sources.values())):
        return None
    return compared_entropy(corpus, sources, log_reader.closing_rows(rows)[1])


def _named(corpus: Corpus) -> dict[str, Any]:
    """Returns the identity of a corpus, and its content for the model card."""
    if corpus.sources:
        each = {name: _named(source) for name, source in corpus.sources.items()}
        places = ("directory", "absolute")
        return {k: v for k, v in _described(corpus).items() if k not in places} | {SOURCES: each}
    return _described(corpus)


def _described(corpus: Corpus) -> dict[str, Any]:
    manifest = corpus.manifest
    counts = {
        split: {name: manifest["counts"][split][name] for name in ("documents", "tokens")}
        for split in ("train", "validation")
    }
    return {
        "directory": str(corpus.directory),
        "absolute": str(corpus.directory.resolve()),
        "fingerprint": corpus.fingerprint,
        **({"language": language} if (language := manifest["options"].get("language")) else {}),
        "tokenizer_hash": corpus.tokenizer_hash,
        "sources": [hub.source_name(source) for source in manifest["sources"]],
        "unigram_entropy_nats": manifest["unigram_entropy_nats"],
        **counts,
    }  # fmt: skip


def write_config(directory: Path, config: TrainConfig, **facts: Any) -> None:
    """Writes `config.json`, last: a workdir with this file is complete."""
    values = {"config": configs.to_dict(config), "versions": versions(), **facts}
    write_json(directory / CONFIG, values)


def versions() -> dict[str, str]:
    """Returns the versions of the libraries that a run records (libtpu only on a TPU)."""
    python = ".".join(map(str, sys.version_info[:3]))
    return {"python": python} | installed(
        "bert-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "libtpu"
    )


def hardware() -> dict[str, Any]:
    """Returns the devices and processes that a run records when it starts."""
    devices = jax.devices()
    return {
        "devices": len(devices),
        "device_kind": devices[0].device_kind,
        "processes": jax.process_count(),
    }
