"""One run from its beginning, or from its newest good step, to its end: pre-training or a task.

A run is a function of its config and data: step N's batch, masks and dropout follow from the seed
and N, so a run that was interrupted goes on from its newest checkpoint with one integer and ends
with the same bits as one that was not.
"""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from bert_jax.config import TrainConfig, flatten
from bert_jax.errors import Diverged, NonFinite, Preempted, UsageError
from bert_jax.files import write_json
from bert_jax.model import bert
from bert_jax.progress import Progress, note
from bert_jax.runtime import distributed
from bert_jax.runtime.preemption import Preemption
from bert_jax.runtime.watchdog import COMPILE_PATIENCE, Watchdog
from bert_jax.training.divergence import Divergence
from bert_jax.training.job import Scores, Work
from bert_jax.training.loop import TrainingContext, train_phase
from bert_jax.training.save_schedule import SaveSchedule, require_room
from bert_jax.training.saver import Saver
from bert_jax.update.state import TrainState
from bert_jax.workdir import (
    checkpoint,
    log_reader,
    recovery,
    remote_workdir,
    run_directory,
    trackers,
)
from bert_jax.workdir.metrics_log import MetricsLogger
from bert_jax.workdir.resume_policy import Change
from bert_jax_lab.reference_curves.watch import Watch

# tf.data waits, when its iterator goes, for what its threads are doing. The iterators of runs that
# received a signal stay until the process ends.
_abandoned: list[Any] = []


@dataclass(kw_only=True)
class RunDirectory:
    """The directory of a run, and how the run comes to be there."""

    directory: Path
    # As the user calls it: it may be in a bucket.
    name: Path | str
    # Whether the run is there already, and what may differ from how it is described there.
    is_held: bool
    changes: list[Change] = field(default_factory=list)
    # What each checkpoint's manifest says of the run.
    facts: dict[str, Any] = field(default_factory=dict)
    # Makes the directory the home of the run, or writes down the changes. In process 0.
    create: Callable[[], None]
    change: Callable[[], None] = lambda: None
    # Whether what the run begins with is scored, too: of a model that goes on.
    scores_beginning: bool = False
    # Files that are kept in the directory, too: name -> a value that JSON has.
    kept: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Closing:
    """The closing figures of a run: the last row of training and the last scores."""

    step: int
    row: dict[str, Any]
    scores: Scores


def run(
    work: Work,
    home: RunDirectory,
    *,
    begin: Callable[[], TrainState],
    started: float,
    resume_step: int | None = None,
    profile_steps: range | None = None,
) -> Closing:
    """Runs, resumes or only reports `work` in its home, on the mesh that is set.

    `begin` returns the state of a new run. `resume_step` goes back to an earlier step, once. Steps
    in `profile_steps` are traced to `profile/`. `started` is the process's beginning on the
    monotonic clock. Raises Preempted, NonFinite, Diverged, StorageFailed and NoUsableCheckpoint;
    the state that they leave is on disk.
    """
    config, mesh, directory = work.config, work.mesh, home.directory
    trackers.require_installed(config.trackers)
    if resume_step is not None and not home.is_held:
        raise UsageError(f"`resume_step` {resume_step}: `workdir` {home.name} holds no run yet")
    with Preemption() as preemption, Watchdog(config.deadline_seconds) as watchdog:
        preemption.doing, preemption.is_idle = (lambda: watchdog.doing), True
        # 0. Every process has looked before one of them writes.
        watchdog.at("meeting the other processes")
        distributed.barrier(mesh)

        # 1. The state, and the logs rewound to where it stands.
        # A beginning is compiled, and a checkpoint of many gigabytes comes from far away.
        watchdog.at("restoring", patience=COMPILE_PATIENCE)
        restoring = time.monotonic()
        state, resumed_from = _restore(work, home, begin, resume_step)
        step = resumed_from or 0
        rows = log_reader.set_aside_after(directory, step) if distributed.is_main() else []
        logger = _open_logs(config, home, step, resumed_from, restoring=restoring, started=started)
        watchdog.on_slow = lambda process, share: logger.event(
            "slow_process", process=process, share=share
        )
        _introduce(work, state, resumed_from)

        # 2. The phases. Schedule, state and data cursor go through them unbroken.
        saver = Saver(
            checkpoint.Checkpoints(
                directory,
                config.checkpoint,
                facts=home.facts,
                on_saved=lambda step, seconds: logger.event("save", step=step, seconds=seconds),
            ),
            logger=logger,
            watchdog=watchdog,
            directory=directory,
            mesh=mesh,
            max_failed=config.checkpoint.max_failed_saves,
            saved_step=step,
        )
        preemption.kept = lambda: _kept(saver.saved_step)
        with Progress(work.title, total=config.total_steps, done=step) as bar:
            this = TrainingContext(
                work=work,
                directory=directory,
                logger=logger,
                preemption=preemption,
                watchdog=watchdog,
                saver=saver,
                schedule=SaveSchedule(config.checkpoint, mesh=mesh, step=step),
                bar=bar,
                divergence=Divergence(work.objective.guessing(config.model), warn=bar.print),
                watch=_watch(work, logger, bar, rows, step=step),
                profile_steps=profile_steps or range(0),
                scores_beginning=home.scores_beginning,
                skipped=log_reader.skipped_steps(directory, step),
                step=step,
            )
            try:
                row, scores = _phases(this, state, resumed_from, rows)
            except (Preempted, NonFinite, Diverged) as error:
                saver.finish()
                if isinstance(error, Preempted):
                    logger.event("preempt", step=this.step)
                else:
                    reason = "diverged" if isinstance(error, Diverged) else "non-finite"
                    logger.event("stop", step=this.step, reason=reason)
                _abandoned.append(this.feed)
                _close(this)
                raise
            except (UsageError, MemoryError, RuntimeError):  # as a rule, memory is short
                _abandoned.append(this.feed)
                # Closing asks all processes how their saves went; the others are in a step.
                if jax.process_count() == 1:
                    _close(this)
                raise

        # 3. The end. A run that was already finished only says so.
        saver.finish()
        if profile_steps and profile_steps.start >= config.total_steps:
            note(f"no step of `profile_steps` was reached: the run has {config.total_steps}")
        if resumed_from == config.total_steps and not (row or scores):
            note(f"{home.name} is already at its last step, {step}; nothing left to do")
        # A process that trained only the end, or nothing, tells of the others' rows.
        last_row, last_scores = log_reader.closing_rows(log_reader.read_rows(directory))
        logger.event("stop", step=config.total_steps, seconds=time.monotonic() - started)
        _close(this)
    return Closing(step=config.total_steps, row=last_row | row, scores=last_scores | scores)


def _kept(step: int | None) -> str:
    """Returns the line about the step that is saved; None where the last save has failed."""
    if step == 0:
        return "nothing was saved yet; the same command starts from the beginning"
    if step is None:
        return "the last save has failed: the same command goes on from the step before"
    return f"step {step} is saved and the same command goes on from it"


def _restore(
    work: Work, home: RunDirectory, begin: Callable[[], TrainState], resume_step: int | None
) -> tuple[TrainState, int | None]:
    """Returns the newest good state and its step, or a beginning and None.

    Nothing is written before the beginning is known to be possible.
    """
    config, mesh, directory = work.config, work.mesh, home.directory
    resumed_from = None
    if home.is_held:
        resumed_from = distributed.broadcast_from_main(
            lambda: recovery.prepare_resume(directory, resume_step=resume_step, facts=home.facts),
            mesh=mesh,
        )
    if (resumed_from or 0) > config.total_steps:
        raise UsageError(
            f"{home.name} is at step {resumed_from}, beyond the {config.total_steps} of "
            "this config; lengthen its phases, or go back with `resume_step` N"
        )
    if (resumed_from or 0) < config.total_steps:
        abstract = TrainState.abstract(config, mesh)
        distributed.broadcast_from_main(
            lambda: require_room(directory, config, abstract), mesh=mesh
        )
    state = begin() if resumed_from is None else None
    if distributed.is_main():
        if not home.is_held:
            home.create()
        elif home.changes:
            home.change()
        for name, value in home.kept.items():
            write_json(directory / name, value)
        remote_workdir.copy_back(directory)
    distributed.barrier(mesh)
    if state is None:
        state = checkpoint.load_state(directory, step=resumed_from or 0, config=config, mesh=mesh)
    return state, resumed_from


def _open_logs(
    config: TrainConfig,
    home: RunDirectory,
    step: int,
    resumed_from: int | None,
    *,
    restoring: float,
    started: float,
) -> MetricsLogger:
    logger = MetricsLogger(
        home.directory,
        is_writer=distributed.is_main(),
        name=str(home.name).rstrip("/").rpartition("/")[2],
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
    if home.changes:
        logger.event("change", step=step, fields=[list(change) for change in home.changes])
    return logger


def _watch(
    work: Work, logger: MetricsLogger, bar: Progress, rows: list[dict[str, Any]], *, step: int
) -> Watch | None:
    """Returns what looks at the losses of a run; None where nothing is known of them."""
    if work.expectation is None:
        return None

    def tell(step: int, reason: str, message: str) -> None:
        logger.event("unexpected", step=step, reason=reason, said=message)
        bar.print(f"warning: step {step}: {message}")

    watch = Watch(work.expectation, tell)
    watch.recall(rows)
    watch.begin(step)
    return watch


def _introduce(work: Work, state: TrainState, resumed_from: int | None) -> None:
    size = bert.parameter_count(state.params) / 1e6
    where = "a new run" if resumed_from is None else f"resuming at step {resumed_from}"
    note(
        f"{work.config.name}: {size:.1f} M parameters, {work.introduction}, "
        f"{jax.device_count()} x {jax.devices()[0].device_kind}, {where} of "
        f"{work.config.total_steps}"
    )


def _phases(
    this: TrainingContext, state: TrainState, resumed_from: int | None, rows: list[dict[str, Any]]
) -> tuple[dict[str, Any], Scores]:
    """Trains what is left of each phase; returns the last row and scores of this process."""
    owes = _owes_evaluation(this.work, resumed_from, rows, is_scored_at_0=this.scores_beginning)
    row: dict[str, Any] = {}
    scores: Scores = {}
    step, first_step = resumed_from or 0, 0
    for number, phase in enumerate(this.work.config.phases):
        last_step = first_step + phase.steps
        if step < last_step or (owes and first_step < step == last_step):
            state, row, found = train_phase(
                this,
                state,
                phase=number,
                step=step,
                last_step=last_step,
                past_rows=rows,
                owes_evaluation=owes and first_step <= step,
            )
            scores = found or scores
            step, rows, owes = last_step, [], False
        first_step = last_step
    return row, scores


def _owes_evaluation(
    work: Work, step: int | None, rows: list[dict[str, Any]], *, is_scored_at_0: bool
) -> bool:
    """Returns whether an evaluation is due where the run begins, or where it goes on and a
    preemption prevented it.
    """
    config, step = work.config, step or 0
    ends = itertools.accumulate(phase.steps for phase in config.phases)
    every = config.evaluation.every_steps
    is_due = step in ends or (every and step % every == 0) if step else is_scored_at_0
    if not is_due:
        return False
    has_row = any(row["step"] == step and row.get("split") is not None for row in rows)
    # Process 0 has the rows.
    return distributed.broadcast_from_main(lambda: int(not has_row), mesh=work.mesh) == 1


def _close(this: TrainingContext) -> None:
    this.saver.close()
    this.watchdog.at("closing")
    this.logger.close()
    if distributed.is_main():
        remote_workdir.copy_back(this.directory)
