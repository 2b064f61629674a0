"""Makes the runs of a study that are missing: which they are, and how each of them ended.

A run's workdir is what it goes on from, and its record says that it has ended. The order, and what
several processes do that work on one study, are those of any list of runs (workdir/run_list.py).
"""

from collections.abc import Callable, Sequence

from bert_jax import file_lock, strict_json
from bert_jax.errors import (
    BertJaxError,
    Interrupted,
    Preempted,
    ResumeRefused,
    UsageError,
    with_exit_code,
)
from bert_jax.files import write_json
from bert_jax.progress import note
from bert_jax.workdir import run_list
from bert_jax.workdir.run_list import ListProgress
from bert_jax_lab.studies import corpus_tasks, summary
from bert_jax_lab.studies.child import Outcome
from bert_jax_lab.studies.records import (
    DONE,
    STOPPING,
    begins_elsewhere,
    is_done,
    is_settled,
    record_of,
    write_record,
)
from bert_jax_lab.studies.runs import (
    FinetuneRun,
    PretrainRun,
    ProbeRun,
    StudyPlan,
    StudyRun,
)

ASKED = "asked.json"
# Makes a run, given the descriptor of its lock, and a function for the lines of its log.
Execute = Callable[[StudyRun, int, Callable[[str], None]], Outcome]


def claim(plan: StudyPlan) -> None:
    """Makes the directory the workdir of a study.

    Raises ResumeRefused where it holds another one, and UsageError where it holds something else.
    """
    path = plan.workdir / ASKED
    if plan.workdir.is_dir() and not path.exists() and any(plan.workdir.iterdir()):
        raise UsageError(
            f"`workdir` {plan.workdir} is not empty and holds no study; choose another directory"
        )
    plan.workdir.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write_json(path, plan.asked)
        return
    held = strict_json.load_object(path)
    for name, value in plan.asked.items():
        if held.get(name) != value:
            raise ResumeRefused(
                f"`workdir` {plan.workdir} holds a study whose {name} is {held.get(name)!r}, not "
                f"{value!r}; give what it was begun with, or choose another `workdir`"
            )


def _has_its_needs(plan: StudyPlan, run: StudyRun) -> bool:
    """Returns whether all is done that a run needs."""
    return all(is_done(record_of(plan.workdir, needed)) for needed in run.needs)


def write_rows(plan: StudyPlan) -> None:
    """Writes the rows of the tasks, if the corpus that they are made of is there.

    Raises UsageError where the corpus has too few sentences: before anything is trained.
    """
    has_rules = any(task.rule for task in plan.study.tasks)
    if has_rules and (plan.corpus / "corpus.json").is_file():
        with file_lock.hold(plan.workdir / "locks" / "rows", waits=True):
            corpus_tasks.write_rows(plan)


def missing(plan: StudyPlan) -> list[StudyRun]:
    """Returns the runs that are still to be made: not those that need one that has failed."""
    lost: set[str] = set()
    found = []
    for run in plan.runs:
        record = record_of(plan.workdir, run)
        if is_done(record):
            continue
        if is_settled(record) or lost & {needed.name for needed in run.needs}:
            lost.add(run.name)
        else:
            found.append(run)
    return found


def make_missing(
    plan: StudyPlan,
    execute: Execute,
    *,
    stopped_by: Callable[[], str],
    only: Callable[[StudyRun], bool] = lambda run: True,
    waits: bool = True,
) -> ListProgress[StudyRun]:
    """Makes the runs that are missing, in their order; a run that fails is recorded and passed.

    `stopped_by` returns, between runs, the name of a signal that came, or "budget" where the time
    is up. Where only runs are left that other processes hold, or that need those, it waits, unless
    `waits` is false. study.json is written anew after each run. Raises Preempted and Interrupted,
    and the error of a run that met what is not its own fault: a full disk, a damaged corpus.
    """

    def is_ready(run: StudyRun, left: Sequence[StudyRun]) -> bool:
        return _has_its_needs(plan, run)

    def is_stopped(run: StudyRun) -> bool:
        reason = stopped_by()
        if reason:
            _require_budget(Outcome(0, "stopped between two runs", reason), run)
        return bool(reason)

    def make(run: StudyRun, held: int, left: Sequence[StudyRun]) -> bool:
        where = f"{len(plan.runs) - len(left) + 1}/{len(plan.runs)} {run.name}"
        note(f"{where}: begins")
        return _make(plan, run, execute, held, where)

    return run_list.make_missing(
        lambda: [run for run in missing(plan) if only(run)],
        make,
        is_ready=is_ready,
        hold=lambda run: file_lock.hold(plan.workdir / "locks" / run.name),
        is_stopped=is_stopped,
        waits=waits,
    )


def _make(plan: StudyPlan, run: StudyRun, execute: Execute, held: int, where: str) -> bool:
    """Makes one run and records how it ended; returns False where the time was up before."""
    if isinstance(run, FinetuneRun) and run.rows is not None:
        write_rows(plan)
    if isinstance(run, ProbeRun):
        run.directory.mkdir(parents=True, exist_ok=True)
    gone = [needed for needed in run.needs if not needed.directory.is_dir()]
    if gone:
        record = plan.workdir / "records" / f"{gone[0].name}.json"
        message = f"{gone[0].directory}, which it needs, is gone; to make it again, remove {record}"
        outcome = Outcome(UsageError.exit_code, message)
    elif isinstance(run, PretrainRun) and begins_elsewhere(run):
        outcome = Outcome(ResumeRefused.exit_code, "its workdir began from another model")
    else:
        outcome = execute(run, held, lambda line: note(f"{where}: {line}"))
    if outcome.code and (outcome.stopped_by or outcome.code in STOPPING):
        _require_budget(outcome, run)
        return False
    record = write_record(plan.workdir, run, outcome)
    if record["status"] != DONE:
        note(f"{where}: failed with exit code {outcome.code}: {record['reason']}")
    summary.write_json_only(plan)
    return True


def _require_budget(outcome: Outcome, run: StudyRun) -> None:
    """Raises the error of a run that was stopped, unless its time was up."""
    if outcome.stopped_by == "budget":
        return
    message = f"{run.name}: {outcome.reason}; the same command goes on with the study"
    error: BertJaxError
    if outcome.stopped_by == "SIGINT" or outcome.code == Interrupted.exit_code:
        error = Interrupted(message)
    elif outcome.stopped_by or outcome.code == Preempted.exit_code:
        error = Preempted(message)
    else:
        error = with_exit_code(outcome.code, message)
    raise error
