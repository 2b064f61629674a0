"""The runs of a study in the order in which they are made, and where each of them lies.

    WORKDIR/corpus/                  unless a corpus is given
    WORKDIR/rows/RULE/               rows of tasks that are made of the corpus
    WORKDIR/runs/VARIANT.seedN/      workdirs of pre-training
    WORKDIR/tasks/VARIANT.seedN.TASK/  workdirs of fine-tuning
    WORKDIR/probes/VARIANT.seedN.probes/  what a pre-trained model answers
    WORKDIR/records/RUN.json         how a run ended, and its figures; logs/, locks/ likewise
    WORKDIR/compiled/                programs that runs have compiled

The first seed of all variants comes before the second one of any: a study that is cut short has a
table.
"""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_jax.config import PhaseConfig, TrainConfig, to_dict
from bert_jax.config.conversion import nearest
from bert_jax.data.corpus.store import read_manifest
from bert_jax.errors import UsageError
from bert_jax.registry import OBJECTIVES, PROBES
from bert_jax_lab.studies.study import (
    PROBED,
    Study,
    StudyTask,
    Variant,
    config_of,
    overrides_of,
)

CORPUS = "corpus"
# Of a study that is only tried out: rows of a task, and held-out examples.
_FEW = 64


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """One step of a study, with a name of its own."""

    name: str
    directory: Path
    # The runs that must be done before it.
    needs: tuple["StudyRun", ...] = ()

    @property
    def identity(self) -> str:
        """Returns a hash of all inputs that decide the result; paths do not."""
        values = dataclasses.asdict(dataclasses.replace(self, needs=()))
        decisive = {k: v for k, v in values.items() if not isinstance(v, Path)}
        decisive["needs"] = [run.identity for run in self.needs]
        if isinstance(self, PretrainRun):
            decisive |= {"config": to_dict(self.config), "overrides": None, "base": None}
        text = json.dumps(decisive, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class PrepareRun(StudyRun):
    """A corpus that is made for the study."""

    sources: tuple[str, ...]
    vocab_size: int
    validation_fraction: float


@dataclass(frozen=True, kw_only=True)
class VariantRun(StudyRun):
    """A step that is made for one variant and one seed."""

    variant: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class PretrainRun(VariantRun):
    """Pre-training."""

    base: str
    overrides: tuple[str, ...]
    config: TrainConfig
    corpus: Path
    init_from: Path | None = None


@dataclass(frozen=True, kw_only=True)
class FinetuneRun(VariantRun):
    """Fine-tuning of one pre-trained model on one task."""

    task: StudyTask
    checkpoint: Path
    # The folder with train.tsv and dev.tsv, where they are made of the corpus.
    rows: Path | None = None
    train_rows: int | None = None


@dataclass(frozen=True, kw_only=True)
class ProbeRun(VariantRun):
    """Questions to one pre-trained model."""

    probes: tuple[str, ...]
    checkpoint: Path
    corpus: Path

    @property
    def file(self) -> Path:
        """Returns where the answers are."""
        return self.directory / "probes.json"


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """A study in its workdir: what is to be run, and what was asked for."""

    study: Study
    workdir: Path
    corpus: Path
    # Those that this plan makes, of all of the study's.
    runs: tuple[StudyRun, ...]
    whole: tuple[StudyRun, ...]
    # What decides the study beside its file; another one is refused in the same workdir.
    asked: dict[str, Any] = field(default_factory=dict)
    # As it was typed.
    command: str = ""

    def named(self, name: str) -> StudyRun:
        """Returns the run of that name."""
        return next(run for run in self.whole if run.name == name)


def plan_runs(
    study: Study,
    workdir: Path,
    *,
    corpus: Path | None = None,
    overrides: Sequence[str] = (),
    steps: int | None = None,
    only: Sequence[str] = (),
    command: str = "",
) -> StudyPlan:
    """Returns the plan of a study.

    `overrides` change every run, after the variants' own. With `steps`, each run has so many
    updates and few rows, and there is one seed: to try a study out. `only` names the variants to
    run, beside those that they begin from.

    Raises UsageError for a variant whose config is wrong, for names that are no variant's, and for
    columns that no variant has figures for.
    """
    wanted = {variant.name for variant in _wanted(study, only)}
    runs: list[StudyRun] = []
    if corpus is None:
        recipe = study.corpus
        runs.append(
            PrepareRun(
                name=CORPUS,
                directory=workdir / CORPUS,
                sources=recipe.sources,
                vocab_size=recipe.vocab_size,
                validation_fraction=recipe.validation_fraction,
            )
        )
    corpus_needed = tuple(runs)
    fingerprint = None if corpus is None else read_manifest(corpus)["fingerprint"]
    corpus = workdir / CORPUS if corpus is None else corpus
    seeds = study.seeds if steps is None else 1
    last = _last_overrides(study, tuple(overrides), steps)
    pretrained: dict[tuple[str, int], PretrainRun] = {}
    for seed, variant in itertools.product(range(seeds), study.variants):
        more = last[variant.name]
        config = config_of(study, variant, seed, more)
        needs: tuple[StudyRun, ...] = corpus_needed
        if variant.init_from:
            needs += (pretrained[variant.init_from, seed],)
        name = f"{variant.name}.seed{seed}"
        pretraining = PretrainRun(
            name=name,
            directory=workdir / "runs" / name,
            needs=needs,
            variant=variant.name,
            seed=seed,
            base=study.base,
            overrides=tuple(overrides_of(study, variant, seed, more)),
            config=config,
            corpus=corpus,
            init_from=(
                workdir / "runs" / f"{variant.init_from}.seed{seed}" if variant.init_from else None
            ),
        )
        runs.append(pretraining)
        pretrained[variant.name, seed] = pretraining
        runs += [
            FinetuneRun(
                name=f"{name}.{task.name}",
                directory=workdir / "tasks" / f"{name}.{task.name}",
                needs=(pretraining,),
                variant=variant.name,
                seed=seed,
                task=task,
                checkpoint=pretraining.directory,
                rows=workdir / "rows" / task.rule if task.rule else None,
                train_rows=None if steps is None else _FEW,
            )
            for task in study.tasks
        ]
        if probes := _probes_of(study, config):
            runs.append(
                ProbeRun(
                    name=f"{name}.{PROBED}",
                    directory=workdir / "probes" / f"{name}.{PROBED}",
                    needs=(pretraining,),
                    variant=variant.name,
                    seed=seed,
                    probes=probes,
                    checkpoint=pretraining.directory,
                    corpus=corpus,
                )
            )
    _require_columns(study, [run.config for run in runs if isinstance(run, PretrainRun)])
    asked = {
        "study": study.name,
        "scale": study.scale,
        "overrides": [*overrides],
        "steps": steps,
        "corpus": fingerprint,
    }
    return StudyPlan(
        study=study,
        workdir=workdir,
        corpus=corpus,
        runs=tuple(r for r in runs if not isinstance(r, VariantRun) or r.variant in wanted),
        whole=tuple(runs),
        asked=asked,
        command=command,
    )


def _require_columns(study: Study, configs: Sequence[TrainConfig]) -> None:
    """Raises UsageError for a column that is a held-out figure of no variant's objective."""
    objectives = [OBJECTIVES[config.objective] for config in configs]
    known = dict.fromkeys(figure for each in objectives for figure in each.watched())
    for column in study.columns:
        if column not in known:
            raise UsageError(
                f"study {study.name}: columns has {column!r}, which no variant's objective has "
                f"among its figures.{nearest(column, known)}"
            )


def _probes_of(study: Study, config: TrainConfig) -> tuple[str, ...]:
    """Returns the probes that a model of this config has the parts for."""
    parts = {*config.head.parts}
    return tuple(name for name in study.probes if parts >= {*PROBES[name].parts})


def _wanted(study: Study, only: Sequence[str]) -> list[Variant]:
    known = {variant.name: variant for variant in study.variants}
    names = set(only)
    if unknown := sorted(names - known.keys()):
        raise UsageError(
            f"`only` {unknown[0]}: study {study.name} has no such variant; it has "
            f"{', '.join(known)}"
        )
    for name in list(names):
        while known[name].init_from:
            name = known[name].init_from
            names.add(name)
    return [variant for variant in study.variants if not names or variant.name in names]


def _last_overrides(
    study: Study, overrides: tuple[str, ...], steps: int | None
) -> dict[str, tuple[str, ...]]:
    """Returns for each variant the overrides that come after its own: those of the command, and the
    numbers of steps that follow from equal compute and from `steps`.
    """
    budget, found = 0.0, {}
    for variant in study.variants:
        config, more = config_of(study, variant, 0, overrides), overrides
        # The first variant's compute is that of all.
        budget = budget or (flops_of(config) if study.equal_compute else 0.0)
        if budget:
            more += _with_steps(
                config, max(round(config.total_steps * budget / flops_of(config)), 1)
            )
            config = config_of(study, variant, 0, more)
        if steps is not None:
            more += (
                *_with_steps(config, steps),
                f"evaluation.num_examples={min(_FEW, config.evaluation.num_examples)}",
                f"evaluation.every_steps={max(1, steps // 2)}",
                f"checkpoint.every_steps={max(1, steps // 2)}",
                f"log_every_steps={max(1, steps // 4)}",
            )
        found[variant.name] = more
    return found


def _with_steps(config: TrainConfig, steps: int) -> tuple[str, ...]:
    """Returns the overrides that give a run so many steps in all, in the proportions it has."""
    share = steps / config.total_steps
    counts = [max(1, round(phase.steps * share)) for phase in config.phases]
    changes = [f"phases.{number}.steps={count}" for number, count in enumerate(counts)]
    phases = tuple(
        dataclasses.replace(phase, steps=count)
        for phase, count in zip(config.phases, counts, strict=True)
    )
    shorter = dataclasses.replace(config, phases=phases)
    for number in range(len(counts)):
        # Each schedule where it begins: those of the first one are the config's own.
        prefix, whole = f"phases.{number}.", shorter.schedule_span(number)
        if whole.start != sum(counts[:number]):
            continue
        optimizer, total = config.in_phase(number).optimizer, len(whole)
        warmup = min(int(optimizer.warmup_steps * share), total - 1)
        scaled = {"warmup_steps": warmup}
        for name in optimizer.schedule.in_steps:
            if value := getattr(optimizer.schedule, name):
                count = min(max(1, int(value * share)), total - warmup)
                scaled[f"schedule.{name}"] = count
        prefix = prefix if number else "optimizer."
        changes += [f"{prefix}{name}={count}" for name, count in scaled.items()]
    return tuple(changes)


def flops_of(config: TrainConfig, step: int | None = None) -> float:
    """Returns the FLOPs of the updates of a run, until a step or of all (update/flops.py)."""
    from bert_jax.update.flops import train_flops

    objective = OBJECTIVES[config.objective]
    return float(
        sum(
            steps * train_flops(objective, config.model, phase)
            for phase, steps in _steps_until(config, step)
        )
    )


def tokens_of(config: TrainConfig, step: int | None = None) -> int:
    """Returns the positions that a run trains on, until a step or in all."""
    return sum(
        steps * phase.global_batch_size * phase.sequence_length
        for phase, steps in _steps_until(config, step)
    )


def _steps_until(config: TrainConfig, step: int | None) -> Iterator[tuple[PhaseConfig, int]]:
    """Yields each phase with the steps of it that come before a step, or all."""
    left = config.total_steps if step is None else step
    for phase in config.phases:
        steps = min(left, phase.steps)
        yield phase, steps
        left -= steps
