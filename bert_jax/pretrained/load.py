"""Reads the parameters of a workdir, of one of its steps, or of a third-party model."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from bert_jax import config as configs
from bert_jax import config_loader
from bert_jax.config import ModelConfig, TrainConfig
from bert_jax.config_checks import require_registered
from bert_jax.data.corpus.store import MANIFEST, Corpus
from bert_jax.data.tokenizer import hub, tokenizer_files
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.errors import Diverged, NoUsableCheckpoint, UsageError
from bert_jax.interchange import huggingface, sentence_transformers, tf1
from bert_jax.interchange.name_map import Foreign
from bert_jax.model import bert, sharding
from bert_jax.progress import note_once
from bert_jax.registry import OBJECTIVES
from bert_jax.workdir import checkpoint, location, log_reader, recovery, run_directory
from bert_jax.workdir.run_directory import CONFIG, TOKENIZER, nearby

# The sections of a run's config that determine its validation rows and metrics.
SCORED_BY = ("objective", "data", "evaluation", "phases", "compute")
# The suffix of a workdir that names its best step.
_BEST = "@best"


@dataclass(frozen=True)
class LoadedCheckpoint:
    """Parameters from any source, with what is needed to use them."""

    directory: Path
    step: int
    # For a third-party model, only `config.model` and `config.head` are meaningful.
    config: TrainConfig
    # One subtree for the encoder and one for each of `config.head.parts`.
    params: bert.Params
    tokenizer: Path
    # Tensors of incomplete heads that were omitted on request.
    missing: tuple[str, ...] = ()
    # Whether `directory` is a workdir.
    is_run: bool = True

    @property
    def mesh(self) -> Mesh:
        """The devices that hold the parameters."""
        return jax.tree.leaves(self.params)[0].sharding.mesh


def load_checkpoint(
    path: str | Path,
    *,
    mesh: Mesh | None = None,
    allow_missing_heads: bool = False,
    ignore_unexpected: Sequence[str] = (),
) -> LoadedCheckpoint:
    """Reads a workdir (its newest good step), a step of one, a Hugging Face or a TF1 directory.

    The parameters are placed on `mesh`, by default on all devices. With `allow_missing_heads`,
    incomplete heads of a third-party model are omitted; extra tensors that match
    `ignore_unexpected` are ignored. A workdir or one of its steps may be in a bucket;
    `WORKDIR@best` is its best step.

    Raises:
        UsageError: `path` is not a checkpoint, or its tensors do not fit its config.
        NoUsableCheckpoint: the workdir has no step to read.
    """
    mesh = sharding.make_mesh(fsdp=-1, tensor=1) if mesh is None else mesh
    directory, step = run_of(path)
    if location.is_address(path):
        if not (directory / CONFIG).is_file():
            raise UsageError(f"`checkpoint` {path}: no workdir or step of one found there")
        return _load_step(directory, step, mesh)
    path = _existing(directory)
    if step is not None or _is_workdir(path):
        return _load_step(path, step, mesh)
    foreign = _read_foreign(
        path, allow_missing_heads=allow_missing_heads, ignore_unexpected=ignore_unexpected
    )
    if foreign is None or foreign.tokenizer is None:
        raise UsageError(
            f"`checkpoint` {path} is neither a workdir (checkpoints/, config.json), a step of one, "
            "a Hugging Face directory (config.json, model.safetensors) nor a TF1 one "
            f"(bert_config.json, bert_model.ckpt.index){nearby(path)}"
        )
    _require_own_tokenizer(foreign.tokenizer, foreign.model)
    shardings = sharding.param_shardings(foreign.params, mesh=mesh, shard_weights=True)
    return LoadedCheckpoint(
        path,
        foreign.step,
        foreign_config(foreign),
        jax.device_put(foreign.params, shardings),
        foreign.tokenizer,
        foreign.missing,
        is_run=False,
    )


def _read_foreign(path: Path, **options: Any) -> Foreign | None:
    """Returns the third-party model at `path`, with the directory of its tokenizer; None if absent.

    In a directory with both formats, the Hugging Face model is read; use a TF1 prefix for the
    other.
    """
    directory = sentence_transformers.encoder_directory(path)
    if huggingface.is_directory(directory):
        found = huggingface.read(directory, **options)
    elif tf1.is_checkpoint(path):
        directory, found = tf1.directory_of(path), tf1.read(path, **options)
    else:
        return None
    return dataclasses.replace(found, tokenizer=directory)


def run_of(path: str | Path) -> tuple[Path, int | None]:
    """Returns the workdir and the step that a workdir, a step or `WORKDIR@best` names.

    For a path without a step, returns the path, even if it is not a workdir, and None. For a run in
    a bucket, returns its local directory. Raises UsageError for a run without a best step.
    """
    best_of = str(path).removesuffix(_BEST)
    if best_of != str(path) and not Path(path).exists():
        directory = location.opened(best_of).path
        step = log_reader.best_step(directory, checkpoint.steps(directory))
        if step is None:
            raise UsageError(
                f"`checkpoint` {path}: it has no best step; train with the hook best_checkpoint"
            )
        return directory, step
    if location.is_address(path):
        workdir, _, name = str(path).rstrip("/").rpartition(f"/{checkpoint.DIRECTORY}/")
    else:
        path = Path(path)
        is_inside = path.parent.name == checkpoint.DIRECTORY
        workdir, name = path.parent.parent, path.name if is_inside else ""
    # A folder named `checkpoints` may also hold workdirs.
    is_step = bool(workdir) and name.isdecimal()
    return location.opened(workdir if is_step else path).path, int(name) if is_step else None


def run_config(path: str | Path) -> TrainConfig | None:
    """Returns the config of the run in a workdir; None if `path` is not a workdir."""
    directory, _ = run_of(path)
    if not _is_workdir(directory) or not (directory / CONFIG).is_file():
        return None
    return config_loader.load_config_json(directory / CONFIG)


def _is_workdir(directory: Path) -> bool:
    # The local directory of a workdir in a bucket has no checkpoints.
    return any((directory / name).is_dir() for name in (checkpoint.DIRECTORY, TOKENIZER))


def _existing(path: Path) -> Path:
    """Returns the directory or TF1 prefix of a checkpoint; a hub name may be in the hub's cache."""
    found = hub.located(path)
    if (found / MANIFEST).is_file():
        raise UsageError(f"`checkpoint` {found} is a corpus: name a model trained on one")
    if found.is_dir() or tf1.is_checkpoint(found):
        return found
    if advice := hub.pickle_advice(found) * found.is_file():
        raise UsageError(f"`checkpoint` {advice}")
    if found.is_file():
        raise UsageError(f"`checkpoint` {path} is a file; a checkpoint is a directory")
    raise UsageError(f"`checkpoint` {path}: no such directory{hub.advice(path)}")


def _require_own_tokenizer(path: Path, model: ModelConfig) -> None:
    """Raises UsageError if the tokenizer cannot belong to the model: if an id exceeds the embedding
    table, where JAX would silently read another row, or the padding id differs.
    """
    tokenizer = load_tokenizer(path)
    ids, pad = tokenizer.vocab_size, huggingface.declared_pad(path)
    if pad not in (None, tokenizer.special.pad):
        raise UsageError(
            f"`checkpoint` {path}: pad_token_id is {pad} in {huggingface.CONFIG}, but "
            f"{tokenizer.special.pad} in its tokenizer ({tokenizer_files.find(path).name}); put "
            "the right tokenizer into the directory"
        )
    if ids > model.vocab_size:
        raise UsageError(
            f"`checkpoint` {path}: its tokenizer has {ids} ids, but its model has only "
            f"{model.vocab_size} embeddings (vocab_size in config.json); put the right tokenizer "
            "into the directory"
        )


def _load_step(directory: Path, step: int | None, mesh: Mesh) -> LoadedCheckpoint:
    if step is not None:
        recovery.require_good(directory, step)
    else:
        step = recovery.newest_good_step(directory)
        _require_result(directory, step or 0)
    if step is None:
        name = location.at(directory).name
        raise NoUsableCheckpoint(f"workdir {name} has no finished checkpoint yet")
    config = config_loader.load_config_json(directory / CONFIG)
    require_registered(config)
    with jax.set_mesh(mesh):
        params = checkpoint.load_params(directory, step=step, config=config, mesh=mesh)
    return LoadedCheckpoint(directory, step, config.at_step(step), params, directory / TOKENIZER)


def _require_result(directory: Path, step: int) -> None:
    """Raises Diverged if `step` is the end of a fine-tuning run that diverged without a score;
    warns about one that diverged with a score.
    """
    ended = run_directory.result_of(directory)
    if not ended.get("diverged"):
        return
    problem = f"`checkpoint` {location.at(directory).name} diverged: {ended['reason']}"
    if not ended["scores"] and step >= ended["steps"]:
        raise Diverged(
            f"{problem}; use the run that results.json names, fine-tune again with a lower "
            "`learning_rate`, or name a step (checkpoints/STEP)"
        )
    note_once(f"warning: {problem}; results.json names the best run")


def foreign_config(foreign: Foreign) -> TrainConfig:
    """Returns a config for a third-party model: one phase of rows of at most 128 tokens, and the
    objective of the heads it has.
    """
    length = min(foreign.model.max_position_embeddings, 128)
    phase = configs.PhaseConfig(
        sequence_length=length, max_predictions=max(1, round(0.15 * length)), steps=1
    )
    fitting = {
        name: len(OBJECTIVES[name].parts)
        for name in OBJECTIVES.names()
        if set(OBJECTIVES[name].parts) <= set(foreign.head.parts)
    }
    objective = max(fitting, key=fitting.__getitem__) if fitting else TrainConfig.objective
    data = configs.DataConfig()
    if foreign.model.type_vocab_size < 2:  # without a second segment there are no sentence pairs
        objective = "mlm" if objective == TrainConfig.objective else objective
        data = configs.DataConfig(sequence_format="full_sentences")
    return TrainConfig(
        name="imported",
        objective=objective,
        model=foreign.model,
        head=foreign.head,
        compute=configs.ComputeConfig(dtype="float32"),
        data=data,
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
            f"checkpoint {source.directory} has no {named.removeprefix('the ')}, only {has}"
            + (f"; {remedy}" if remedy else "")
        )


def with_parts(
    source: LoadedCheckpoint, config: TrainConfig, *, allow_missing_heads: bool = False
) -> tuple[bert.Params, tuple[str, ...]]:
    """Returns the source's parameters with the parts of `config.head`, and the names of the parts
    that were initialized.

    Parts that `config` does not have are omitted. Raises UsageError if the source lacks a part,
    unless `allow_missing_heads` initializes it from the seed, and for embeddings from a generator.
    """
    if "embedding" in config.head.parts and huggingface.is_generator(source.tokenizer):
        raise UsageError(
            f"{source.directory} is an ELECTRA generator (ElectraForMaskedLM); train embeddings "
            "from its discriminator, or from the workdir of a run"
        )
    wanted = config.head.with_parameters().parts
    fresh = tuple(part for part in wanted if part not in source.params)
    if not allow_missing_heads:
        remedy = "`allow_missing_heads` initializes them"
        require_parts(source, *wanted, remedy=remedy)
    params = {part: source.params[part] for part in ("encoder", *wanted) if part not in fresh}
    if fresh:
        initial = bert.init_params(config.model, config.head, seed=config.seed)
        params |= {part: initial[part] for part in fresh}
    return params, fresh


def require_same_tokenizer(source: LoadedCheckpoint, corpus: Corpus) -> None:
    """Raises UsageError if an id means different tokens in the model and in the corpus."""
    theirs = load_tokenizer(source.tokenizer)
    if theirs.hash != corpus.tokenizer_hash:
        raise UsageError(
            f"corpus {corpus.directory} was built with another tokenizer ({corpus.vocab_size} ids, "
            f"{corpus.tokenizer_hash[:12]}) than checkpoint {source.directory} "
            f"({theirs.vocab_size} ids, {theirs.hash[:12]}); prepare the corpus again with "
            f"`tokenizer` {source.tokenizer}"
        )
