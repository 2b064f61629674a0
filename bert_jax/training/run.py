"""A run from its start, or from its newest good step, to its end: pre-training or a task.

A run is a function of its config and data: the batch, masks and dropout of step N follow from the
seed and N. So an interrupted run resumes from its newest checkpoint with one integer, and ends with
the same bits as a run that was never interrupted.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax

from bert_jax.config import TrainConfig, flatten
from bert_jax.config.resume import Change
from bert_jax.errors import Diverged, Interrupted, NonFinite, Preempted, UsageError, some
from bert_jax.model import bert
from bert_jax.progress import Progress, note
from bert_jax.runtime import distributed
from bert_jax.runtime.stop import Preemption
from bert_jax.runtime.watchdog import COMPILE_PATIENCE, Watchdog
from bert_jax.training.divergence import Divergence, SkippedUpdates
from bert_jax.training.hooks import Hook, Profile, agreed, evaluates_at
from bert_jax.training.job import Row, Run, Scores, TrainingJob
from bert_jax.training.loop import Loop, PhaseEnd, train_phase
from bert_jax.training.saving import Saver, room_problem, state_bytes
from bert_jax.training.step_log import StepLog
from bert_jax.update.state import TrainState
from bert_jax.workdir import checkpoint, log_reader, recovery, run_directory, trackers
from bert_jax.workdir.location import Location
from bert_jax.workdir.metrics_log import MetricsLogger

# A tf.data iterator waits for its threads when it is deleted. The iterators of runs that end early
# are kept until the process ends.
_abandoned: list[Any] = []
# The reasons of a `stop` event, for errors that all processes raise at the same step.
_REASONS = {Interrupted: "Ctrl-C", Diverged: "diverged", NonFinite: "non-finite"}


@dataclass(kw_only=True)
class RunSetup:
    """The directory of a run and how to create it."""

    location: Location
    # Whether the directory holds the run, and the fields that differ from the stored run.
    is_held: bool
    changes: list[Change] = field(default_factory=list)
    # Writes the files of a new run, or the changes. Called in process 0.
    create: Callable[[], None]
    change: Callable[[], None] = lambda: None


class Closing(NamedTuple):
    """The last step of a run, its training row and scores, and the closing metrics of hooks."""

    step: int
    row: Row
    scores: Scores
    figures: dict[str, Any]


def train(
    job: TrainingJob,
    setup: RunSetup,
    hooks: Sequence[Hook] = (),
    *,
    started: float,
    profile_steps: range = range(0),
) -> Closing:
    """Runs or resumes a job in its directory, on the mesh that is set; reports a finished one.

    Steps in `profile_steps` are traced to `profile/`. `started` is the start of the process on the
    monotonic clock. Raises Preempted, NonFinite, Diverged, StorageFailed and NoUsableCheckpoint;
    the state is on disk then.
    """
    config, directory, name = job.config, setup.location.path, setup.location.name
    trackers.require_installed(config.trackers)
    hooks = [SkippedUpdates(), Divergence(), *hooks, Profile(profile_steps)]
    for hook in hooks:
        hook.prepare(job, directory)
    with Preemption() as preemption, Watchdog(config.deadline_seconds) as watchdog:
        preemption.doing, preemption.is_idle = (lambda: watchdog.doing), True
        # All processes must have read the workdir before one of them writes to it.
        watchdog.at("meeting the other processes")
        distributed.barrier()
        # Initialization is compiled; a checkpoint may be many gigabytes in a remote bucket.
        watchdog.at("restoring", patience=COMPILE_PATIENCE)
        restoring = time.monotonic()
        state, resumed_from = _restore(job, setup)
        step = resumed_from or 0
        # Without a checkpoint, the next process may have other data: it evaluates step 0 again.
        kept_until = -1 if resumed_from is None else step
        rows = log_reader.set_aside_after(directory, kept_until) if distributed.is_main() else []
        logger = _open_logs(config, setup, resumed_from, restoring=restoring, started=started)
        _introduce(job, state, resumed_from, setup.changes)
        saver = Saver(
            setup.location,
            config,
            logger=logger,
            watchdog=watchdog,
            saved_step=step,
            kept=job.kept_steps(),
        )
        preemption.kept = lambda: _kept(saver.whole_step)
        bar = Progress(job.title, total=config.total_steps, done=step)
        seen = {"job": job, "directory": directory, "logger": logger, "bar": bar}
        loop = Loop(
            **seen,
            hooks=hooks,
            log=StepLog(Run(**seen), rows),
            preemption=preemption,
            watchdog=watchdog,
            saver=saver,
            step=step,
        )
        with bar:
            try:
                end = _train_phases(loop, state, resumed_from, rows)
            except (Preempted, NonFinite, Diverged, UsageError, MemoryError, RuntimeError) as error:
                _end_early(loop, error)
                raise
        saver.finish()
        if loop.stop:
            note(f"{name} stops at step {loop.step} of {config.total_steps}: {loop.stop}")
            _abandoned.append(loop.feed)
        elif resumed_from == config.total_steps and not (end.row or end.scores):
            note(f"{name} is already at its last step, {step}; nothing left to do")
        # Rows of earlier processes, for a process that trained only the end of the run.
        last_row, last_scores = log_reader.closing_rows(log_reader.read_rows(directory))
        reason = {"reason": loop.stop} if loop.stop else {}
        logger.event("stop", step=loop.step, seconds=time.monotonic() - started, **reason)
        _close(loop)
    figures = {k: v for hook in hooks for k, v in hook.closing_figures(loop.step).items()}
    return Closing(loop.step, last_row | end.row, last_scores | end.scores, figures)


def _kept(step: int) -> str:
    """Returns a clause about the saved step, for messages."""
    if step == 0:
        return "nothing was saved yet; the same command starts from the beginning"
    return f"step {step} is saved and the same command resumes from it"


def _restore(job: TrainingJob, setup: RunSetup) -> tuple[TrainState, int | None]:
    """Returns the newest good state and its step, or the initial state and None.

    Writes the run to the workdir once it is certain that the run can start.
    """
    config, mesh = job.config, job.mesh
    directory, name = setup.location.path, setup.location.name
    # Only process 0 decides: another host may see later that the workdir holds a run.
    resumed_from = distributed.broadcast_from_main(
        lambda: recovery.prepare_resume(directory) if setup.is_held else None
    )
    if (resumed_from or 0) > config.total_steps:
        raise UsageError(
            f"{name} is at step {resumed_from}, beyond the {config.total_steps} of "
            "this config; lengthen its phases, or go back with 'bert-jax checkpoints rollback'"
        )

    def require_room() -> None:
        size = state_bytes(TrainState.abstract(config, mesh))
        if problem := room_problem(directory, config, size):
            note(f"warning: {problem}")

    if (resumed_from or 0) < config.total_steps and not setup.location.is_in_bucket:
        distributed.broadcast_from_main(require_room)
    state = job.initial_state() if resumed_from is None else None
    if distributed.is_main():
        if not setup.is_held:
            setup.create()
        elif setup.changes:
            setup.change()
        setup.location.sync()
    distributed.barrier()
    if state is None:
        state = checkpoint.load_state(directory, step=resumed_from or 0, config=config, mesh=mesh)
    return state, resumed_from


def _open_logs(
    config: TrainConfig,
    setup: RunSetup,
    resumed_from: int | None,
    *,
    restoring: float,
    started: float,
) -> MetricsLogger:
    logger = MetricsLogger(
        setup.location.path,
        is_writer=distributed.is_main(),
        name=str(setup.location.name).rstrip("/").rpartition("/")[2],
        trackers=config.trackers,
        config=flatten(config),
    )
    step, versions = resumed_from or 0, run_directory.versions()
    seconds = time.monotonic() - started
    logger.event("start", step=step, **run_directory.hardware(), versions=versions, seconds=seconds)
    if resumed_from is not None:
        logger.event("resume", step=step, seconds=time.monotonic() - restoring)
    if setup.changes:
        logger.event("change", step=step, fields=[list(change) for change in setup.changes])
    return logger


def _introduce(
    job: TrainingJob, state: TrainState, resumed_from: int | None, changes: Sequence[Change]
) -> None:
    size = bert.parameter_count(state.params)
    shown = f"{size / 1e6:.1f} M" if size >= 1e6 else f"{size:,}"
    where = "new run" if resumed_from is None else f"resuming at step {resumed_from}"
    changed = f"; changed: {some(path for path, _, _ in changes)}" if changes else ""
    note(
        f"{job.config.name}: {shown} parameters, {job.introduction}, "
        f"{jax.device_count()} x {jax.devices()[0].device_kind}, {where} of "
        f"{job.config.total_steps}{changed}"
    )


def _train_phases(
    loop: Loop, state: TrainState, resumed_from: int | None, rows: Sequence[Row]
) -> PhaseEnd:
    """Trains the remaining phases. The schedule and the state continue across phases.

    Returns the end of the last phase that this process trained.
    """
    answers = [hook.begin(loop, loop.step, rows) for hook in loop.hooks]
    loop.stop, _ = agreed(loop.hooks, answers)
    if isinstance(loop.stop, Exception):
        raise loop.stop
    owes = _owes_evaluation(loop.job, resumed_from, rows)
    end, first_step = PhaseEnd(state, {}, {}), 0
    for number, last_step in enumerate(loop.job.config.phase_ends):
        is_left = loop.step < last_step or (owes and first_step < loop.step == last_step)
        if is_left and loop.stop is None:
            try:
                found = train_phase(
                    loop, end.state, phase=number, last_step=last_step, owes_evaluation=owes
                )
            finally:
                loop.end_phase()
            end = found._replace(scores=found.scores or end.scores)
            owes = False
        first_step = last_step
    return end


def _owes_evaluation(job: TrainingJob, step: int | None, rows: Sequence[Row]) -> bool:
    """Returns whether the first step of this process must be evaluated: a new run that starts from
    a trained model, or a step that a preemption left without its evaluation.
    """
    step = step or 0
    if not (evaluates_at(job.config, step) if step else job.begins_trained):
        return False
    has_row = any(row["step"] == step and row.get("split") is not None for row in rows)
    # Only process 0 has the rows.
    return not distributed.of_main([has_row])[0]


def _end_early(loop: Loop, error: BaseException) -> None:
    """Closes a run that an error ends, unless another process waits in a step for this one."""
    _abandoned.append(loop.feed)
    if isinstance(error, Preempted | NonFinite | Diverged):  # raised by all processes
        if not distributed.all_end():
            return
        loop.saver.finish()
        why = next((text for kind, text in _REASONS.items() if isinstance(error, kind)), "")
        if why:
            loop.event("stop", step=loop.step, reason=why)
        else:
            loop.event("preempt", step=loop.step)
    elif jax.process_count() > 1:
        return
    _close(loop)


def _close(loop: Loop) -> None:
    for hook in loop.hooks:
        hook.close()
    loop.saver.close()
    loop.watchdog.at("closing")
    loop.logger.close()
    if distributed.is_main():
        loop.saver.location.sync()
