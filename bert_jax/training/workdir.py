"""What lies in a workdir besides checkpoints and logs, and what `--checkpoint` can name."""

import contextlib
import hashlib
import importlib.metadata
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from bert_jax import config as configs
from bert_jax import resolve
from bert_jax.config import ModelConfig, TrainConfig
from bert_jax.data.store import Corpus
from bert_jax.errors import NoUsableCheckpoint, UsageError
from bert_jax.interchange import huggingface, tf1
from bert_jax.interchange.layout import Foreign
from bert_jax.model import heads, sharding
from bert_jax.training import bucket, checkpoint, recovery, same_run

CONFIG, TOKENIZER = "config.json", "tokenizer"
_NEW_CONFIG = f"{CONFIG}.new"


def holds_run(
    directory: Path,
    config: TrainConfig,
    corpus: Corpus,
    *,
    init_from: Path | str | None,
    allowed: Sequence[str] = (),
) -> tuple[bool, list[same_run.Change]]:
    """Whether `directory` is the home of this run already, and what is allowed to change in it.

    False if it is free to become its home. Raises UsageError if it holds something else,
    ResumeRefused if it holds a run that differs. Writes nothing.
    """
    if (directory / CONFIG).is_file():
        changes = same_run.require(
            directory / CONFIG,
            config,
            corpus,
            init_from=None if init_from is None else str(init_from),
            has_steps=bool(checkpoint.steps(directory)),
            allowed=allowed,
            name=bucket.address_of(directory),
        )
        return True, changes
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"--workdir {directory} is a file; choose a directory")
    if directory.is_dir() and not is_free(directory):
        raise UsageError(
            f"--workdir {directory} is not empty and holds no run; choose another directory"
        )
    return False, []


def is_free(directory: Path, *, but_for: tuple[str, ...] = ()) -> bool:
    """Whether nothing is there, or only what a beginning had made when it was cut short.

    Names that begin with one of `but_for` do not count.
    """
    names = {path.name for path in directory.iterdir() if not path.name.startswith(but_for)}
    return not names or (_NEW_CONFIG in names and names <= {_NEW_CONFIG, TOKENIZER})


def claim(directory: Path) -> None:
    """Makes the directory, and says whose tokenizer it gets should its beginning be cut short."""
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
    """Makes `directory` the home of a new run: its config and its tokenizer."""
    claim(directory)
    shutil.copytree(corpus.directory / "tokenizer", directory / TOKENIZER, dirs_exist_ok=True)
    write_config(
        directory,
        config,
        corpus=_named(corpus),
        init_from=None if init_from is None else str(init_from),
        **({} if imported_from is None else {"imported_from": str(imported_from)}),
    )


def change(directory: Path, config: TrainConfig, corpus: Corpus) -> None:
    """The run in `directory` goes on with another config or corpus; where it began stays."""
    stored = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    kept = {key: stored[key] for key in stored if key not in ("config", "versions", "corpus")}
    write_config(directory, config, corpus=_named(corpus), **kept)


def _named(corpus: Corpus) -> dict[str, Any]:
    """Which corpus it is; and, for the model card, what it holds."""
    manifest = corpus.manifest
    counts = {
        split: {name: manifest["counts"][split][name] for name in ("documents", "tokens")}
        for split in ("train", "validation")
    }
    return {
        "directory": str(corpus.directory),
        "fingerprint": corpus.fingerprint,
        "tokenizer_hash": corpus.tokenizer_hash,
        "sources": [source if ":" in source else Path(source).name
                    for source in manifest["sources"]],
        "unigram_entropy_nats": manifest["unigram_entropy_nats"],
        **counts,
    }  # fmt: skip


def write_config(directory: Path, config: TrainConfig, **facts: Any) -> None:
    """`config.json`, written last and whole: a workdir that has it is complete."""
    values = {"config": configs.to_dict(config), "versions": versions(), **facts}
    building = directory / _NEW_CONFIG
    building.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    building.replace(directory / CONFIG)


def facts(config: TrainConfig, corpus: Corpus) -> dict[str, Any]:
    """What a checkpoint's manifest says of its run."""
    digest = hashlib.sha256(json.dumps(configs.to_dict(config), sort_keys=True).encode())
    return {"config": digest.hexdigest(), "corpus": corpus.fingerprint, "versions": versions()}


def versions() -> dict[str, str]:
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("bert-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy"):
        found[name] = importlib.metadata.version(name)
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        found["libtpu"] = importlib.metadata.version("libtpu")  # where there is a TPU
    return found


def hardware() -> dict[str, Any]:
    """What a run says of its devices when it starts."""
    devices = jax.devices()
    return {
        "devices": len(devices),
        "device_kind": devices[0].device_kind,
        "processes": jax.process_count(),
    }


# --- --checkpoint --------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadedCheckpoint:
    """Parameters from anywhere, with what is needed to use them."""

    directory: Path
    step: int
    # Of a foreign model, only `config.model` and `config.head` are meaningful.
    config: TrainConfig
    # A subtree for the encoder and for each of `config.head.parts`.
    params: heads.Params
    tokenizer: Path
    # Tensors of heads that were left out, with permission.
    missing: tuple[str, ...] = ()


def load_checkpoint(
    path: str | Path, *, mesh: Mesh, allow_missing_heads: bool = False
) -> LoadedCheckpoint:
    """Reads a workdir (its newest good step), a step of one, a Hugging Face directory or a TF1 one.

    Raises UsageError if `path` is none of them or its tensors do not fit its config,
    NoUsableCheckpoint if it holds nothing to read. With `allow_missing_heads`, heads of a foreign
    model that are not whole are left out. A workdir or step of one may be in a bucket.
    """
    if bucket.is_address(path):
        home, _, step = str(path).rstrip("/").partition(f"/{checkpoint.DIRECTORY}/")
        directory = bucket.directory_of(home)
        if not (directory / CONFIG).is_file() or not (step or "0").isdigit():
            raise UsageError(f"--checkpoint {path}: there is no workdir or step of one")
        return _load_step(directory, int(step) if step else None, mesh)
    path = Path(path)
    if not path.is_dir() and not tf1.is_checkpoint(path):
        raise UsageError(f"--checkpoint {path}: no such directory")
    if path.parent.name == checkpoint.DIRECTORY and path.name.isdigit():
        return _load_step(path.parent.parent, int(path.name), mesh)
    if (path / checkpoint.DIRECTORY).is_dir() or (path / TOKENIZER).is_dir():
        return _load_step(path, None, mesh)
    foreign, tokenizer = read_foreign(path, allow_missing_heads=allow_missing_heads)
    return LoadedCheckpoint(
        path,
        foreign.step,
        foreign_config(foreign),
        _placed(foreign.params, mesh),
        tokenizer,
        foreign.missing,
    )


def read_foreign(
    path: Path, *, allow_missing_heads: bool = False, format: str = "auto"
) -> tuple[Foreign, Path]:
    """A model of another system, and the directory of its tokenizer. Errors: `load_checkpoint`.

    A directory may hold both formats: "auto" takes Hugging Face's, "tf1" the other one.
    """
    if huggingface.is_directory(path) and format != "tf1":
        foreign, directory = huggingface.read(path, allow_missing_heads=allow_missing_heads), path
    elif tf1.is_checkpoint(path):
        foreign = tf1.read(path, allow_missing_heads=allow_missing_heads)
        directory = tf1.directory_of(path)
    else:
        raise UsageError(
            f"--checkpoint {path} is neither a workdir (checkpoints/, config.json), a step of one, "
            "a Hugging Face directory (config.json, model.safetensors) nor a TF1 one "
            "(bert_config.json, bert_model.ckpt.index)"
        )
    _require_rows_for_ids(directory, foreign.model)
    return foreign, directory


def _require_rows_for_ids(path: Path, model: ModelConfig) -> None:
    """An id beyond the embedding is no error to jax: it silently reads another row."""
    from bert_jax.data import tokenizer

    ids = tokenizer.load(path).vocab_size
    if ids > model.vocab_size:
        raise UsageError(
            f"--checkpoint {path}: its tokenizer has {ids} ids, but its model has embeddings for "
            f"{model.vocab_size} (vocab_size in config.json); put the right tokenizer beside it"
        )


def _load_step(directory: Path, step: int | None, mesh: Mesh) -> LoadedCheckpoint:
    if step is not None:
        recovery.require_good(directory, step)
    else:
        step = recovery.newest_good_step(directory)
    if step is None:
        name = bucket.address_of(directory)
        raise NoUsableCheckpoint(f"workdir {name} has no finished checkpoint yet")
    config = resolve.load_json(directory / CONFIG)
    params = checkpoint.load_params(directory, step=step, config=config, mesh=mesh)
    return LoadedCheckpoint(directory, step, config, params, directory / TOKENIZER)


def _placed(params: heads.Params, mesh: Mesh) -> heads.Params:
    return jax.device_put(params, sharding.layout(params, mesh=mesh, shard_weights=True))


def foreign_config(foreign: Foreign) -> TrainConfig:
    """A config around a model that came without one: its longest phase is what it can take."""
    length = min(foreign.model.max_position_embeddings, 128)
    phase = configs.PhaseConfig(
        sequence_length=length, max_predictions=max(1, round(0.15 * length)), steps=1
    )
    return TrainConfig(
        name="imported",
        model=foreign.model,
        head=foreign.head,
        compute=configs.ComputeConfig(dtype="float32"),
        optimizer=configs.OptimizerConfig(warmup_steps=0),
        phases=(phase,),
    )


_NEEDED_FOR = {"mlm": "the masked-LM head", "nsp": "the next-sentence head"}


def require_parts(source: LoadedCheckpoint, *parts: str, remedy: str = "") -> None:
    """Raises UsageError if `source` lacks one of `parts`."""
    lacking = [part for part in parts if part not in source.config.head.parts]
    if lacking:
        has = ", ".join(("encoder", *source.config.head.parts))
        named = " and ".join(_NEEDED_FOR.get(part, f"the {part}") for part in lacking)
        raise UsageError(
            f"checkpoint {source.directory} has no {named.removeprefix('the ')}: it holds {has}"
            + (f"; {remedy}" if remedy else "")
        )


def with_parts(
    source: LoadedCheckpoint, config: TrainConfig, *, allow_missing_heads: bool = False
) -> tuple[heads.Params, tuple[str, ...]]:
    """The source's parameters with the parts of `config.head`, and the names of the fresh ones.

    Parts that `config` does not have are left behind. Raises UsageError if the source lacks one,
    unless `allow_missing_heads` lets it begin fresh, from the seed.
    """
    wanted = config.head.parts
    fresh = tuple(part for part in wanted if part not in source.params)
    if not allow_missing_heads:
        remedy = "--allow-missing-heads begins with fresh ones"
        require_parts(source, *wanted, remedy=remedy)
    params = {part: source.params[part] for part in ("encoder", *wanted) if part not in fresh}
    if fresh:
        initial = heads.init_params(config.model, config.head, seed=config.seed)
        params |= {part: initial[part] for part in fresh}
    return params, fresh


def require_same_tokenizer(source: LoadedCheckpoint, corpus: Corpus) -> None:
    """Raises UsageError if an id would be one token to the model and another in the corpus."""
    from bert_jax.data import tokenizer

    theirs = tokenizer.load(source.tokenizer)
    if theirs.hash != corpus.tokenizer_hash:
        raise UsageError(
            f"corpus {corpus.directory} was built with another tokenizer ({corpus.vocab_size} ids, "
            f"{corpus.tokenizer_hash[:12]}) than checkpoint {source.directory} "
            f"({theirs.vocab_size} ids, {theirs.hash[:12]}); prepare the corpus again with "
            f"--tokenizer {source.tokenizer}"
        )
