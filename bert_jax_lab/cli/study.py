"""Run an ablation or scaling study from one file.

Runs the missing trainings and tasks one after the other, each in a separate process, and writes
study.md, study.json and charts. The same command resumes an interrupted study, and several
processes may work on one study.

examples:
  bert-jax study ladder --workdir runs/ladder --dry-run       # list the commands
  timeout 2h bert-jax study ladder --workdir runs/ladder      # save and stop after two hours
  bert-jax study mine.py --corpus runs/corpus --workdir runs/mine --steps 20
"""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from bert_jax.cli import usage
from bert_jax.cli.options import Positional, Verb
from bert_jax.cli.output import table, tell
from bert_jax.config.fields import REQUIRED, section, setting
from bert_jax.errors import Preempted, UsageError
from bert_jax.progress import note

INTERRUPTED = "runs that have ended are kept; the same command resumes the study"


@section
class StudyOptions(Verb):
    study: Positional[str] = setting(
        REQUIRED,
        "STUDY: a shipped study (ladder, positions, objectives, recipe, scaling, "
        "pretraining_pays, layer_types, electra) or a .py file that defines study()",
    )
    workdir: Path = setting(REQUIRED, "DIR: directory for runs and tables")
    corpus: Path | None = setting(
        None, "DIR: a directory of bert-jax prepare (default: the corpus of the study, made once)"
    )
    preset: str = setting("study", "NAME: function of the study's file, for example paper")
    steps: int | None = setting(
        None, "N: test the study with N updates per run, one seed and few examples per task"
    )
    dry_run: bool = setting(False, "list the commands of all runs and run none of them")
    json: bool = setting(False, "print study.json in place of tables")
    overrides: Annotated[tuple[str, ...], "--set"] = setting(
        (),
        "FIELD=VALUE: change a field in all runs, after the variant's changes; repeat for several",
    )


def run(options: StudyOptions) -> None:
    from bert_jax_lab.studies.study import load_study

    if options.steps is not None and options.steps < 1:
        raise UsageError(f"--steps {options.steps}: it must be at least 1")
    study = load_study(options.study, scale=options.preset)
    import jax

    # This process computes shapes only; the devices are for the runs.
    jax.config.update("jax_platforms", "cpu")
    from bert_jax_lab.studies import result
    from bert_jax_lab.studies.plan import StudyRun, plan_study
    from bert_jax_lab.studies.run import Children, Outcome, make_missing

    plan = plan_study(
        study,
        options.workdir,
        corpus=options.corpus,
        overrides=options.overrides,
        steps=options.steps,
        extend=options.extend,
        command=_typed(options),
    )
    if options.dry_run:
        runs = [each for each in plan.runs if not each.rule]
        print("\n".join(shlex.join(["bert-jax", *each.command]) for each in runs))
        return
    # Find an invalid option of a task before the models are trained.
    parser = usage.command_parser()
    for each in plan.runs:
        if each.task is not None:
            usage.parse(parser, each.command)
    with Children(compiled=(plan.workdir / "compiled").absolute()) as children:

        def execute(run: StudyRun, held: int, show: Callable[[str], None]) -> Outcome:
            log = plan.workdir / "logs" / f"{run.folder.name}.log"
            return children.run(run.command, log=log, lock=held, show=show)

        ended = None
        try:
            make_missing(plan, execute, stopped_by=children.stopped_by)
        except Preempted as error:
            ended = error
    found = result.write(plan)
    if ended is not None:
        raise ended
    _print_summary(plan, found, options)


def _typed(options: StudyOptions) -> str:
    """Returns the command that makes the study."""
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


def _print_summary(plan: Any, found: dict[str, Any], options: StudyOptions) -> None:
    from bert_jax_lab.studies import result
    from bert_jax_lab.studies import table as tables
    from bert_jax_lab.studies.run import missing

    if options.json:
        print(json.dumps(found, indent=2))
    else:
        table(found["title"], *tables.brief(found))
        for line in tables.other_rows(found):
            tell(line)
        print(f"{plan.workdir / result.STUDY_MD} has the table, the figures and failed runs")
    if left := missing(plan):
        note(f"runs left: {len(left)}; the same command resumes the study")
