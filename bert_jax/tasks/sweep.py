"""All runs of one `bert-jax finetune`: one run per seed, and the restarts of diverged runs."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from bert_jax import config_loader
from bert_jax.config import (
    CheckpointConfig,
    DataConfig,
    EvaluationConfig,
    ModelConfig,
    OptimizerConfig,
    PhaseConfig,
    TrainConfig,
    flatten,
)
from bert_jax.config.fields import fields_of
from bert_jax.config.model import TRAINING_FIELDS
from bert_jax.config.resume import differences, is_within
from bert_jax.config_checks import validate
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.errors import UsageError
from bert_jax.inference.embed import recipe_of
from bert_jax.interchange import huggingface
from bert_jax.interchange.sentence_transformers import DOCUMENT_PROMPTS, NORMALIZE, QUERY_PROMPTS
from bert_jax.pretrained.load import LoadedCheckpoint, load_checkpoint
from bert_jax.progress import note
from bert_jax.registry import TASK_KINDS, TASKS
from bert_jax.runtime import distributed
from bert_jax.tasks import results
from bert_jax.tasks.finetune import Settings, train
from bert_jax.tasks.task import NamedTask, TaskSpec
from bert_jax.tasks.task_data import Sources, TaskData, load_task
from bert_jax.training import preflight
from bert_jax.workdir import location, run_directory
from bert_jax.workdir.location import Guard
from bert_jax.workdir.lock import only_trainer

# Share of the steps (google-research/bert run_classifier.py and run_squad.py).
WARMUP = 0.1
# Prefix of the folder of each restart, in the folder of the run.
RESTART = "restart-"
# The largest share of the time of a run of pairs that its evaluations take.
_EVALUATION_SHARE = 0.1
# The fewest tokens per row that validate() accepts.
_SHORTEST = 8
# Added to the seed for each restart; other runs do not use these seeds.
_NEXT_SEED = 1000

# Options of `data` that a task with several training files has.
_MIXING = ("source_weights", "source_temperature")
_PRETRAINING = "only pre-training has this option; remove it"
_TASK = "the task sets it; remove the override"
# Fields that `overrides` cannot change, and the fix. A section means all of its options.
_NOT_HERE = {
    "name": _TASK,
    "seed": "use `seed` and `seeds`",
    "objective": _PRETRAINING,
    "model": "the checkpoint decides the model, except for dropout, initializer_range and "
    "classifier_pooling",
    "head": "the task sets it, except for the pooling of text pairs; remove the override",
    **{f"data.{name}": _PRETRAINING for name in fields_of(DataConfig) if name not in _MIXING},
    "embedding.query_prompt": "use `query_prompt`",
    "embedding.document_prompt": "use `document_prompt`",
    "compute.loss_slices": "a task has no loss over the vocabulary; remove the override",
    "phases": "use `length`, `batch_size` and `epochs`",
    "evaluation.num_examples": _PRETRAINING,
    "optimizer.learning_rate": "use `learning_rate`",
    "optimizer.frozen_layers": "use `freeze_layers`",
}


def finetune(
    checkpoint: Path | str,
    workdir: Path | str,
    spec: TaskSpec | NamedTask | str,
    sources: Sources,
    settings: Settings,
) -> dict[str, Any]:
    """Makes or resumes all runs of `settings` in `workdir`; returns their summary.

    A single run is in `workdir`, several runs are in `workdir/runs/NAME`; `results.json` and
    `results.md` are in `workdir`. A diverged run is restarted in its folder `restart-N`.
    `checkpoint` is anything with an encoder; its classifier is ignored. `spec` may be an entry of
    TASKS, or the name of one. Nothing is written before all rows have been read and checked. Raises
    Diverged if no run has a score.
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
        _require_fitting(settings, source)
        length = settings.length
        if length is None:
            most = source.config.model.max_position_embeddings
            length = min(TASK_KINDS[task.kind].default_length, most)
        data = load_task(_with_prompts(task, source), sources, tokenizer, length=length)
        place, seeds = location.at(workdir), range(settings.seed, settings.seed + settings.seeds)
        if len(seeds) > 1 and distributed.broadcast_from_main(
            lambda: int(run_directory.CONFIG in place.names())
        ):
            raise UsageError(
                f"`workdir` {place.name} has a single run, but {len(seeds)} are requested; choose "
                "another `workdir`"
            )
        found = []
        for seed in seeds:
            each = dataclasses.replace(settings, seed=seed)
            path = workdir if len(seeds) == 1 else place.inside("runs", _name(each))
            config = _config(source, data, each, length=length)
            found.append(_with_restarts(config, each, data, source, path, mesh=mesh, guard=guard))
            if len(seeds) > 1:
                note(f"run {len(found)} of {len(seeds)} is complete")
        summary = results.summarise(data.task.spec, found)
        if distributed.is_main():
            place.write_text("results.json", json.dumps(summary, indent=2) + "\n")
            place.write_text("results.md", results.markdown(summary))
    return summary


def _with_prompts(task: TaskSpec, source: LoadedCheckpoint) -> TaskSpec:
    """Returns a task in which the checkpoint's prompts replace the prompts that are None.

    Both texts of `similarity` get the default prompt. Other kinds of tasks have no prompts.
    """
    if task.kind not in ("pairs", "similarity"):
        return task
    recipe, found = recipe_of(source), {}
    for side, names in (("query_prompt", QUERY_PROMPTS), ("document_prompt", DOCUMENT_PROMPTS)):
        if getattr(task, side) is None:
            names = names if task.kind == "pairs" else ()
            found[side] = recipe.with_first_prompt(names).prompt
            if found[side]:
                note(f"using the checkpoint's `{side}`: {found[side]!r}")
    if dense := [name for name, _ in recipe.steps if name != NORMALIZE[0]]:
        note(f"{source.directory}: {', '.join(dense)} after the pooling is not trained or exported")
    return dataclasses.replace(task, **found)


def _require_fitting(settings: Settings, source: LoadedCheckpoint) -> None:
    length, frozen = settings.length, settings.freeze_layers
    layers = source.config.model.num_hidden_layers
    if frozen > layers:
        raise UsageError(f"`freeze_layers` {frozen}: the model has only {layers} layers")
    most = source.config.model.max_position_embeddings
    if length is not None and not _SHORTEST <= length <= most:
        raise UsageError(
            f"`length` {length}: checkpoint {source.directory} supports {_SHORTEST} to {most} "
            f"tokens per row; use `length` {most} or less"
        )


def _name(run: Settings) -> str:
    """Returns the name of a run's folder."""
    return (
        f"batch-{run.batch_size}_rate-{run.learning_rate:g}_epochs-{run.epochs:g}_seed-{run.seed}"
    )


def _config(source: LoadedCheckpoint, data: TaskData, run: Settings, *, length: int) -> TrainConfig:
    rows = len(data.train.features)
    steps = max(1, int(rows * run.epochs / run.batch_size))
    every = max(1, rows // run.batch_size)
    if data.task.one_source_per_batch:
        # Retrieval is scored on any number of rows. A row costs at most half of a row of an update.
        held_out = sum(len(split.rows) for split in data.dev.values())
        every = max(every, math.ceil(held_out / 2 / run.batch_size / _EVALUATION_SHARE))
    head = huggingface.with_classifier(source.config.model, source.config.head, data.task.head())
    if "embedding" in head.parts:
        head = dataclasses.replace(head, pooling=recipe_of(source).pooling)
    config = TrainConfig(
        name=data.task.spec.name,
        seed=run.seed,
        # Without an ELECTRA's generator.
        model=source.config.model.with_generator_of(ModelConfig()),
        head=head,
        compute=dataclasses.replace(source.config.compute, loss_slices=1),
        embedding=data.task.embedding(),
        optimizer=OptimizerConfig(
            learning_rate=run.learning_rate, warmup_steps=int(WARMUP * steps)
        ),
        phases=(
            PhaseConfig(
                sequence_length=length,
                steps=steps,
                global_batch_size=run.batch_size,
                max_predictions=1,
            ),
        ),
        evaluation=EvaluationConfig(every_steps=every, batch_size=64),
        checkpoint=CheckpointConfig(every_steps=every, keep_last=1),
        log_every_steps=max(1, steps // 200),
    )
    changed = config_loader.override(config, list(run.overrides))
    free = [f"model.{name}" for name in TRAINING_FIELDS]
    free += ["head.pooling"] if "embedding" in head.parts else []
    # `differences` also names the items of a list that has become shorter.
    for path, _, _ in differences(flatten(config), flatten(changed)):
        for section, reason in _NOT_HERE.items():
            if is_within(path, [section]) and not is_within(path, free):
                raise UsageError(f"override {path}: {reason}")
    dev = {name: split.rows for name, split in data.dev.items()}
    data.task.check(validate(changed), data.train.rows, dev)
    return changed


def _with_restarts(
    config: TrainConfig,
    settings: Settings,
    data: TaskData,
    source: LoadedCheckpoint,
    workdir: Path | str,
    *,
    mesh: Mesh,
    guard: Guard,
) -> dict[str, Any]:
    """Returns the result of the first attempt that did not diverge, or of the last one.

    Attempt N > 0 is in `workdir/restart-N`.
    """
    result: dict[str, Any] = {}
    for attempt in range(settings.restarts + 1):
        seed, path = config.seed + _NEXT_SEED * attempt, workdir
        if attempt:
            path = location.at(workdir).inside(f"{RESTART}{attempt}")
        attempted = dataclasses.replace(config, seed=seed)
        result = train(attempted, settings, data, source, path, mesh=mesh, guard=guard)
        result |= {"attempts": attempt + 1, "directory": str(path)}
        if not result["diverged"]:
            return result
        is_last = attempt == settings.restarts
        follows = "no restarts left" if is_last else f"next seed {seed + _NEXT_SEED}"
        note(f"{config.name}: seed {seed} diverged ({result['reason']}); {follows}")
    return result
