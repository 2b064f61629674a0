"""Make a set of runs, tasks and figures as one.

Makes the runs that are missing, one after the other, each in a process of its own, and writes
study.md, study.json and figures. The same command goes on after any interruption, and several
processes may work on one study.

examples:
  bert-jax study ladder --workdir runs/ladder --dry-run       # list the commands
  bert-jax study ladder --workdir runs/ladder --budget 2h
  bert-jax study mine.py --corpus runs/corpus --workdir runs/mine --steps 20
"""

import argparse
import json
import re
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from bert_jax.cli import usage
from bert_jax.cli.corpora import CorpusDirectory
from bert_jax.cli.options import Local, Positional, Verb
from bert_jax.cli.output import table, tell
from bert_jax.config.fields import REQUIRED, section, setting
from bert_jax.errors import Preempted, UsageError
from bert_jax.progress import note
from bert_jax_lab.studies.child import KEPT

INTERRUPTED = KEPT
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(text: str) -> float:
    """Returns the seconds of a time such as 90m, 2h or 1h30m."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
    if not parts or "".join(f"{n}{unit}" for n, unit in parts) != text:
        raise argparse.ArgumentTypeError(f"{text}: write it as 45s, 90m, 2h or 1h30m")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


@section
class StudyOptions(Verb):
    study: Positional[str] = setting(
        REQUIRED,
        "STUDY: a shipped study: ladder, positions, objectives, recipe, scaling, "
        "pretraining_pays, layer_types, electra, or a .py file that defines study() "
        "([studies.md](studies.md))",
    )
    workdir: Local = setting(REQUIRED, "DIR: where runs and tables go")
    corpus: CorpusDirectory | None = setting(
        None, "DIR: a directory of bert-jax prepare (default: the study's own, made once)"
    )
    scale: str = setting("study", "NAME: the function of the study's file, such as paper")
    budget: Annotated[float, seconds_of] | None = setting(
        None,
        "TIME: stop after so long, as 90m or 2h, with what is saved; the first seed of all "
        "variants comes first",
    )
    only: tuple[str, ...] = setting(
        (),
        "VARIANT: make the runs of this variant, and of those that it begins from; repeat for "
        "several",
    )
    steps: int | None = setting(
        None, "N: try the study out: N updates a run, one seed, few rows of each task"
    )
    dry_run: bool = setting(False, "list the commands of all runs, and run none")
    json: bool = setting(False, "print study.json, or the list of --dry-run, instead of tables")
    overrides: Annotated[tuple[str, ...], "--set"] = setting(
        (), "FIELD=VALUE: change a field in all runs, after the variants' own; repeat for several"
    )


def run(options: StudyOptions) -> None:
    from bert_jax_lab.studies.study import load_study

    started = time.monotonic()
    if options.steps is not None and options.steps < 1:
        raise UsageError(f"--steps {options.steps}: it must be at least 1")
    study = load_study(options.study, scale=options.scale)
    import jax

    # Shapes are computed here and nothing else: the devices are the runs'.
    jax.config.update("jax_platforms", "cpu")
    from bert_jax_lab.studies import corpus_tasks, runner, summary
    from bert_jax_lab.studies.child import Children
    from bert_jax_lab.studies.runs import CORPUS, FinetuneRun, plan_runs

    corpus_tasks.require_rules(study)
    plan = plan_runs(
        study,
        options.workdir,
        corpus=options.corpus,
        overrides=options.overrides,
        steps=options.steps,
        only=options.only,
        command=_typed(options),
    )
    if options.dry_run:
        _print_plan(plan, options)
        return
    # A wrong option of a task would be found once all models are trained.
    parser = usage.command_parser()
    for made in plan.runs:
        if isinstance(made, FinetuneRun):
            usage.parse(parser, command_of(made, options.extend))
    runner.claim(plan)
    compiled = (plan.workdir / "compiled").absolute()
    until = None if options.budget is None else started + options.budget
    with Children(compiled=compiled, until=until) as children:

        def execute(run: Any, held: int, say: Callable[[str], None]) -> Any:
            log = plan.workdir / "logs" / f"{run.name}.log"
            return children.run(command_of(run, options.extend), log=log, lock=held, say=say)

        runner.make_missing(
            plan, execute, stopped_by=children.stopped_by, only=lambda run: run.name == CORPUS
        )
        runner.write_rows(plan)
        progress = ended = None
        try:
            progress = runner.make_missing(plan, execute, stopped_by=children.stopped_by)
        except Preempted as error:
            ended = error
    # Which takes longer than a study has that is asked to end between runs.
    found = summary.write(plan)
    if ended is not None:
        raise ended
    _print_summary(plan, found, progress, options)


def command_of(run: Any, extend: Sequence[Path] = ()) -> list[str]:
    """Returns the options of `bert-jax` that make a run."""
    from bert_jax_lab.studies import corpus_tasks
    from bert_jax_lab.studies.records import finished_siblings
    from bert_jax_lab.studies.runs import FinetuneRun, PrepareRun, PretrainRun, ProbeRun

    if isinstance(run, FinetuneRun | ProbeRun):
        (pretraining,) = run.needs
        assert isinstance(pretraining, PretrainRun)
        extend = _with_base(extend, pretraining.base)
    common = [word for file in extend for word in ("--extend", str(file))]
    if isinstance(run, PrepareRun):
        words = ["prepare", "--output", str(run.directory)]
        words += [word for source in run.sources for word in ("--source", source)]
        words += ["--validation-fraction", str(run.validation_fraction)]
        words += ["--vocab-size", str(run.vocab_size)]
    elif isinstance(run, FinetuneRun):
        task = run.task
        words = ["finetune", "--checkpoint", str(run.checkpoint), "--workdir", str(run.directory)]
        words += ["--seed", str(run.seed), "--epochs", f"{task.epochs:g}"]
        words += ["--length", str(task.length)]
        if run.rows is not None:
            train, dev = corpus_tasks.files_of(run.rows)
            words += ["--task", "text", "--train", str(train), "--dev", str(dev)]
            words += [w for c in corpus_tasks.columns_of(task.rule) for w in ("--text", c)]
        own = {word for word in words if word.startswith("--")}
        for word in task.options:
            if word.partition("=")[0] in own:
                raise UsageError(f"task {task.name}: a study gives {word} itself; leave it out")
        words += task.options
        if run.train_rows is not None:
            words += ["--train-rows", str(run.train_rows)]
    elif isinstance(run, ProbeRun):
        words = ["probe", "--checkpoint", str(run.checkpoint), "--corpus", str(run.corpus)]
        words += [word for name in run.probes for word in ("--probe", name)]
        words += ["--output", str(run.file)]
    else:
        words = ["pretrain", run.base, "--corpus", str(run.corpus), "--workdir", str(run.directory)]
        words += [word for change in run.overrides for word in ("--set", change)]
        if run.init_from is not None:
            words += ["--init-from", str(run.init_from)]
        words += [word for path in finished_siblings(run) for word in ("--expect", str(path))]
    return [*words, *common]


def _with_base(extend: Sequence[Path], base: str) -> list[Path]:
    """Returns the files to execute first: a config in Python registers what it names, too."""
    return [*extend, *([Path(base)] if base.endswith(".py") else [])]


def _typed(options: StudyOptions) -> str:
    """Returns the command, without what changes from call to call."""
    words = ["bert-jax", "study", options.study, "--workdir", str(options.workdir)]
    if options.corpus is not None:
        words += ["--corpus", str(options.corpus)]
    if options.scale != "study":
        words += ["--scale", options.scale]
    if options.steps is not None:
        words += ["--steps", str(options.steps)]
    words += [word for change in options.overrides for word in ("--set", change)]
    words += [word for file in options.extend for word in ("--extend", str(file))]
    return shlex.join(words)


def _print_plan(plan: Any, options: StudyOptions) -> None:
    from bert_jax_lab.studies.records import record_of

    listed = [
        {
            "run": run.name,
            "status": (record_of(plan.workdir, run) or {"status": "missing"})["status"],
            "command": shlex.join(["bert-jax", *command_of(run, options.extend)]),
        }
        for run in plan.runs
    ]
    if options.json:
        print(json.dumps(listed, indent=2))
    else:
        print("\n".join(entry["command"] for entry in listed))


def _print_summary(plan: Any, found: dict[str, Any], progress: Any, options: StudyOptions) -> None:
    from bert_jax_lab.studies import summary
    from bert_jax_lab.studies import table as tables

    if options.json:
        print(json.dumps(found, indent=2))
    else:
        table(found["title"], *tables.brief(found))
        for line in tables.other_rows(found):
            tell(line)
        print(f"{plan.workdir}/{summary.STUDY_MD} has the table, its figures and what failed")
    if progress.held:
        note(f"another process works on {', '.join(run.name for run in progress.held)}")
    if progress.left:
        why = "the time is up; " if progress.is_stopped else ""
        note(f"{why}runs left: {len(progress.left)}; the same command continues with them")
