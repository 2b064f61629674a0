"""The runs of a study in order, each with its command and the folder that the command fills.

    WORKDIR/runs/NAME-HASH/       output of the command; record.json once the command has ended
    WORKDIR/logs/NAME-HASH.log    messages of the command; its results are in NAME-HASH.out
    WORKDIR/locks/NAME-HASH       held by the process that works on the run
    WORKDIR/compiled/             compilation cache, shared by all runs

NAME is `corpus`, `rows.RULE`, `VARIANT.seedN`, `VARIANT.seedN.TASK` or `VARIANT.seedN.probes`. HASH
covers all inputs of a run: its options, its config, the fingerprint of the corpus, and the hashes
of the runs that it needs. An edited study therefore plans other folders, and a record in a folder
always describes the run that is planned for the folder.

The first seed of all variants precedes the second seed of any variant, so that a study that is
stopped early has a complete table.
"""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.config import TrainConfig, to_dict
from bert_jax.data.corpus.store import read_manifest
from bert_jax.errors import UsageError, did_you_mean
from bert_jax.registry import OBJECTIVES, PROBES
from bert_jax_lab.studies import corpus_tasks
from bert_jax_lab.studies.study import PROBED, Study, StudyTask, config_of, overrides_of

# The number of task rows and validation examples in a trial of a study (`steps`).
_FEW = 64
PROBES_FILE = "probes.json"


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """One run of a study: a command that fills a folder.

    Runs of a variant have `config` for pre-training, `task` for fine-tuning, or `probes`.
    """

    name: str
    folder: Path
    # The runs that must be done before this run.
    needs: tuple["StudyRun", ...] = ()
    # The arguments of `bert-jax`.
    command: tuple[str, ...] = ()
    # Makes the rows of tasks from the corpus, in place of a command.
    rule: str = ""
    variant: str = ""
    seed: int = 0
    config: TrainConfig | None = None
    task: StudyTask | None = None
    probes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """A study in its workdir, with its runs."""

    study: Study
    workdir: Path
    corpus: Path
    runs: tuple[StudyRun, ...]
    # The command that was typed.
    command: str = ""


def plan_study(
    study: Study,
    workdir: Path,
    *,
    corpus: Path | None = None,
    overrides: Sequence[str] = (),
    steps: int | None = None,
    extend: Sequence[Path] = (),
    command: str = "",
) -> StudyPlan:
    """Returns the runs of a study.

    `overrides` change every run, after the variants' own overrides. `steps` tries a study out: this
    many steps per run, few rows, and one seed. `extend` are files for `--extend` of every command.

    Raises UsageError for a variant with an invalid config, for columns that no variant has metrics
    for, and for an invalid rule or option of a task.
    """
    extended = [word for file in extend for word in ("--extend", str(file))]
    # A config in Python may register what it names.
    loads_base = ("--extend", study.base) if study.base.endswith(".py") else ()
    runs: list[StudyRun] = []

    def add(
        name: str, options: Sequence[str] = (), *, inputs: Any,
        needs: tuple[StudyRun, ...] = (), output: tuple[str, str] = ("--workdir", ""),
        **fields: Any,
    ) -> StudyRun:  # fmt: skip
        hashed = [inputs, [needed.folder.name for needed in needs]]
        text = json.dumps(hashed, sort_keys=True, default=dataclasses.asdict)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        folder = workdir / "runs" / f"{name}-{digest}"
        option, file = output
        words = (*options, *extended, option, str(folder / file))
        runs.append(StudyRun(name=name, folder=folder, command=words, needs=needs, **fields))
        return runs[-1]

    fingerprint = None if corpus is None else read_manifest(corpus)["fingerprint"]
    if corpus is None:
        options, output = ["prepare", *study.corpus], ("--output-dir", "")
        corpus = add("corpus", options, inputs=study.corpus, output=output).folder
    prepared = tuple(runs)
    rows = {
        rule: add(f"rows.{rule}", needs=prepared, inputs=fingerprint, rule=rule)
        for rule in _rules(study)
    }
    last = _last_overrides(study, tuple(overrides), steps)
    train_rows = None if steps is None else _FEW
    configs: list[TrainConfig] = []
    seeds = study.seeds if steps is None else 1
    for seed, variant in itertools.product(range(seeds), study.variants):
        config = config_of(study, variant, seed, last[variant.name])
        own: dict[str, Any] = {"variant": variant.name, "seed": seed}
        name = f"{variant.name}.seed{seed}"
        options = ["pretrain", study.base, "--corpus", str(corpus)]
        for change in overrides_of(study, variant, seed, last[variant.name]):
            options += ["--set", change]
        inputs = {"config": to_dict(config), "corpus": fingerprint}
        model = add(name, options, needs=prepared, inputs=inputs, config=config, **own)
        configs.append(config)
        checkpoint = (str(model.folder), *loads_base)
        for task in study.tasks:
            made = rows.get(task.rule)
            options = [*_finetune_options(task, seed, made, train_rows), *checkpoint]
            add(
                f"{name}.{task.name}", options, task=task, **own,
                needs=(model, made) if made else (model,), inputs=[task, train_rows],
            )  # fmt: skip
        if probes := _probes_of(study, config):
            options = ["probe", *checkpoint, "--corpus", str(corpus)]
            options += [word for probe in probes for word in ("--probe", probe)]
            add(
                f"{name}.{PROBED}", options, output=("--output-file", PROBES_FILE),
                needs=(model,), inputs=probes, probes=probes, **own,
            )  # fmt: skip
    _require_columns(study, configs)
    return StudyPlan(study=study, workdir=workdir, corpus=corpus, runs=tuple(runs), command=command)


def _rules(study: Study) -> list[str]:
    """Returns the rules that make rows for the tasks. Raises UsageError for an unknown rule."""
    for task in study.tasks:
        if task.rule and task.rule not in corpus_tasks.RULES:
            raise UsageError(
                f"task {task.name}: rule is {task.rule!r}; choose one of "
                f"{', '.join(corpus_tasks.RULES)}"
            )
    return [*dict.fromkeys(task.rule for task in study.tasks if task.rule)]


def _finetune_options(
    task: StudyTask, seed: int, rows: StudyRun | None, train_rows: int | None
) -> list[str]:
    """Returns the options of one fine-tuning run, except for the checkpoint.

    Raises UsageError for an option of the task that the study sets.
    """
    options = ["finetune", "--seed", str(seed), "--epochs", f"{task.epochs:g}"]
    options += ["--max-length", str(task.length)]
    if rows is not None:
        train, dev = corpus_tasks.files_of(rows.folder)
        options += ["--task", "text", "--train", str(train), "--dev", str(dev)]
        options += [
            w for column in corpus_tasks.columns_of(task.rule) for w in ("--text-column", column)
        ]
    if train_rows is not None:
        options += ["--train-rows", str(train_rows)]
    own = {"--workdir", *(word for word in options if word.startswith("--"))}
    own.discard("--train-rows")
    for word in task.options:
        if word.partition("=")[0] in own:
            raise UsageError(f"task {task.name}: the study sets {word}; remove it from the options")
    # The last --train-rows takes effect: the study's own.
    return [*options[:1], *task.options, *options[1:]]


def _require_columns(study: Study, configs: Sequence[TrainConfig]) -> None:
    """Raises UsageError for a column that is not a validation metric of any variant's objective."""
    objectives = [OBJECTIVES[config.objective] for config in configs]
    known = dict.fromkeys(figure for each in objectives for figure in each.watched())
    for column in study.columns:
        if column not in known:
            raise UsageError(
                f"study {study.name}: columns has {column!r}, which is not a metric of any "
                f"variant's objective.{did_you_mean(column, known)}"
            )


def _probes_of(study: Study, config: TrainConfig) -> tuple[str, ...]:
    """Returns the probes for which a model of this config has the heads."""
    parts = {*config.head.parts}
    return tuple(name for name in study.probes if parts >= {*PROBES[name].parts})


def _last_overrides(
    study: Study, overrides: tuple[str, ...], steps: int | None
) -> dict[str, tuple[str, ...]]:
    """Returns for each variant the overrides that follow its own: the overrides of the command, and
    the numbers of steps for equal compute or `steps`.
    """
    budget, found = 0.0, {}
    for variant in study.variants:
        config, more = config_of(study, variant, 0, overrides), overrides
        # All variants get the compute of the first variant.
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
    """Returns the overrides that give a run a total number of steps, in unchanged proportions."""
    share = steps / config.total_steps
    counts = [max(1, round(phase.steps * share)) for phase in config.phases]
    changes = [f"phases.{number}.steps={count}" for number, count in enumerate(counts)]
    phases = tuple(
        dataclasses.replace(phase, steps=count)
        for phase, count in zip(config.phases, counts, strict=True)
    )
    shorter = dataclasses.replace(config, phases=phases)
    for number in range(len(counts)):
        # Scale each schedule in the phase in which it begins; phase 0 has the config's own fields.
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


def flops_of(config: TrainConfig) -> float:
    """Returns the FLOPs of a run (update/flops.py)."""
    from bert_jax.update.flops import train_flops

    objective = OBJECTIVES[config.objective]
    return float(
        sum(phase.steps * train_flops(objective, config.model, phase) for phase in config.phases)
    )
