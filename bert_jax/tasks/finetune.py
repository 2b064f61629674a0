"""Fine-tuning: the loop of one run, read from top to bottom.

The same mesh, state, optimiser, checkpoints and logs as pre-training; what differs is the head, the
rows and the score. A run is a function of (config, recipe, rows, the parameters it begins with): it
resumes from its newest checkpoint with one integer, and ends with the same bits.
"""

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bert_jax import config as configs
from bert_jax.config import TrainConfig
from bert_jax.data import tokenizer as tokenizers
from bert_jax.data.features import Batches, Features, training_rows
from bert_jax.data.packing import PackedBatches
from bert_jax.errors import NonFinite, Preempted, ResumeRefused, UsageError
from bert_jax.model.sharding import batch_sharding, row_shards
from bert_jax.progress import Progress, note
from bert_jax.tasks.forward import Forward
from bert_jax.tasks.load import TaskData
from bert_jax.training import checkpoint, distributed, metrics, recovery, require, workdir
from bert_jax.training.state import TrainState
from bert_jax.training.step import compile_lowered
from bert_jax.training.task_step import LOGITS, layer_rates, outputs_of, train_step
from bert_jax.training.watchdog import COMPILE_PATIENCE, Watchdog

RESULT = "result.json"
# What the directories of attempts that are set aside begin with.
DIVERGED = "diverged-"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What fine-tuning adds to a config. Stored in a run's `config.json`."""

    epochs: float = 3.0
    # Of the learning rate, from each layer to the one below it.
    layer_decay: float = 1.0
    # With 1 or more: the embeddings and that many layers stay as they are.
    freeze_layers: int = 0

    def __post_init__(self) -> None:
        if not (self.epochs > 0 and math.isfinite(self.epochs)):
            raise UsageError(f"--epochs {self.epochs}: it must be positive")
        if not 0 < self.layer_decay <= 1:
            raise UsageError(f"--layer-decay {self.layer_decay}: it lies above 0 and up to 1")
        if self.freeze_layers < 0:
            raise UsageError(f"--freeze-layers {self.freeze_layers}: it must be 0 or more")


def train(
    config: TrainConfig,
    recipe: Recipe,
    data: TaskData,
    source: workdir.LoadedCheckpoint,
    home: Path,
    *,
    mesh: Mesh,
) -> dict[str, Any]:
    """Runs, resumes or only reports the run of `home`; returns what its `result.json` says.

    Of `source` the encoder is used, and the pooler where the head has one; the head is fresh, from
    the seed. Raises NonFinite where the loss stops being a number, ResumeRefused if `home` holds
    another run, Preempted after SIGTERM, when the state is saved.
    """
    splits = {"train": data.train, **data.dev}
    facts = {
        "task": dataclasses.asdict(data.task.spec),
        "recipe": dataclasses.asdict(recipe),
        "data": data.fingerprint,
        "init_from": str(source.directory),
        "init_step": source.step,
        "rows": {name: len(split.rows) for name, split in splits.items()},
        "sources": list(data.sources),
    }
    entered = time.monotonic()
    require.divisible(config.phases[0], mesh, config)
    is_held = _holds_run(home, config, facts)
    if (home / RESULT).is_file():
        return json.loads((home / RESULT).read_text(encoding="utf-8"))

    with (
        distributed.Preemption() as preemption,
        Watchdog(config.deadline_seconds) as watchdog,
        contextlib.ExitStack() as closing,
    ):
        # 1. The state: the newest checkpoint, or a beginning.
        watchdog.at("restoring", patience=COMPILE_PATIENCE)
        last = recovery.prepare(home) if is_held else None
        if not is_held:
            workdir.claim(home)
            tokenizers.load(source.tokenizer).save(home / workdir.TOKENIZER)
            workdir.write_config(home, config, **facts)
        if last is None:
            state = _beginning(config, source).place(mesh, shard_weights=config.mesh.shard_weights)
        else:
            state = checkpoint.load(home, step=last, config=config, mesh=mesh)
        step = last or 0

        # 2. The logs, rewound to where the state stands.
        past_rows = metrics.set_aside_after(home, step)
        journal = metrics.Journal(home)
        closing.callback(journal.close)
        journal.open_tensorboard(past_rows)
        checkpoints = checkpoint.Checkpoints(
            home,
            config.checkpoint,
            facts={"versions": workdir.versions()},
            on_saved=lambda step, seconds: journal.event("save", step=step, seconds=seconds),
        )
        closing.callback(checkpoints.close)
        journal.event(
            "start",
            step=step,
            **workdir.hardware(),
            versions=workdir.versions(),
            seconds=time.monotonic() - entered,
        )
        if last is not None:
            journal.event("resume", step=step)
        batch_size = config.phases[0].global_batch_size
        rows = len(data.train.encoded.features)
        batches = training_batches(data.train.encoded.features, config, mesh)
        name = f"{config.name}, seed {config.seed}"
        note(
            f"{name}: {rows:,} rows, {config.total_steps:,} steps of {batch_size}, "
            f"learning rate {config.optimizer.learning_rate:g}"
            + ("" if last is None else f", resuming at step {step}")
        )

        # 3. The steps. One is dispatched before the metrics of the one before it are read.
        clock, whole = metrics.Clock(), metrics.Clock()
        compiled = _Compiled(config, recipe)
        # Each batch may be the first of its length, which is compiled.
        score = _Scorer(
            config, data, before_batch=lambda: watchdog.at("scoring", patience=COMPILE_PATIENCE)
        )
        layout = batch_sharding(mesh)

        @contextlib.contextmanager
        def apart(event: str | None = None) -> Iterator[None]:
            """Not part of a step's time; with its own event, if it is named."""
            began = time.monotonic()
            with clock.paused(), whole.paused():
                yield
            if event is not None:
                journal.event(event, step=step, seconds=time.monotonic() - began)

        pending: tuple[int, Any] | None = None
        values: dict[str, float] = {}
        scores: dict[str, dict[str, float]] = {}
        with Progress(name, total=config.total_steps, done=step) as bar:

            def finish(pending: tuple[int, Any]) -> dict[str, float]:
                done, on_device = pending
                values = {key: float(x) for key, x in jax.device_get(on_device).items()}
                if not all(map(math.isfinite, values.values())):
                    journal.event("stop", step=done, reason="non-finite", **values)
                    raise NonFinite(f"{home}, step {done}: loss {values['loss']} is not finite")
                clock.steps, whole.steps = clock.steps + 1, whole.steps + 1
                if done % config.log_every_steps == 0 or done == config.total_steps:
                    seconds, steps = clock.seconds_per_step(), clock.steps
                    clock.restart()
                    speed = {"step_seconds": seconds, "examples_per_second": batch_size / seconds}
                    journal.row(step=done, **values, **speed, steps=steps, time=time.time())
                bar.describe = lambda: f"step {done}  loss {values['loss']:.3f}"
                bar.advance()
                return values

            while step < config.total_steps:
                watchdog.at(f"step {step + 1}")
                chosen = training_rows(step, rows=rows, batch_size=batch_size, seed=config.seed)
                placed: Any = jax.device_put(batches(chosen), layout)  # type: ignore[arg-type]
                if not compiled.has(placed):
                    watchdog.at("compiling", patience=COMPILE_PATIENCE)
                    with apart("compile"):
                        compiled.add(state, placed)
                state, on_device = compiled(state, placed)
                if pending is not None:
                    values = finish(pending)
                step += 1
                pending = (step, on_device)
                preempted = preemption.requested() and step != config.total_steps
                at_end = step == config.total_steps
                save = at_end or preempted or step % config.checkpoint.every_steps == 0
                evaluate = at_end or (
                    config.evaluation.every_steps > 0 and step % config.evaluation.every_steps == 0
                )
                if not (save or evaluate):
                    continue
                values, pending = finish(pending), None
                if evaluate and not preempted:
                    with apart("evaluate"):
                        scores = score(state.params)
                    for split, found in scores.items():
                        journal.row(step=step, split=split, **found)
                    bar.print(f"{name}, step {step}: {_shown(scores)}")
                if save:
                    watchdog.at(f"saving step {step}")
                    with apart():
                        checkpoints.save(state, step=step)
                if preempted:
                    checkpoints.close()
                    journal.event("preempt", step=step)
                    journal.close()
                    raise Preempted(f"preempted; step {step} of {home} is saved")

        # 4. The end. A run that stopped between its last save and its result scores again.
        watchdog.at("waiting for a save")
        checkpoints.close()
        scores = scores or score(state.params)
        result = {
            "task": data.task.spec.name,
            "seed": config.seed,
            "steps": config.total_steps,
            "epochs": recipe.epochs,
            "batch_size": batch_size,
            "learning_rate": config.optimizer.learning_rate,
            "scores": scores,
            "train_loss": values.get("loss"),
            # None were seen where a run was stopped before its last scores.
            "examples_per_second": batch_size / whole.seconds_per_step() if whole.steps else 0.0,
            "diverged": _diverged(data, scores),
        }
        journal.event("stop", step=step, seconds=time.monotonic() - entered)
        journal.close()
        write_json(home / RESULT, result)
    return result


def training_batches(
    features: Features, config: TrainConfig, mesh: Mesh
) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    """What makes a batch of the numbers of its examples.

    Packed, but for spans, whose loss is over the tokens of a row.
    """
    size = config.phases[0].global_batch_size
    if LOGITS["span_classifier"] == outputs_of(config.head.parts):
        return Batches(features, size=size)
    multiple = row_shards(mesh) * config.optimizer.gradient_accumulation_steps
    return PackedBatches(features, size=size, multiple=multiple)


def write_json(path: Path, value: Any) -> None:
    """The file appears whole."""
    building = path.with_name(f"{path.name}.new")
    building.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    building.replace(path)


def _beginning(config: TrainConfig, source: workdir.LoadedCheckpoint) -> TrainState:
    kept = {part: source.params[part] for part in ("encoder", "pooler") if part in source.params}
    if "pooler" in config.head.parts and "pooler" not in kept:
        note(f"{source.directory} has no pooler: it begins at random, like the head")
    encoder_only = dataclasses.replace(source, params=kept)
    params, _ = workdir.with_parts(encoder_only, config, allow_missing_heads=True)
    # The step takes its arguments' memory over, and the next run begins with the same source.
    return TrainState.create(config, jax.tree.map(jnp.copy, params))


def _diverged(data: TaskData, scores: dict[str, dict[str, float]]) -> bool:
    """Whether the model knows no more of the held-out rows than one that always says the same.

    The "failed runs" of Mosbach et al. 2021, section 3. WNLI's development rows contradict its
    training rows: below chance is usual there.
    """
    if data.task.spec.name == "wnli":
        return False
    main = data.task.spec.metrics[0]
    return all(found[main] <= data.task.chance(data.dev[name].rows)
               for name, found in scores.items())  # fmt: skip


class _Compiled:
    """The step, compiled for each shape of a batch when it first comes."""

    def __init__(self, config: TrainConfig, recipe: Recipe):
        self._config, self._recipe = config, recipe
        self._steps: dict[tuple[int, ...], Any] = {}

    def has(self, batch: dict[str, jax.Array]) -> bool:
        return batch["input_ids"].shape in self._steps

    def add(self, state: TrainState, batch: dict[str, jax.Array]) -> None:
        """For batches of the shape of this one."""
        rates = layer_rates(
            state.params,
            decay=self._recipe.layer_decay,
            frozen_layers=self._recipe.freeze_layers,
        )

        def step(state, batch):
            return train_step(state, batch, config=self._config, rates=rates)

        lowered = jax.jit(step, donate_argnums=0).lower(state, batch)
        self._steps[batch["input_ids"].shape] = compile_lowered(lowered)

    def __call__(self, state: TrainState, batch: dict[str, jax.Array]) -> tuple[TrainState, Any]:
        return self._steps[batch["input_ids"].shape](state, batch)


class _Scorer:
    """The task's metrics on every held-out split."""

    def __init__(self, config: TrainConfig, data: TaskData, *, before_batch: Callable[[], None]):
        self._data = data
        self._forward = Forward(
            config,
            outputs_of(config.head.parts),
            batch_size=config.evaluation.batch_size,
            before_batch=before_batch,
        )

    def __call__(self, params: Any) -> dict[str, dict[str, float]]:
        scores = {}
        for name, split in self._data.dev.items():
            outputs = self._forward(params, split.encoded.features)
            if not np.isfinite(outputs).all():
                raise NonFinite(f"split {name}: the model's outputs are not finite")
            scores[name] = self._data.task.score(split.rows, split.encoded, outputs)
        return scores


def _shown(scores: dict[str, dict[str, float]]) -> str:
    parts = []
    for name, found in scores.items():
        parts += [f"{name} {metric} {value:.4f}" for metric, value in found.items()]
    return ", ".join(parts)


def _holds_run(home: Path, config: TrainConfig, facts: dict[str, Any]) -> bool:
    """Whether `home` is this run's already. Raises as `train` says; writes nothing."""
    path = home / workdir.CONFIG
    if not path.is_file():
        if home.exists() and not (home.is_dir() and workdir.is_free(home, but_for=(DIVERGED,))):
            raise UsageError(f"--workdir {home} is not empty and holds no run; choose another one")
        return False
    stored = json.loads(path.read_text(encoding="utf-8"))
    old = {"config": stored.get("config"), **{name: stored.get(name) for name in facts}}
    new = json.loads(json.dumps({"config": configs.to_dict(config), **facts}))
    before, now = flat(old), flat(new)
    changed = [
        f"{name}: {before.get(name)!r} -> {now.get(name)!r}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name) and not name.startswith(_FREE)
    ]
    if changed:
        raise ResumeRefused(
            f"workdir {home} holds a run that differs: {'; '.join(changed)}. Use the same command "
            "to resume it, or another --workdir"
        )
    return True


# What may differ on resume: it changes how, never which numbers come out beyond rounding.
_FREE = (
    "sources",
    "config.name",
    "config.mesh.",
    "config.evaluation.batch_size",
    "config.log_every_steps",
    "config.deadline_seconds",
    "config.compute.remat",
    "config.compute.layers",
    "config.compute.gather",
)


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """The values of nested dicts by their dotted names."""
    if isinstance(value, dict):
        return {
            name: leaf
            for key, child in value.items()
            for name, leaf in flat(child, f"{path}.{key}" if path else key).items()
        }
    return {path: value}
