"""One fine-tuning run: the head, rows and scores of a task for the loop in training/run.py.

Loop, step, checkpoints and logs are shared with pre-training. A run is a function of config,
settings, rows and initial parameters.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bert_jax.config import TrainConfig
from bert_jax.config.conversion import flat_values
from bert_jax.config.resume import Change, differences
from bert_jax.config.source_shares import shares
from bert_jax.data.tasks.encode_rows import Batches, Features, rows_of_steps
from bert_jax.data.tasks.packing import PackedBatches
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.errors import NonFinite, UsageError
from bert_jax.files import write_json
from bert_jax.inference.forward import Forward
from bert_jax.memory import fit as fitting
from bert_jax.memory.fit import Demand
from bert_jax.model import bert
from bert_jax.model.heads.transform import from_masked_lm
from bert_jax.model.sharding import row_shards
from bert_jax.objectives.contrastive import task_objective
from bert_jax.pretrained import load
from bert_jax.pretrained.load import LoadedCheckpoint
from bert_jax.progress import note
from bert_jax.runtime import distributed
from bert_jax.tasks.task_data import TaskData
from bert_jax.training import device_feed, preflight
from bert_jax.training.hooks import named_hooks
from bert_jax.training.initialization import facts_of
from bert_jax.training.job import Scores, TrainingJob
from bert_jax.training.run import RunSetup
from bert_jax.training.run import train as train_job
from bert_jax.update.layer_rates import layer_rates
from bert_jax.update.state import TrainState
from bert_jax.update.step import lower_train_step
from bert_jax.workdir import checkpoint, location, log_reader, run_directory
from bert_jax.workdir.location import Guard, Location
from bert_jax.workdir.run_directory import is_same_place

# The fields of `Settings` that are not in the config; config.json of a run stores them as `recipe`.
RECIPE = ("epochs", "layer_decay", "freeze_layers")
# A run of fewer updates has hardly learned, which another seed would not change.
_FEWEST_UPDATES = 10
# Number of batches that are searched for the largest one: batches have at most eight sizes.
_BATCHES_LOOKED_AT = 16


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of fine-tuning, and the number of runs."""

    # The most tokens per row; None: the task's default, or the model's limit if it is smaller.
    length: int | None = None
    batch_size: int = 32
    learning_rate: float = 5e-5
    epochs: float = 3.0
    # The factor of the learning rate from each layer to the layer below it.
    layer_decay: float = 1.0
    # With 1 or more, the embeddings and that many layers are frozen.
    freeze_layers: int = 0
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
        for name, least in (("seeds", 1), ("batch_size", 1), ("restarts", 0), ("freeze_layers", 0)):
            if (value := getattr(self, name)) < least:
                raise UsageError(f"`{name}` {value}: must be at least {least}")
        if not (self.epochs > 0 and math.isfinite(self.epochs)):
            raise UsageError(f"`epochs` {self.epochs}: must be positive")
        if not 0 < self.layer_decay <= 1:
            raise UsageError(f"`layer_decay` {self.layer_decay}: must be above 0 and at most 1")


def train(
    config: TrainConfig,
    settings: Settings,
    data: TaskData,
    source: LoadedCheckpoint,
    path: Path | str,
    *,
    mesh: Mesh,
    guard: Guard | None = None,
) -> dict[str, Any]:
    """Starts, resumes or reports the run in `path`; returns the content of its `result.json`.

    The encoder of `source` is used, and its pooler if the head has one; the head is initialized
    from the seed. `path` may be in a bucket. `guard` holds the lock of the workdir
    (workdir/lock.py). A run with non-finite updates or outputs ends as diverged, without scores.

    Raises ResumeRefused if `path` holds another run, Preempted after SIGTERM, with the state saved.
    """
    started = time.monotonic()
    preflight.require_on_mesh(config, mesh)
    place = location.opened(path, guard=guard)
    directory = place.path
    choose = settings.fit_memory
    settled = fitting.settle(
        config, _demand(settings, data, mesh), mesh=mesh, directory=directory, choose=choose
    )
    config, allowed = settled.config, settled.allowed
    setup = _setup(place, config, _facts(settings, data, source), source, allowed=allowed)
    ended = run_directory.result_of(directory)
    # A run that was rolled back is not at its end, so its scores no longer apply.
    if ended and ended["steps"] <= max(checkpoint.steps(directory), default=ended["steps"]):
        return ended
    job = FineTuning(config, settings, data, mesh, source=source)
    found: dict[str, Any] = {
        "task": data.task.spec.name,
        "seed": config.seed,
        "epochs": settings.epochs,
        "batch_size": config.phases[0].global_batch_size,
        "learning_rate": config.optimizer.learning_rate,
    }
    try:
        closing = train_job(job, setup, named_hooks(config), started=started)
    except NonFinite as error:
        steps = max(checkpoint.steps(directory), default=0)
        found |= {"steps": steps, "scores": {}, "diverged": True, "reason": str(error)}
    else:
        scores = {
            split: {name: values[name] for name in values if name not in ("step", "split")}
            for split, values in closing.scores.items()
            if split in data.dev
        }
        found |= {
            "steps": closing.step,
            "scores": scores,
            "train_loss": closing.row.get("loss"),
            "examples_per_second": closing.row.get("examples_per_second", 0.0),
            "diverged": closing.step >= _FEWEST_UPDATES and _has_diverged(data, scores),
            "reason": "it predicts no better than one answer for all rows",
        }
    if distributed.is_main():
        write_json(directory / run_directory.RESULT, found)
        place.sync()
    return found


class FineTuning(TrainingJob):
    """The `TrainingJob` of fine-tuning: the labeled rows of a task, and its scores."""

    def __init__(
        self,
        config: TrainConfig,
        settings: Settings,
        data: TaskData,
        mesh: Mesh,
        *,
        source: LoadedCheckpoint,
    ):
        self.config, self.data, self.mesh, self._source = config, data, mesh, source
        self._task_objective = self.objective = task_objective(config.head)
        self.rates, self.tokenizer = _rates(config, settings), source.tokenizer
        self.title = f"{config.name}, seed {config.seed}"
        self._rows = len(data.train.features)
        self._batches = training_batches(data.train.features, config, mesh)
        self.introduction = (
            f"{self._rows:,} rows, batches of {config.phases[0].global_batch_size}, "
            f"learning rate {config.optimizer.learning_rate:g}"
        )

    def initial_state(self) -> TrainState:
        state, sharded = _beginning(self.config, self._source), self.config.mesh.shard_weights
        return state.to_mesh(self.mesh, shard_weights=sharded)

    def batches(self, phase: int, start: int, stop: int) -> Iterator[dict[str, jax.Array]]:
        rows = _rows_of_steps(self.data, self.config)
        for step in range(start, stop):
            yield device_feed.whole_to_global(self._batches(rows(step)), mesh=self.mesh)

    def evaluation(self, phase: int, params: Any) -> "TaskEvaluation":
        return TaskEvaluation(self.config, self.data, output=self._task_objective.output)

    def speed(self, phase: int, seconds: float) -> dict[str, float]:
        size = self.config.phases[phase].global_batch_size
        return {"examples_per_second": size / seconds}

    def figures(self) -> Sequence[str]:
        return self.data.task.figures()

    def describe(self, scores: Scores) -> str:
        kind = {"kind": self.data.task.spec.kind}
        return ", ".join(
            f"{split} {metric} {value:.4f}{log_reader.unit_of(kind, metric)}"
            for split, found in scores.items()
            for metric, value in found.items()
        )

    def facts(self) -> dict[str, str]:
        return {"data": self.data.fingerprint, **facts_of(self._source)}


class TaskEvaluation:
    """The task's metrics on every held-out split."""

    # Each batch length is compiled when it first occurs.
    compiles_on_the_way = True

    def __init__(self, config: TrainConfig, data: TaskData, *, output: str):
        self.columns: dict[str, Any] = {}
        self._data = data
        self._forward = Forward(config, output, batch_size=config.evaluation.batch_size)

    def prepare(self) -> None:
        """Does nothing: `run` compiles."""

    def run(self, params: Any, *, cut_short: Callable[[], bool] = lambda: False) -> Scores | None:
        scores = {}
        for name, split in self._data.dev.items():
            outputs = self._forward(params, split.features, cut_short=cut_short)
            if outputs is None:
                return None
            scores[name] = self._data.task.score(split, outputs)
        self.compiles_on_the_way = False
        return scores


def training_batches(
    features: Features, config: TrainConfig, mesh: Mesh
) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    """Returns a function that maps example numbers to their batch.

    Examples are packed if each example or each token has a label. Spans are not: their loss is over
    the tokens of a row.
    """
    size = config.phases[0].global_batch_size
    assert features.labels is not None and features.weights is not None
    if features.text_lengths is None and features.labels.ndim > features.weights.ndim:
        return Batches(features, size=size)
    multiple = row_shards(mesh) * config.optimizer.gradient_accumulation_steps
    return PackedBatches(features, size=size, multiple=multiple)


def _rows_of_steps(data: TaskData, config: TrainConfig) -> Callable[[int], np.ndarray]:
    return rows_of_steps(
        data.row_sources,
        shares=functools.partial(shares, config.data),
        batch_size=config.phases[0].global_batch_size,
        seed=config.seed,
    )


def _rates(config: TrainConfig, settings: Settings) -> Any:
    """Returns the factor of the learning rate for each parameter."""
    return layer_rates(
        bert.abstract_params(config.model, config.head),
        decay=settings.layer_decay,
        frozen_layers=settings.freeze_layers,
    )


def _facts(settings: Settings, data: TaskData, source: LoadedCheckpoint) -> dict[str, Any]:
    """Returns the facts that define a run besides its config."""
    splits = {"train": data.train, **data.dev}
    return {
        "task": dataclasses.asdict(data.task.spec),
        "recipe": {name: getattr(settings, name) for name in RECIPE},
        "data": data.fingerprint,
        "init_from": location.at(source.directory).name,
        "init_step": source.step,
        "rows": {name: len(split.rows) for name, split in splits.items()},
        "sources": list(data.sources),
    }


def _demand(settings: Settings, data: TaskData, mesh: Mesh) -> Demand:
    """Returns the programs of a run for the largest of the batches that are searched."""

    def training(config: TrainConfig, phase: int) -> Any:
        batches = training_batches(data.train.features, config, mesh)
        steps = range(min(config.total_steps, _BATCHES_LOOKED_AT))
        rows = map(_rows_of_steps(data, config), steps)
        largest = max(map(batches, rows), key=lambda batch: batch["input_ids"].size)
        return lower_train_step(
            config,
            TrainState.abstract(config, mesh),
            device_feed.whole_to_global(largest, mesh=mesh),
            objective=task_objective(config.head),
            rates=_rates(config, settings),
        )

    def evaluation(config: TrainConfig, phase: int) -> Any:
        # The number of rows is a multiple of the devices, as in `Forward`.
        rows = math.ceil(config.evaluation.batch_size / mesh.size) * mesh.size
        shape = (rows, config.phases[phase].sequence_length)
        objective = task_objective(config.head)
        names = ("input_ids", "token_type_ids", "position_ids", "sequence_ids")
        batch = {name: np.zeros(shape, np.int32) for name in names}
        return Forward(config, objective.output, batch_size=rows).lowered(
            TrainState.abstract(config, mesh).params, batch
        )

    return Demand(training=training, evaluation=evaluation)


def _setup(
    place: Location,
    config: TrainConfig,
    facts: dict[str, Any],
    source: LoadedCheckpoint,
    *,
    allowed: Sequence[str],
) -> RunSetup:
    directory = place.path

    def write() -> None:
        run_directory.write_config(directory, config, **facts)

    def create() -> None:
        run_directory.claim(directory)
        load_tokenizer(source.tokenizer).save(directory / run_directory.TOKENIZER)
        write()

    is_held, changes = run_directory.holds(
        directory,
        config,
        lambda stored: _changes(stored, facts),
        allowed=allowed,
        has_allow_change=False,
    )
    return RunSetup(
        location=place,
        is_held=is_held,
        changes=changes,
        create=create,
        change=write,
    )


def _changes(stored: dict[str, Any], facts: dict[str, Any]) -> list[Change]:
    """Returns the differences between the run of a config.json and `facts`."""
    old: dict[str, Any] = {name: stored.get(name) for name in facts}
    if is_same_place(str(old["init_from"]), facts["init_from"]):
        old["init_from"] = facts["init_from"]
    return differences(*(dict(flat_values({**values, "sources": None})) for values in (old, facts)))


def _beginning(config: TrainConfig, source: LoadedCheckpoint) -> TrainState:
    kept = {part: source.params[part] for part in ("encoder", "pooler") if part in source.params}
    begun = None
    if config.head.transform and not source.config.head.transform:
        kept.pop("pooler", None)  # of another kind
        if "mlm" in source.params:
            begun = kept["pooler"] = from_masked_lm(source.params["mlm"])
    if "pooler" in config.head.parts and "pooler" not in kept:
        note(f"{source.directory} has no pooler: it is initialized from the seed, like the head")
    encoder_only = dataclasses.replace(source, params=kept)
    params, _ = load.with_parts(encoder_only, config, allow_missing_heads=True)
    if begun is not None:
        params = {
            part: tree | {"transform": begun} if "transform" in tree else tree
            for part, tree in params.items()
        }
    # A copy, because the step donates its arguments, and the next run starts from the same source.
    return TrainState.create(config, jax.tree.map(jnp.copy, params))


def _has_diverged(data: TaskData, scores: dict[str, dict[str, float]]) -> bool:
    """Returns whether the model is no better than one with the same answer for every row.

    These are the "failed runs" of Mosbach et al. 2021, section 3. WNLI's development rows
    contradict its training rows, so that scores below chance are usual there.
    """
    if data.task.spec.name == "wnli":
        return False
    main = data.task.spec.metrics[0]
    return all(
        found[main] <= data.task.majority_baseline(data.dev[name].rows)
        for name, found in scores.items()
    )
