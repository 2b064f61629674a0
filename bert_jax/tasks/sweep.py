"""All runs of one `bert-jax finetune`: one run, or one per seed."""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from bert_jax import config_loader
from bert_jax.config import (
    CheckpointConfig,
    EvaluationConfig,
    ModelConfig,
    OptimizerConfig,
    PhaseConfig,
    TrainConfig,
    flatten,
)
from bert_jax.config.model import TRAINING_FIELDS
from bert_jax.config.resume import differences, is_within
from bert_jax.config_checks import validate
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.errors import NonFinite, UsageError
from bert_jax.interchange import huggingface
from bert_jax.pretrained.load import LoadedCheckpoint, load_checkpoint
from bert_jax.progress import note
from bert_jax.registry import TASKS
from bert_jax.runtime import distributed
from bert_jax.tasks import results
from bert_jax.tasks.finetune import ATTEMPT, DIVERGED, Recipe, train
from bert_jax.tasks.task import NamedTask, TaskSpec
from bert_jax.tasks.task_data import Sources, TaskData, load_task
from bert_jax.training import preflight
from bert_jax.workdir import location, run_directory
from bert_jax.workdir.location import Guard, Location
from bert_jax.workdir.lock import only_trainer

# Of the steps, as google-research/bert run_classifier.py and run_squad.py have it.
WARMUP = 0.1
# Tokens of a row: validate() asks for as many.
_SHORTEST = 8
# What a restart adds to a seed: away from the seeds of other runs.
_NEXT_SEED = 1000
# In fewer updates than these Adam moves no parameter by more than as many learning rates, and the
# warm-up has no whole one: a run that has learned nothing has not begun to, whatever its seed.
_FEWEST_UPDATES = 10


_PRETRAINING = "only pre-training has this option; leave it out"
_TASK = "the task decides it; leave it out"
# What `overrides` cannot change, and what to do instead. Sections stand for all of their options.
_NOT_HERE = {
    "name": _TASK,
    "seed": "use `seed` and `seeds`",
    "objective": _PRETRAINING,
    "model": "the checkpoint decides the model, except for dropout, initializer_range and "
    "classifier_pooling",
    "head": _TASK,
    "data": _PRETRAINING,
    "phases": "use `length`, `batch_size` and `epochs`",
    "evaluation.num_examples": _PRETRAINING,
    "optimizer.learning_rate": "use `learning_rate`",
    "optimizer.frozen_layers": "use `freeze_layers`",
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings that all runs share, and how many runs there are."""

    length: int
    batch_size: int = 32
    learning_rate: float = 5e-5
    recipe: Recipe = field(default_factory=Recipe)
    seed: int = 0
    seeds: int = 1
    # Attempts with another seed after a run has diverged.
    restarts: int = 2
    # Whether each run chooses its number of microbatches (memory/fit.py).
    fit_memory: bool = False
    # Fields of the config as FIELD=VALUE, applied after everything else.
    overrides: tuple[str, ...] = ()
    # Names of extra tensors that the checkpoint may have.
    ignore_unexpected: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("seeds", "batch_size"):
            if (value := getattr(self, name)) < 1:
                raise UsageError(f"`{name}` {value}: it must be at least 1")
        if self.restarts < 0:
            raise UsageError(f"`restarts` {self.restarts}: it must be 0 or more")


def finetune(
    checkpoint: Path | str,
    workdir: Path | str,
    spec: TaskSpec | NamedTask | str,
    sources: Sources,
    settings: Settings,
) -> dict[str, Any]:
    """Makes or goes on with all runs of `settings` in `workdir`; returns their summary.

    One run lies in `workdir` itself, several in `workdir/runs/NAME`; beside them are `results.json`
    and `results.md`. `checkpoint` is anything with an encoder; of a task's own workdir, too, the
    encoder is kept and the head left behind. `spec` may be an entry of TASKS, or its name. Nothing
    is written before all rows have been read and checked.
    """
    named = TASKS[spec] if isinstance(spec, str) else spec
    task = named.spec if isinstance(named, NamedTask) else named
    mesh = preflight.mesh_of(config_loader.override(TrainConfig(), list(settings.overrides)))
    with only_trainer(workdir, mesh=mesh) as guard, jax.set_mesh(mesh):
        source = load_checkpoint(
            checkpoint,
            mesh=mesh,
            allow_missing_heads=True,
            ignore_unexpected=settings.ignore_unexpected,
        )
        tokenizer = load_tokenizer(source.tokenizer)
        if tokenizer.vocab_size > source.config.model.vocab_size:
            raise UsageError(
                f"checkpoint {source.directory}: its tokenizer has {tokenizer.vocab_size} ids, its "
                f"model embeddings for {source.config.model.vocab_size}; put the right tokenizer "
                "beside it"
            )
        _require_fitting(settings, source)
        data = load_task(task, sources, tokenizer, length=settings.length)
        runs = [SweepRun(_config(source, data, each), each) for each in _expand(settings)]
        place = location.at(workdir)
        _require_room_for(len(runs), place, mesh=mesh)
        found = []
        for run in runs:  # runs that have ended only report their results
            path = workdir if len(runs) == 1 else place.inside("runs", run.name)
            found.append(_with_restarts(run, data, source, path, mesh=mesh, guard=guard))
            if len(runs) > 1:
                note(f"run {len(found)} of {len(runs)} is done")
        summary = results.summarise(data.task.spec, found)
        if distributed.is_main():
            place.write_text("results.json", json.dumps(summary, indent=2) + "\n")
            place.write_text("results.md", results.markdown(summary))
    return summary


def _require_fitting(settings: Settings, source: LoadedCheckpoint) -> None:
    length, frozen = settings.length, settings.recipe.freeze_layers
    layers = source.config.model.num_hidden_layers
    if frozen > layers:
        raise UsageError(f"`freeze_layers` {frozen}: the model has {layers} layers")
    most = source.config.model.max_position_embeddings
    if not _SHORTEST <= length <= most:
        raise UsageError(
            f"`length` {length}: checkpoint {source.directory} takes {_SHORTEST} to {most} tokens "
            f"a row; use `length` {most} or less"
        )


def _require_room_for(runs: int, place: Location, *, mesh: Mesh) -> None:
    """Raises UsageError where several runs would write their results over those of a single one."""
    if runs > 1 and distributed.broadcast_from_main(
        lambda: int(run_directory.CONFIG in place.names())
    ):
        raise UsageError(
            f"`workdir` {place.name} holds a single run, and these are {runs}; choose another one"
        )


def _expand(settings: Settings) -> Iterator[Settings]:
    """Yields one `Settings` with a single seed for each run."""
    for seed in range(settings.seed, settings.seed + settings.seeds):
        yield dataclasses.replace(settings, seed=seed, seeds=1)


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep, whose `settings` have a single seed."""

    config: TrainConfig
    settings: Settings

    @property
    def name(self) -> str:
        """Returns the name of its workdir."""
        own = self.settings
        return (
            f"batch-{own.batch_size}_rate-{own.learning_rate:g}_epochs-{own.recipe.epochs:g}"
            f"_seed-{own.seed}"
        )


def _config(source: LoadedCheckpoint, data: TaskData, run: Settings) -> TrainConfig:
    rows = len(data.train.encoded.features)
    steps = max(1, int(rows * run.recipe.epochs / run.batch_size))
    an_epoch = max(1, rows // run.batch_size)
    config = TrainConfig(
        name=data.task.spec.name,
        seed=run.seed,
        # A generator stays behind.
        model=source.config.model.with_generator_of(ModelConfig()),
        head=huggingface.with_classifier(source.config.model, source.config.head, data.task.head()),
        compute=source.config.compute,
        optimizer=OptimizerConfig(
            learning_rate=run.learning_rate, warmup_steps=int(WARMUP * steps)
        ),
        phases=(
            PhaseConfig(
                sequence_length=run.length,
                steps=steps,
                global_batch_size=run.batch_size,
                max_predictions=1,
            ),
        ),
        evaluation=EvaluationConfig(every_steps=an_epoch, batch_size=64),
        checkpoint=CheckpointConfig(every_steps=an_epoch, keep_last=1),
        log_every_steps=max(1, steps // 200),
    )
    changed = config_loader.override(config, list(run.overrides))
    # Also of a list that has become shorter.
    for path, _, _ in differences(flatten(config), flatten(changed)):
        for section, reason in _NOT_HERE.items():
            is_free = is_within(path, [f"model.{name}" for name in TRAINING_FIELDS])
            if is_within(path, [section]) and not is_free:
                raise UsageError(f"override {path}: {reason}")
    return validate(changed)


def _with_restarts(
    run: SweepRun,
    data: TaskData,
    source: LoadedCheckpoint,
    workdir: Path | str,
    *,
    mesh: Mesh,
    guard: Guard,
) -> dict[str, Any]:
    """Returns the result of the run, or of the first attempt that has learned something.

    An attempt that diverged lies in `workdir/diverged-N`. The last one that is allowed counts
    whatever comes of it; where its loss is no number, the result has no scores.
    """
    config, settings = run.config, run.settings
    attempt, is_begun = _look(workdir, mesh=mesh)
    while attempt <= settings.restarts or is_begun:
        seed = config.seed + _NEXT_SEED * attempt
        is_last = attempt >= settings.restarts
        try:
            result = train(
                dataclasses.replace(config, seed=seed),
                settings.recipe,
                data,
                source,
                workdir,
                mesh=mesh,
                fit_memory=settings.fit_memory,
                guard=guard,
                attempt=attempt,
            )
            why = "is no better than one answer for all"
        except NonFinite as error:
            result, why = None, str(error)
        attempt += 1
        steps = config.total_steps
        is_short = steps < _FEWEST_UPDATES
        if result is not None and (is_last or is_short or not result["diverged"]):
            if result["diverged"] and is_short:
                note(
                    f"{config.name}: seed {seed} {why}, after {steps} update{'s' * (steps > 1)}: "
                    "too few to learn from, whatever the seed; more `epochs` or a smaller "
                    "`batch_size` make more of them"
                )
            elif result["diverged"]:
                note(f"{config.name}: seed {seed} diverged ({why}); it was the last attempt")
            return result | {"attempts": attempt, "directory": str(workdir)}
        if distributed.is_main():
            _set_aside(workdir, attempt)
        distributed.barrier()
        is_begun = False
        then = "it was the last attempt" if is_last else f"again with {seed + _NEXT_SEED}"
        note(f"{config.name}: seed {seed} diverged ({why}); {then}")
    return {
        "task": config.name,
        "seed": config.seed,
        "epochs": settings.recipe.epochs,
        "batch_size": settings.batch_size,
        "learning_rate": settings.learning_rate,
        "scores": {},
        "diverged": True,
        "attempts": attempt,
        "directory": str(workdir),
    }


def _look(workdir: Path | str, *, mesh: Mesh) -> tuple[int, bool]:
    """Returns how many attempts are set aside, and whether another attempt has begun.

    Completes the move of an attempt that a process did not finish.
    """

    def look() -> int:
        place = location.at(workdir)
        names = place.names()
        ended = [name.removeprefix(DIVERGED) for name in names if name.startswith(DIVERGED)]
        attempts = max((int(number) for number in ended if number.isdecimal()), default=0)
        is_begun = run_directory.CONFIG in names
        if is_begun:
            # The user may have removed earlier attempts, to free space.
            attempts = int(run_directory.stored_at(place).get(ATTEMPT, attempts))
        elif attempts and f"{run_directory.CONFIG}.new" not in names:  # of an interrupted start
            _set_aside(workdir, attempts)
        return 2 * attempts + is_begun

    # Process 0 looks, before any process writes.
    found = distributed.broadcast_from_main(look) or 0
    return found // 2, bool(found % 2)


def _set_aside(workdir: Path | str, attempt: int) -> None:
    """Moves the files of an attempt to `diverged-ATTEMPT`, config.json first: files without a
    config belong to the attempt that is being moved.
    """
    place, config = location.at(workdir), run_directory.CONFIG
    names = [n for n in place.names() if n not in (location.LOCK, location.OWNER)]
    names = [name for name in names if not name.startswith(DIVERGED)]
    target = place.root / f"{DIVERGED}{attempt}"
    with place.failures():
        for name in sorted(names, key=lambda name: (name != config, name)):
            place.move(place.root / name, target / name)
