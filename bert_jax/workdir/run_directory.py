"""Makes a directory a workdir, and says whether it is one: config.json, tokenizer/."""

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from bert_jax import config as configs
from bert_jax import strict_json
from bert_jax.config import TrainConfig
from bert_jax.data.corpus.pieces import BLOCKS, Blocks
from bert_jax.data.corpus.several import compared_entropy
from bert_jax.data.corpus.store import MANIFEST, Corpus, read_manifest
from bert_jax.data.tokenizer import hub
from bert_jax.errors import BertJaxError, UsageError, brief
from bert_jax.files import copy_files, write_json
from bert_jax.versions import installed
from bert_jax.workdir import checkpoint, location, log_reader, resume_policy

CONFIG, TOKENIZER = "config.json", "tokenizer"
# How a fine-tuning ended.
RESULT = "result.json"
# What config.json calls the corpora of a mixture, in what it says of the corpus.
SOURCES = resume_policy.SOURCES
# Curves of finished runs that the user has named, with which this one is compared.
EXPECTED = "expected.json"
# What `imported_from` begins with, where it is an average of several checkpoints.
MEAN_OF = "the mean of "
_NEW_CONFIG = f"{CONFIG}.new"
# What is read of config.json beside the config; all of it may be missing.
_KINDS: Mapping[str, Any] = {
    "corpus": dict, "task": dict, "versions": dict, "sources": list, "init_from": str,
    "imported_from": str, "recipe": dict, "rows": dict,
}  # fmt: skip
_TASK_KINDS: Mapping[str, Any] = {"name": str, "kind": str, "metrics": list}
_CORPUS_KINDS: Mapping[str, Any] = {
    "directory": str, "absolute": str, "fingerprint": str, "language": str, "tokenizer_hash": str,
    "sources": list, "unigram_entropy_nats": int | float, "train": dict, "validation": dict,
    SOURCES: dict,
}  # fmt: skip
# What config.json calls the sizes by which a large corpus is cut (data/corpus/pieces.py).
_BLOCKS = "blocks"


def holds_run(
    directory: Path,
    config: TrainConfig,
    corpus: Corpus,
    *,
    init_from: Path | str | None,
    allowed: Sequence[str] = (),
) -> tuple[bool, list[resume_policy.Change]]:
    """Returns whether `directory` holds this run already, and what is allowed to change in
    it.

    False if it is free for it. Raises UsageError if it holds something else,
    ResumeRefused if it holds a run that differs. Writes nothing.
    """

    def changes(path: Path) -> list[resume_policy.Change]:
        return resume_policy.corpus_changes(
            path,
            corpus,
            init_from=None if init_from is None else str(init_from),
            has_steps=bool(checkpoint.steps(directory)),
        )

    return holds(directory, config, changes, allowed=allowed)


def holds(
    directory: Path,
    config: TrainConfig,
    changes: Callable[[Path], list[resume_policy.Change]],
    *,
    allowed: Sequence[str] = (),
    but_for: tuple[str, ...] = (),
    has_ways_on: bool = True,
) -> tuple[bool, list[resume_policy.Change]]:
    """Does as `holds_run` for any run; `changes` returns what its config.json has otherwise, beside
    the config.

    Names that begin with one of `but_for` may be in a directory that is free. `has_ways_on` is as
    in `resume_policy.require`.
    """
    path = directory / CONFIG
    location.at(directory).require_own()
    if path.is_file():
        name, others = location.at(directory).name, changes(path)
        return True, resume_policy.require(
            path, config, others=others, allowed=allowed, name=name, has_ways_on=has_ways_on
        )
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"`workdir` {directory} is a file; choose a directory")
    if directory.is_dir() and not is_free(directory, but_for=but_for):
        raise UsageError(
            f"`workdir` {directory} is not empty and holds no run; choose another directory"
        )
    return False, []


def is_free(directory: Path, *, but_for: tuple[str, ...] = ()) -> bool:
    """Returns whether nothing is there, or only what a beginning had made when it was cut short.

    Names that begin with one of `but_for` do not count.
    """
    but_for = (*but_for, location.LOCK, location.LEASE)
    names = {path.name for path in directory.iterdir() if not path.name.startswith(but_for)}
    return not names or (_NEW_CONFIG in names and names <= {_NEW_CONFIG, TOKENIZER})


def claim(directory: Path) -> None:
    """Makes the directory, and says which tokenizer it gets should its beginning be cut short."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / _NEW_CONFIG).touch()


def create(
    directory: Path,
    config: TrainConfig,
    corpus: Corpus,
    *,
    init_from: Path | str | None,
    imported_from: Path | None = None,
) -> None:
    """Makes `directory` the workdir of a new run: its config and its tokenizer."""
    claim(directory)
    copy_files(corpus.directory / "tokenizer", directory / TOKENIZER)
    write_config(
        directory,
        config,
        corpus=_named(corpus),
        init_from=None if init_from is None else str(init_from),
        **({} if imported_from is None else {"imported_from": str(imported_from)}),
        **{_BLOCKS: BLOCKS._asdict()},
    )


def stored(directory: Path) -> dict[str, Any]:
    """Returns the content of the config.json of the run in `directory`; nothing where there is no
    run.

    Raises UsageError for one that is damaged.
    """
    return stored_at(location.Location(directory))


def stored_at(place: location.Location) -> dict[str, Any]:
    """Does as `stored` for any place: only config.json is read, and no file is written."""
    path, text = f"{place.name}/{CONFIG}", place.document(CONFIG)
    found = {} if text is None else strict_json.parse_file(path, text)
    if not isinstance(found, dict):
        raise UsageError(f"{path} is damaged: it holds no JSON object")
    _require_kinds(path, found, _KINDS)
    corpus = found.get("corpus") or {}
    _require_kinds(path, corpus, _CORPUS_KINDS)
    _require_kinds(path, found.get("task") or {}, _TASK_KINDS)
    for name, source in (corpus.get(SOURCES) or {}).items():
        _require_kinds(path, {name: source}, {name: dict})
        _require_kinds(path, source, _CORPUS_KINDS)
    return found


def result_of(directory: Path) -> dict[str, Any]:
    """Returns what result.json says of the end of a fine-tuning; nothing where there is none.

    Raises UsageError for one that is damaged.
    """
    path = directory / RESULT
    found = strict_json.load_object(path, default={})
    scores = found.get("scores", {})
    each = scores.values() if isinstance(scores, dict) else (None,)
    values = [v for split in each for v in (split.values() if isinstance(split, dict) else (None,))]
    has_steps = not found or type(found.get("steps")) is int
    if not has_steps or not all(isinstance(value, int | float) for value in values):
        raise UsageError(
            f"{path} is damaged: it has no steps, or scores that are none; remove it, and the "
            "command that wrote it writes it again"
        )
    return found


def _require_kinds(path: Path | str, values: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    for name, kind in kinds.items():
        value = values.get(name)
        is_right = isinstance(value, kind | None)
        if kind is list and value:
            is_right = is_right and all(isinstance(each, str) for each in value)
        if not is_right:
            raise UsageError(f"{path} is damaged: `{name}` is {brief(value)}")


def blocks_of(directory: Path) -> Blocks:
    """Returns the sizes by which the run in `directory` cuts its corpus; a new run gets `BLOCKS`.

    Raises UsageError if config.json holds no valid sizes.
    """
    if not (directory / CONFIG).is_file():
        return BLOCKS
    found: Any = stored(directory).get(_BLOCKS)
    try:
        sizes = Blocks(**found)
    except TypeError:
        sizes = Blocks(0, 0, 0)
    if not all(type(size) is int and size > 0 for size in sizes):
        raise UsageError(f"{directory / CONFIG}: {_BLOCKS} are no sizes: {found!r}")
    return sizes


def corpus_of(workdir: Path | str) -> Path | dict[str, Path] | None:
    """Returns where the corpus is that the run in `workdir` names, or the corpora of its sources by
    name; None if it names none.

    A relative path is looked for from here, as it was at the run's beginning, and from each folder
    that the workdir is in: both may have moved together. Of several the one that was trained on is
    taken; where none is there, what the run says.
    """
    directory = location.opened(workdir).path
    named = stored(directory).get("corpus") or {}
    if SOURCES in named:
        return {name: _place_of(each, directory) for name, each in named[SOURCES].items()}
    return None if named.get("directory") is None else _place_of(named, directory)


def _place_of(corpus: dict[str, Any], directory: Path) -> Path:
    """Returns where a corpus is that the run in a directory describes so."""
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
    """Returns what to say of a directory that is no workdir where some lie in it, as those of
    several runs do; or nothing.
    """
    there = sorted([*path.glob("*"), *path.glob("runs/*")])
    found = [each for each in there if (each / CONFIG).is_file() and (each / TOKENIZER).is_dir()]
    several = f" of {len(found)} in it" * (len(found) > 1)
    return f"; {found[0]} is one{several}" if found else ""


def is_continued(directory: Path) -> bool:
    """Returns whether the run in `directory`, if there is one, began from parameters that were
    trained before.
    """
    begun = stored(directory)
    return bool(begun.get("init_from") or begun.get("imported_from"))


def change(directory: Path, config: TrainConfig, corpus: Corpus) -> None:
    """Writes down that the run in `directory` goes on with another config or corpus; where it began
    stays.
    """
    begun = stored(directory)
    kept = {key: begun[key] for key in begun if key not in ("config", "versions", "corpus")}
    write_config(directory, config, corpus=_named(corpus), **kept)


def entropy_of(described: dict[str, Any], rows: list[dict[str, Any]]) -> float | None:
    """Returns the unigram entropy that the held-out losses in the rows of a run are compared with;
    None where the run has no corpus. `described` is what its `config.json` says.
    """
    corpus = described.get("corpus") or {}
    sources = corpus.get(SOURCES) or {}
    if None in (each.get("unigram_entropy_nats") for each in (corpus, *sources.values())):
        return None
    return compared_entropy(corpus, sources, log_reader.closing_rows(rows)[1])


def _named(corpus: Corpus) -> dict[str, Any]:
    """Returns which corpus it is; and, for the model card, what it holds."""
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
    """Writes `config.json`, last and whole: a workdir that has it is complete."""
    values = {"config": configs.to_dict(config), "versions": versions(), **facts}
    write_json(directory / CONFIG, values)


def facts(config: TrainConfig, corpus: Corpus) -> dict[str, Any]:
    """Returns what a checkpoint's manifest says of its run."""
    digest = hashlib.sha256(json.dumps(configs.to_dict(config), sort_keys=True).encode())
    return {"config": digest.hexdigest(), "corpus": corpus.fingerprint, "versions": versions()}


def versions() -> dict[str, str]:
    """Returns the versions that a run records; libtpu's where there is a TPU."""
    python = ".".join(map(str, sys.version_info[:3]))
    return {"python": python} | installed(
        "bert-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "libtpu"
    )


def hardware() -> dict[str, Any]:
    """Returns what a run says of its devices when it starts."""
    devices = jax.devices()
    return {
        "devices": len(devices),
        "device_kind": devices[0].device_kind,
        "processes": jax.process_count(),
    }
