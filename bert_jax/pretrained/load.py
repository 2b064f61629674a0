"""Reads parameters from a workdir, one step of it, or another system's model."""

import contextlib
import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from bert_jax import config as configs
from bert_jax import config_loader
from bert_jax.config import ModelConfig, TrainConfig
from bert_jax.config_checks import require_registered, validate
from bert_jax.data.corpus.store import MANIFEST, Corpus
from bert_jax.data.tokenizer import hub, tokenizer_files
from bert_jax.errors import NoUsableCheckpoint, UsageError
from bert_jax.files import write_json
from bert_jax.interchange import huggingface, name_map, sentence_transformers, tf1
from bert_jax.interchange.name_map import ImportedModel
from bert_jax.model import bert, sharding
from bert_jax.progress import note_once
from bert_jax.registry import OBJECTIVES
from bert_jax.workdir import checkpoint, location, log_reader, recovery
from bert_jax.workdir.run_directory import CONFIG, TOKENIZER, nearby, stored

# In a directory that was exported: the step, and the parts of the run's config by which its
# held-out rows are made and scored. Other readers ignore the file.
RECORD = "bert_jax_run.json"
SCORED_BY = ("objective", "data", "evaluation", "phases", "compute")
# Behind the name of a workdir: its best step.
_BEST = "@best"


@dataclass(frozen=True)
class LoadedCheckpoint:
    """Parameters from anywhere, with what is needed to use them."""

    directory: Path
    step: int
    # Of a foreign model, only `config.model` and `config.head` are meaningful, unless `is_run`.
    config: TrainConfig
    # A subtree for the encoder and for each of `config.head.parts`.
    params: bert.Params
    tokenizer: Path
    # Tensors of heads that were left out, with permission.
    missing: tuple[str, ...] = ()
    # Whether the run that made the parameters is known: a workdir, or an export of one.
    is_run: bool = True

    @property
    def mesh(self) -> Mesh:
        """The devices that the parameters lie on."""
        return jax.tree.leaves(self.params)[0].sharding.mesh


def load_checkpoint(
    path: str | Path,
    *,
    mesh: Mesh | None = None,
    allow_missing_heads: bool = False,
    ignore_unexpected: Sequence[str] = (),
) -> LoadedCheckpoint:
    """Reads a workdir (its newest good step), a step of one, a Hugging Face directory or a TF1 one.

    The parameters lie on `mesh`, by default over all devices. With `allow_missing_heads`, heads of
    a foreign model that are not whole are left out; tensors beside its own that `ignore_unexpected`
    matches are ignored. A workdir or step of one may be in a bucket; `WORKDIR@best` is its best
    step. Raises UsageError if `path` is none of them or its tensors do not fit its config,
    NoUsableCheckpoint if it holds nothing to read.
    """
    mesh = sharding.make_mesh(fsdp=-1, tensor=1) if mesh is None else mesh
    directory, step = run_of(path)
    if location.is_address(path):
        if not (directory / CONFIG).is_file():
            raise UsageError(f"`checkpoint` {path}: there is no workdir or step of one")
        return _load_step(directory, step, mesh)
    path = _existing(directory)
    _require_no_corpus(path)
    if step is not None or _is_workdir(path):
        return _load_step(path, step, mesh)
    foreign, tokenizer = read_imported(
        path, allow_missing_heads=allow_missing_heads, ignore_unexpected=ignore_unexpected
    )
    step, config = recorded(tokenizer, foreign)
    return LoadedCheckpoint(
        path,
        step or foreign.step,
        config or imported_config(foreign),
        _placed(foreign.params, mesh),
        tokenizer,
        foreign.missing,
        is_run=config is not None,
    )


def run_of(path: str | Path) -> tuple[Path, int | None]:
    """Returns the directory of the run that a workdir, a step of one or `WORKDIR@best` is of, and
    the step; a path that names no step is returned as it is, with None: it may be of no run.

    Of a run in a bucket, the directory is one that stands for it.
    """
    path = best_of(path)
    if location.is_address(path):
        workdir, _, step = str(path).rstrip("/").rpartition(f"/{checkpoint.DIRECTORY}/")
    else:
        path = Path(path)
        is_inside = path.parent.name == checkpoint.DIRECTORY
        workdir, step = path.parent.parent, path.name if is_inside else ""
    # A folder of that name may hold workdirs, too.
    is_step = bool(workdir) and step.isdecimal()
    return location.opened(workdir if is_step else path).path, int(step) if is_step else None


def best_of(path: str | Path) -> str | Path:
    """Returns the step that `WORKDIR@best` stands for; another path as it is.

    Raises UsageError for a run that has named no step as its best.
    """
    workdir = str(path).removesuffix(_BEST)
    if workdir == str(path) or Path(path).exists():
        return path
    directory = location.opened(workdir).path
    step = log_reader.best_step(directory, checkpoint.steps(directory))
    if step is None:
        raise UsageError(
            f"`checkpoint` {path}: there is no best step; the hook best_checkpoint keeps one"
        )
    return location.at(workdir).inside(checkpoint.DIRECTORY, str(step))


def _is_workdir(directory: Path) -> bool:
    # What stands for a bucket's has no checkpoints.
    return any((directory / name).is_dir() for name in (checkpoint.DIRECTORY, TOKENIZER))


def _existing(path: str | Path) -> Path:
    """Returns where a checkpoint lies: a name of the hub may be in its cache."""
    found = hub.located(path)
    if found.is_dir() or tf1.is_checkpoint(found):
        return found
    if advice := hub.pickle_advice(found) * found.is_file():
        raise UsageError(f"`checkpoint` {advice}")
    raise UsageError(f"`checkpoint` {path}: no such directory{hub.advice(path)}")


def _require_no_corpus(directory: Path) -> None:
    if (directory / MANIFEST).is_file():
        raise UsageError(
            f"`checkpoint` {directory} is a corpus: name a model that was trained on one"
        )


def read_imported(
    path: Path,
    *,
    allow_missing_heads: bool = False,
    ignore_unexpected: Sequence[str] = (),
    format: str = "auto",
) -> tuple[ImportedModel, Path]:
    """Returns a model of another system, and the directory of its tokenizer. Errors:
    `load_checkpoint`.

    A directory may hold both formats: "auto" takes Hugging Face's, "tf1" the other one.
    """
    read = {
        "allow_missing_heads": allow_missing_heads,
        "ignore_unexpected": ignore_unexpected,
    }
    path = _existing(path)
    _require_no_corpus(path)
    if (path / checkpoint.DIRECTORY).is_dir() or run_of(path)[1] is not None:
        raise UsageError(f"`checkpoint` {path} is of bert-jax itself: other verbs read it as it is")
    directory = sentence_transformers.encoder_directory(path)
    if huggingface.is_directory(directory) and format != "tf1":
        foreign = huggingface.read(directory, **read)
    elif tf1.is_checkpoint(path):
        foreign, directory = tf1.read(path, **read), tf1.directory_of(path)
    else:
        raise UsageError(
            f"`checkpoint` {path} is neither a workdir (checkpoints/, config.json), a step of one, "
            "a Hugging Face directory (config.json, model.safetensors) nor a TF1 one "
            f"(bert_config.json, bert_model.ckpt.index){nearby(path)}"
        )
    _require_own_tokenizer(directory, foreign.model)
    return foreign, directory


def _require_own_tokenizer(path: Path, model: ModelConfig) -> None:
    """Raises UsageError if the tokenizer cannot be the model's: an id lies beyond the embedding,
    where jax would silently read another row, or padding has another id.
    """
    from bert_jax.data.tokenizer.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(path)
    ids, pad = tokenizer.vocab_size, huggingface.declared_pad(path)
    if pad not in (None, tokenizer.special.pad):
        raise UsageError(
            f"`checkpoint` {path}: pad_token_id is {pad} in {huggingface.CONFIG}, but "
            f"{tokenizer.special.pad} in its tokenizer ({tokenizer_files.find(path).name}); put "
            "the right tokenizer beside it"
        )
    if ids > model.vocab_size:
        raise UsageError(
            f"`checkpoint` {path}: its tokenizer has {ids} ids, but its model has embeddings for "
            f"{model.vocab_size} (vocab_size in config.json); put the right tokenizer beside it"
        )


def _load_step(directory: Path, step: int | None, mesh: Mesh) -> LoadedCheckpoint:
    if step is not None:
        recovery.require_good(directory, step)
    else:
        step = recovery.newest_good_step(directory)
    if step is None:
        name = location.at(directory).name
        raise NoUsableCheckpoint(f"workdir {name} has no finished checkpoint yet")
    config = config_loader.load_config_json(directory / CONFIG)
    require_registered(config)
    _require_trained_tokenizer(directory)
    with jax.set_mesh(mesh):
        params = checkpoint.load_part(directory, "params", step=step, config=config, mesh=mesh)
    return LoadedCheckpoint(directory, step, config.at_step(step), params, directory / TOKENIZER)


def _require_trained_tokenizer(directory: Path) -> None:
    """Raises UsageError if a workdir's tokenizer is not the one that its run was trained with."""
    from bert_jax.data.tokenizer.tokenizer import load_tokenizer

    trained = (stored(directory).get("corpus") or {}).get("tokenizer_hash")
    if trained is None or not (directory / TOKENIZER).is_dir():
        return
    found = load_tokenizer(directory / TOKENIZER).hash
    if found != trained:
        name = location.at(directory).name
        raise UsageError(
            f"workdir {name}: {CONFIG} says that it was trained with tokenizer {trained[:12]}, but "
            f"{TOKENIZER}/ holds {found[:12]}; put the right one back"
        )


def _placed(params: bert.Params, mesh: Mesh) -> bert.Params:
    return jax.device_put(params, sharding.param_shardings(params, mesh=mesh, shard_weights=True))


def write_record(directory: Path, loaded: LoadedCheckpoint) -> None:
    """Writes what an export keeps of the run of its parameters, so that it is scored as that is.

    Nothing where the run is not known, or the model cannot be scored: it lacks a head.
    """
    name = loaded.config.objective
    if not loaded.is_run or name not in OBJECTIVES:
        return
    if not {*OBJECTIVES[name].parts} <= {*loaded.config.head.parts}:
        return
    kept = configs.to_dict(dataclasses.replace(loaded.config, phases=loaded.config.scored_phases))
    record = {"step": loaded.step, "config": {name: kept[name] for name in SCORED_BY}}
    write_json(directory / RECORD, record)


def recorded(directory: Path, foreign: ImportedModel) -> tuple[int, TrainConfig | None]:
    """Returns the step and the config that an export kept, 0 and None where it has none that is
    understood: it may be of another version, or name what a file of the user's registers.
    """
    if not (directory / RECORD).is_file():
        return 0, None
    try:
        step, sections = _record(directory)
        values = configs.to_dict(imported_config(foreign)) | sections
        return step, validate(configs.from_dict(values))
    except UsageError as error:
        note_once(f"{directory / RECORD} is ignored: {error}")
        return 0, None


def _record(directory: Path) -> tuple[int, dict[str, Any]]:
    path = directory / RECORD
    record = name_map.read_json(path, hint="remove it, or export the run again")
    step, sections = record.get("step"), record.get("config")
    if type(step) is not int or step < 0 or not isinstance(sections, dict):
        raise UsageError(f"{path} has no step, or no config")
    return step, {name: sections[name] for name in SCORED_BY if name in sections}


def scoring_of(path: str | Path) -> TrainConfig:
    """Returns the config of a run, a workdir or an export of one, of which SCORED_BY counts.

    Raises UsageError if `path` is neither.
    """
    directory, _ = run_of(path)
    if (directory / RECORD).is_file():
        return configs.from_dict(_record(directory)[1])
    if _is_workdir(directory) and (directory / CONFIG).is_file():
        return config_loader.load_config_json(directory / CONFIG)
    raise UsageError(f"{path} is neither a workdir nor an export of one")


def first_run(paths: Sequence[Path | str]) -> Path | str | None:
    """Returns the first of some checkpoints whose run is known, as `scoring_of` takes it."""
    for path in paths:
        with contextlib.suppress(UsageError):
            scoring_of(path)
            return path
    return None


def imported_config(foreign: ImportedModel) -> TrainConfig:
    """Returns a config around a model that came without one: its longest phase is what it can
    take.
    """
    length = min(foreign.model.max_position_embeddings, 128)
    phase = configs.PhaseConfig(
        sequence_length=length, max_predictions=max(1, round(0.15 * length)), steps=1
    )
    objective, data = _objective_of(foreign.head), configs.DataConfig()
    if foreign.model.type_vocab_size < 2:  # RoBERTa's have no pairs to learn from
        objective = "mlm" if objective == TrainConfig.objective else objective
        data = configs.DataConfig(rows="full_sentences")
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


def _objective_of(head: configs.HeadConfig) -> str:
    """Returns the objective that has most of its parts in a head, all of them there."""
    fitting = {
        name: len(OBJECTIVES[name].parts)
        for name in OBJECTIVES.names()
        if set(OBJECTIVES[name].parts) <= set(head.parts)
    }
    return max(fitting, key=lambda name: fitting[name]) if fitting else TrainConfig.objective


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
) -> tuple[bert.Params, tuple[str, ...]]:
    """Returns the source's parameters with the parts of `config.head`, and the names of the fresh
    ones.

    Parts that `config` does not have are left behind. Raises UsageError if the source lacks one,
    unless `allow_missing_heads` lets it begin fresh, from the seed.
    """
    wanted = config.head.parts
    fresh = tuple(part for part in wanted if part not in source.params)
    if not allow_missing_heads:
        remedy = "`allow_missing_heads` begins with fresh ones"
        require_parts(source, *wanted, remedy=remedy)
    params = {part: source.params[part] for part in ("encoder", *wanted) if part not in fresh}
    if fresh:
        initial = bert.init_params(config.model, config.head, seed=config.seed)
        params |= {part: initial[part] for part in fresh}
    return params, fresh


def require_same_tokenizer(source: LoadedCheckpoint, corpus: Corpus) -> None:
    """Raises UsageError if an id would be one token to the model and another in the corpus."""
    from bert_jax.data.tokenizer.tokenizer import load_tokenizer

    theirs = load_tokenizer(source.tokenizer)
    if theirs.hash != corpus.tokenizer_hash:
        given = corpus.manifest["sources"]
        sources = " ".join(f"`source` {shlex.quote(name)}" for name in given[:3])
        sources += " ..." if len(given) > 3 else ""
        raise UsageError(
            f"corpus {corpus.directory} was built with another tokenizer ({corpus.vocab_size} ids, "
            f"{corpus.tokenizer_hash[:12]}) than checkpoint {source.directory} "
            f"({theirs.vocab_size} ids, {theirs.hash[:12]}); prepare the corpus again with "
            f"`tokenizer` {source.tokenizer}: bert-jax prepare {sources} "
            f"`tokenizer` {shlex.quote(str(source.tokenizer))} `output` NEW"
        )
