"""One run from its beginning, or from its newest good step, to its end: pre-training or a task.

A run is a function of its config and data: step N's batch, masks and dropout follow from the seed
and N, so a run that was interrupted goes on from its newest checkpoint with one integer and ends
with the same bits as one that was not.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax

from bert_jax.config import TrainConfig, flatten
from bert_jax.config.resume import Change
from bert_jax.errors import Diverged, Interrupted, NonFinite, Preempted, UsageError
from bert_jax.files import write_json
from bert_jax.model import bert
from bert_jax.progress import Progress, note
from bert_jax.runtime import distributed
from bert_jax.runtime.preemption import Preemption
from bert_jax.runtime.watchdog import COMPILE_PATIENCE, Watchdog
from bert_jax.training.divergence import Divergence, SkippedUpdates
from bert_jax.training.hooks import (
    STOP,
    EvaluationSchedule,
    Hook,
    Profile,
    asked_by,
    evaluates_at,
    of_process_0,
)
from bert_jax.training.job import Row, Scores, TrainingJob
from bert_jax.training.loop import PhaseEnd, Run, train_phase
from bert_jax.training.saving import Saver, SaveSchedule, require_room
from bert_jax.training.step_log import StepLog
from bert_jax.update.state import TrainState
from bert_jax.workdir import checkpoint, log_reader, recovery, run_directory, trackers
from bert_jax.workdir.location import Location
from bert_jax.workdir.metrics_log import MetricsLogger

# tf.data waits, when its iterator goes, for what its threads are doing. The iterators of runs that
# received a signal stay until the process ends.
_abandoned: list[Any] = []
# Why a run stopped before its end, as its log has it.
_REASONS = {Interrupted: "Ctrl-C", Diverged: "diverged", NonFinite: "non-finite"}


@dataclass(kw_only=True)
class RunSetup:
    """Where a run is, what of it is there already, and how it comes to be there."""

    location: Location
    # Whether the run is there already, and what may differ from how it is described there.
    is_held: bool
    changes: list[Change] = field(default_factory=list)
    # What each checkpoint's manifest says of the run.
    facts: dict[str, Any] = field(default_factory=dict)
    # Makes the directory the run's, or writes down the changes. In process 0.
    create: Callable[[], None]
    change: Callable[[], None] = lambda: None


class Closing(NamedTuple):
    """How a run ended: its last step, row of training and scores, and what hooks add to them."""

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
    """Runs, resumes or only reports a job in its directory, on the mesh that is set.

    `hooks` come after those that guard a run, and before those that log it. Steps in
    `profile_steps` are traced to `profile/`. `started` is the process's beginning on the monotonic
    clock. Raises Preempted, NonFinite, Diverged, StorageFailed and NoUsableCheckpoint; the state
    that they leave is on disk.
    """
    config, mesh = job.config, job.mesh
    directory, name = setup.location.path, setup.location.name
    trackers.require_installed(config.trackers)
    log = StepLog()
    hooks = [SkippedUpdates(), Divergence(), *hooks, log, Profile(profile_steps),
             EvaluationSchedule(), SaveSchedule(config.checkpoint, mesh=mesh)]  # fmt: skip
    kept = {name: file for hook in hooks for name, file in hook.prepare(job, directory).items()}
    with Preemption() as preemption, Watchdog(config.deadline_seconds) as watchdog:
        preemption.doing, preemption.is_idle = (lambda: watchdog.doing), True
        preemption.suspended = watchdog.suspended
        # 0. Every process has looked before one of them writes.
        watchdog.at("meeting the other processes")
        distributed.barrier(mesh)

        # 1. The state, and the logs rewound to where it stands.
        # A beginning is compiled, and a checkpoint of many gigabytes comes from far away.
        watchdog.at("restoring", patience=COMPILE_PATIENCE)
        restoring = time.monotonic()
        state, resumed_from = _restore(job, setup, kept)
        step = resumed_from or 0
        rows = log_reader.set_aside_after(directory, step) if distributed.is_main() else []
        logger = _open_logs(config, setup, step, resumed_from, restoring=restoring, started=started)
        watchdog.on_slow = lambda process, share: logger.event(
            "slow_process", process=process, share=share
        )
        _introduce(job, state, resumed_from)

        # 2. The phases. Schedule, state and data cursor go through them unbroken.
        saver = Saver(
            checkpoint.Checkpoints(
                directory,
                config.checkpoint,
                facts=setup.facts,
                on_saved=lambda step, seconds: logger.event("save", step=step, seconds=seconds),
            ),
            logger=logger,
            watchdog=watchdog,
            location=setup.location,
            mesh=mesh,
            max_failed=config.checkpoint.max_failed_saves,
            saved_step=step,
        )
        preemption.kept = lambda: _kept(saver.saved_step)
        preemption.kept_by_now = lambda: _kept(saver.whole_step)
        with Progress(job.title, total=config.total_steps, done=step) as bar:
            shared = {"logger": logger, "preemption": preemption, "watchdog": watchdog}
            run = Run(job=job, directory=directory, hooks=hooks, log=log, saver=saver, bar=bar,
                      step=step, **shared)  # fmt: skip
            try:
                end = _train_phases(run, state, resumed_from, rows)
            except (Preempted, NonFinite, Diverged) as error:
                if not distributed.all_end():
                    _abandoned.append(run.feed)
                    raise
                saver.finish()
                why = next((text for kind, text in _REASONS.items() if isinstance(error, kind)), "")
                if why:
                    logger.event("stop", step=run.step, reason=why)
                else:
                    logger.event("preempt", step=run.step)
                _abandoned.append(run.feed)
                _close(run)
                raise
            except (UsageError, MemoryError, RuntimeError):  # as a rule, memory is short
                _abandoned.append(run.feed)
                # Closing asks all processes how their saves went; the others are in a step.
                if jax.process_count() == 1:
                    _close(run)
                raise

        # 3. The end. A run that had ended before is only reported.
        saver.finish()
        if end.stopped:
            note(f"{name} stops at step {run.step} of {config.total_steps}: {end.stopped}")
        elif resumed_from == config.total_steps and not (end.row or end.scores):
            note(f"{name} is already at its last step, {step}; nothing left to do")
        # A process that trained only the end, or nothing, reports the rows of the others.
        last_row, last_scores = log_reader.closing_rows(log_reader.read_rows(directory))
        reason = {"reason": end.stopped} if end.stopped else {}
        logger.event("stop", step=run.step, seconds=time.monotonic() - started, **reason)
        if end.stopped:
            _abandoned.append(run.feed)
        _close(run)
    figures = {k: v for hook in hooks for k, v in hook.closing_figures(run.step).items()}
    return Closing(run.step, last_row | end.row, last_scores | end.scores, figures)


def _kept(step: int | None) -> str:
    """Returns what a message says of the step that is saved; None: the last save has failed."""
    if step == 0:
        return "nothing was saved yet; the same command starts from the beginning"
    if step is None:
        return "the last save has failed: the same command goes on from the step before"
    return f"step {step} is saved and the same command goes on from it"


def _restore(
    job: TrainingJob, setup: RunSetup, kept: dict[str, Any]
) -> tuple[TrainState, int | None]:
    """Returns the newest good state and its step, or the initial one and None.

    Nothing is written before it is known that the run can begin; then the files `kept` are, too.
    """
    config, mesh = job.config, job.mesh
    directory, name = setup.location.path, setup.location.name

    def prepare_resume() -> int | None:
        # Another host may see later that there is a run.
        if not setup.is_held:
            return None
        return recovery.prepare_resume(directory)

    resumed_from = distributed.broadcast_from_main(prepare_resume, mesh=mesh)
    if (resumed_from or 0) > config.total_steps:
        raise UsageError(
            f"{name} is at step {resumed_from}, beyond the {config.total_steps} of "
            "this config; lengthen its phases, or go back with 'bert-jax checkpoints rollback'"
        )
    if (resumed_from or 0) < config.total_steps:
        abstract = TrainState.abstract(config, mesh)
        distributed.broadcast_from_main(
            lambda: require_room(setup.location, config, abstract), mesh=mesh
        )
    state = job.initial_state() if resumed_from is None else None
    if distributed.is_main():
        if not setup.is_held:
            setup.create()
        elif setup.changes:
            setup.change()
        for name, value in kept.items():
            write_json(directory / name, value)
        setup.location.sync()
    distributed.barrier(mesh)
    if state is None:
        state = checkpoint.load_state(directory, step=resumed_from or 0, config=config, mesh=mesh)
    return state, resumed_from


def _open_logs(
    config: TrainConfig,
    setup: RunSetup,
    step: int,
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
    logger.event(
        "start",
        step=step,
        **run_directory.hardware(),
        versions=run_directory.versions(),
        seconds=time.monotonic() - started,
    )
    if resumed_from is not None:
        logger.event("resume", step=step, seconds=time.monotonic() - restoring)
    if setup.changes:
        logger.event("change", step=step, fields=[list(change) for change in setup.changes])
    return logger


def _introduce(job: TrainingJob, state: TrainState, resumed_from: int | None) -> None:
    size = bert.parameter_count(state.params) / 1e6
    where = "a new run" if resumed_from is None else f"resuming at step {resumed_from}"
    note(
        f"{job.config.name}: {size:.1f} M parameters, {job.introduction}, "
        f"{jax.device_count()} x {jax.devices()[0].device_kind}, {where} of "
        f"{job.config.total_steps}"
    )


def _train_phases(
    run: Run, state: TrainState, resumed_from: int | None, rows: Sequence[Row]
) -> PhaseEnd:
    """Trains what is left of each phase; returns how the last one of this process ended."""
    step, first_step, mesh = resumed_from or 0, 0, run.job.mesh
    answers = [hook.begin(run, step, rows) for hook in run.hooks]
    asked = asked_by(run.hooks, of_process_0(answers, mesh=mesh))
    owes = _owes_evaluation(run.job, resumed_from, rows)
    end = PhaseEnd(state, {}, {}, asked[STOP].stop(step) if STOP in asked else "")
    for number, last_step in enumerate(run.job.config.phase_ends):
        is_left = step < last_step or (owes and first_step < step == last_step)
        if is_left and not end.stopped:
            try:
                found = train_phase(
                    run,
                    end.state,
                    phase=number,
                    step=step,
                    last_step=last_step,
                    owes_evaluation=owes and first_step <= step,
                )
            finally:
                run.end_phase()
            end = found._replace(scores=found.scores or end.scores)
            step, owes = last_step, False
        first_step = last_step
    return end


def _owes_evaluation(job: TrainingJob, step: int | None, rows: Sequence[Row]) -> bool:
    """Returns whether an evaluation is due where the run begins, or where it goes on and a
    preemption prevented it.
    """
    step = step or 0
    if not (evaluates_at(job.config, step) if step else job.begins_trained):
        return False
    has_row = any(row["step"] == step and row.get("split") is not None for row in rows)
    # Process 0 has the rows.
    return distributed.broadcast_from_main(lambda: int(not has_row), mesh=job.mesh) == 1


def _close(run: Run) -> None:
    for hook in run.hooks:
        hook.close()
    run.saver.close()
    run.watchdog.at("closing")
    run.logger.close()
    if distributed.is_main():
        run.saver.location.sync()
