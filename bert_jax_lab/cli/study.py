"""Run an ablation or scaling study from one file.

Runs the missing trainings and tasks one after the other, each in a separate process, and writes
study.md, study.json and charts. The same command resumes an interrupted study, and several
processes may work on one study.

examples:
  bert-jax study ladder --workdir runs/ladder --dry-run       # list the commands
  bert-jax study ladder --workdir runs/ladder --time-budget 2h
  bert-jax study mine.py --corpus runs/corpus --workdir runs/mine --steps 20
"""

import argparse
import json
import re
import shlex
import time
from collections.abc import Callable
from typing import Annotated, Any

from bert_jax.cli import usage
from bert_jax.cli.corpora import CorpusDirectory
from bert_jax.cli.options import Local, Positional, Verb
from bert_jax.cli.output import table, tell
from bert_jax.config.fields import REQUIRED, section, setting
from bert_jax.errors import Preempted, UsageError
from bert_jax.progress import note

INTERRUPTED = "runs that have ended are kept; the same command resumes the study"
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
        "STUDY: a shipped study (ladder, positions, objectives, recipe, scaling, "
        "pretraining_pays, layer_types, electra) or a .py file that defines study()",
    )
    workdir: Local = setting(REQUIRED, "DIR: directory for runs and tables")
    corpus: CorpusDirectory | None = setting(
        None, "DIR: a directory of bert-jax prepare (default: the corpus of the study, made once)"
    )
    preset: str = setting("study", "NAME: function of the study's file, for example paper")
    time_budget: Annotated[float, seconds_of] | None = setting(
        None,
        "TIME: save and stop after this time, for example 90m or 2h; the first seed of all "
        "variants runs first",
    )
    variant: tuple[str, ...] = setting(
        (),
        "NAME: run this variant and the variants that it starts from only; repeat for several",
    )
    steps: int | None = setting(
        None, "N: test the study with N updates per run, one seed and few examples per task"
    )
    dry_run: bool = setting(False, "list the commands of all runs and run none of them")
    json: bool = setting(False, "print study.json, or the list of --dry-run, in place of tables")
    overrides: Annotated[tuple[str, ...], "--set"] = setting(
        (),
        "FIELD=VALUE: change a field in all runs, after the variant's changes; repeat for several",
    )


def run(options: StudyOptions) -> None:
    from bert_jax_lab.studies.study import load_study

    started = time.monotonic()
    if options.steps is not None and options.steps < 1:
        raise UsageError(f"--steps {options.steps}: it must be at least 1")
    study = load_study(options.study, scale=options.preset)
    import jax

    # This process computes shapes only; the devices are for the runs.
    jax.config.update("jax_platforms", "cpu")
    from bert_jax_lab.studies import result
    from bert_jax_lab.studies.plan import FinetuneRun, RowsRun, StudyRun, plan_study
    from bert_jax_lab.studies.run import Children, Outcome, is_done, make_missing

    plan = plan_study(
        study,
        options.workdir,
        corpus=options.corpus,
        overrides=options.overrides,
        steps=options.steps,
        only=options.variant,
        extend=options.extend,
        command=_typed(options),
    )
    if options.dry_run:
        runs = [each for each in plan.runs if not isinstance(each, RowsRun)]
        commands = [shlex.join(["bert-jax", *each.command]) for each in runs]
        if options.json:
            listed = [
                {"run": each.name, "status": "done" if is_done(each) else "missing"}
                | {"command": command}
                for each, command in zip(runs, commands, strict=True)
            ]
            print(json.dumps(listed, indent=2))
        else:
            print("\n".join(commands))
        return
    # Find an invalid option of a task before the models are trained.
    parser = usage.command_parser()
    for each in plan.runs:
        if isinstance(each, FinetuneRun):
            usage.parse(parser, each.command)
    until = None if options.time_budget is None else started + options.time_budget
    with Children(compiled=(plan.workdir / "compiled").absolute(), until=until) as children:

        def execute(run: StudyRun, held: int, show: Callable[[str], None]) -> Outcome:
            log = plan.workdir / "logs" / f"{run.folder.name}.log"
            return children.run(run.command, log=log, lock=held, show=show)

        progress = ended = None
        try:
            progress = make_missing(plan, execute, stopped_by=children.stopped_by)
        except Preempted as error:
            ended = error
    found = result.write(plan)
    if ended is not None:
        raise ended
    _print_summary(plan, found, progress, options)


def _typed(options: StudyOptions) -> str:
    """Returns the command that makes the study, without options such as --time-budget."""
    words = ["bert-jax", "study", options.study, "--workdir", str(options.workdir)]
    if options.corpus is not None:
        words += ["--corpus", str(options.corpus)]
    if options.preset != "study":
        words += ["--preset", options.preset]
    if options.steps is not None:
        words += ["--steps", str(options.steps)]
    words += [word for change in options.overrides for word in ("--set", change)]
    words += [word for file in options.extend for word in ("--extend", str(file))]
    return shlex.join(words)


def _print_summary(plan: Any, found: dict[str, Any], progress: Any, options: StudyOptions) -> None:
    from bert_jax_lab.studies import result
    from bert_jax_lab.studies import table as tables

    if options.json:
        print(json.dumps(found, indent=2))
    else:
        table(found["title"], *tables.brief(found))
        for line in tables.other_rows(found):
            tell(line)
        print(f"{plan.workdir / result.STUDY_MD} has the table, the figures and failed runs")
    if progress.held:
        note(f"another process works on {', '.join(progress.held)}")
    if progress.left:
        why = "the time is up; " if progress.is_stopped else ""
        note(f"{why}runs left: {len(progress.left)}; the same command resumes the study")
