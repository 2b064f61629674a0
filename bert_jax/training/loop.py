"""The loop: the steps of one phase, and what is logged, evaluated and saved between them."""

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from bert_jax.errors import NonFinite, Preempted
from bert_jax.progress import Progress, note, ticking
from bert_jax.runtime.preemption import Preemption
from bert_jax.runtime.watchdog import COMPILE_PATIENCE, Watchdog
from bert_jax.training import device_feed
from bert_jax.training.compiled_steps import CompiledSteps
from bert_jax.training.divergence import Divergence
from bert_jax.training.job import Evaluation, Scores, Work
from bert_jax.training.save_schedule import SaveSchedule
from bert_jax.training.saver import Saver
from bert_jax.training.step_timer import StepTimer
from bert_jax.update.state import TrainState
from bert_jax.workdir.metrics_log import MetricsLogger
from bert_jax_lab.reference_curves.watch import Watch

# Global batches on their way to the devices ahead of the step.
_DEVICE_PREFETCH = 2


@dataclass(kw_only=True)
class TrainingContext:
    """The objects that the phases of one process share. None of them outlives the process."""

    work: Work
    directory: Path
    logger: MetricsLogger
    preemption: Preemption
    watchdog: Watchdog
    saver: Saver
    schedule: SaveSchedule
    bar: Progress
    divergence: Divergence
    # Says when the losses are not those of a healthy run; of tasks nothing is known.
    watch: Watch | None
    profile_steps: range
    # Updates left out so far, over all processes that worked on this run.
    skipped: int
    # The last step that began.
    step: int
    # Whether what the run begins with is scored, too.
    scores_beginning: bool = False
    feed: Future | None = None

    @property
    def is_spent(self) -> bool:
        """Returns whether more updates were left out than may be."""
        return self.skipped > self.work.config.optimizer.max_skipped_updates


def train_phase(
    run: TrainingContext,
    state: TrainState,
    *,
    phase: int,
    step: int,
    last_step: int,
    past_rows: list[dict[str, Any]],
    owes_evaluation: bool,
) -> tuple[TrainState, dict[str, Any], Scores]:
    """Trains from `step` to `last_step`, all within `phase`; returns its last row and scores.

    `owes_evaluation` says that the state was saved at a step of this phase whose evaluation a
    preemption prevented. Raises Preempted when the state is saved after SIGTERM, NonFinite when too
    many updates were left out, Diverged when the loss stays far too high.
    """
    config, run.step = run.work.config, step
    steps, evaluation, batches = _prepare(run, state, phase, step, last_step)
    run.preemption.is_idle = False
    run.logger.open_curves(past_rows)
    log = _StepLog(run, phase)
    scores: Scores = {}
    if owes_evaluation:
        found = _evaluate(run, evaluation, state, step)
        if found is None:
            raise run.preemption.preemption_error()
        scores = found
        log.restart()

    tracing, is_on_cpu = False, jax.default_backend() == "cpu"
    while step < last_step:
        if step in run.profile_steps and not tracing:
            jax.profiler.start_trace(str(run.directory / "profile"))
            tracing = True
        try:
            batch = _next_batch(run, batches, step, log)
            if not steps.is_ready(batch):
                with log.paused():
                    steps.wait(state, batch)
        except Preempted:
            log.finish()
            if run.saver.saved_step == step:
                raise
            run.saver.save_for_good(state, step)
            raise run.preemption.preemption_error() from None
        run.watchdog.at(f"step {step + 1}")
        # The step is dispatched first; only then is the one before it waited for. Not on a CPU: a
        # second step in flight has its temporaries beside those of the first (docs/benchmarks.md,
        # "Memory of the host").
        if is_on_cpu:
            log.finish()
        state, device_metrics = steps(state, batch)
        log.finish()
        run.step = step = step + 1
        log.began(step, device_metrics)

        preempted = run.preemption.requested() and step != config.total_steps
        evaluate = step == last_step or _is_due(step, config.evaluation.every_steps)
        save = preempted or run.is_spent or step == last_step
        save = save or run.schedule.is_due(step)
        traced = tracing and (step not in run.profile_steps or step == last_step)
        if not (evaluate or save or traced):
            continue
        log.finish()
        if traced:
            jax.profiler.stop_trace()
            tracing = False
            run.bar.print(f"a profile that ends with step {step}: {run.directory / 'profile'}")
        with log.paused():
            # First of all the state is safe: an evaluation may take longer than the machine is
            # there. This very step may have spent the budget of updates left out.
            if preempted or run.is_spent or step == config.total_steps:
                run.saver.save_for_good(state, step)
            elif save:
                run.saver.save(state, step)
            if save:
                run.schedule.saved(step)
            if evaluate and not preempted and not run.is_spent:
                found = _evaluate(run, evaluation, state, step)
                preempted = found is None
                scores = found or scores
                if preempted:
                    run.saver.finish()
                    if run.saver.saved_step != step:
                        run.saver.save_for_good(state, step)
        if preempted:
            raise run.preemption.preemption_error()
        if run.is_spent:
            _stop_at_non_finite(run, step)
    return state, log.latest | log.overall_speed(), scores


def _prepare(
    run: TrainingContext, state: TrainState, phase: int, step: int, last_step: int
) -> tuple[CompiledSteps, Evaluation, Iterator[Future]]:
    """Compiles and opens the data at the same time, all in the background: a signal is heard.

    TensorFlow takes seconds to import: it does so while the steps compile.
    """
    work, phase_config = run.work, run.work.config.phases[phase]
    background = ThreadPoolExecutor(max_workers=3, thread_name_prefix="prepare")
    run.feed = opening = background.submit(_open_feed, work, phase, step, last_step)
    steps = CompiledSteps(
        work,
        phase=phase,
        background=background,
        logger=run.logger,
        preemption=run.preemption,
        watchdog=run.watchdog,
    )
    abstract = work.abstract_batch(phase)
    if abstract is not None:
        note(f"phase {phase}: compiling for {phase_config.global_batch_size} x "
             f"{phase_config.sequence_length} ...")  # fmt: skip
        run.watchdog.at(f"compiling phase {phase}", patience=COMPILE_PATIENCE)
        steps.begin(state, abstract)
    evaluation = work.evaluation(phase, state.params)
    run.preemption.wait(background.submit(evaluation.prepare))
    if abstract is not None:
        steps.wait(state, abstract)
    run.watchdog.at("opening the data")
    opened = time.monotonic()
    batches = run.preemption.wait(opening)
    run.logger.event("open", phase=phase, seconds=time.monotonic() - opened)
    return steps, evaluation, batches


def _open_feed(work: Work, phase: int, step: int, last_step: int) -> Iterator[Future]:
    return device_feed.ahead(work.batches(phase, step, last_step), depth=_DEVICE_PREFETCH)


def _next_batch(run: TrainingContext, batches: Iterator[Future], step: int, log: "_StepLog") -> Any:
    """Returns the next batch. Raises Preempted if the process is to go while it waits for it."""
    run.watchdog.at(f"waiting for the data of step {step + 1}")
    with log.waiting(), run.watchdog.waiting():
        batch = run.preemption.wait(next(batches))
    assert batch is not None, "the data ended before the phase"
    return batch


class _StepLog:
    """Reads the metrics of finished steps, and writes their rows."""

    def __init__(self, run: TrainingContext, phase: int):
        self._run, self._phase = run, phase
        self._timer, self._whole = StepTimer(), StepTimer()
        # The step that is dispatched and not yet waited for, with its metrics.
        self._pending: tuple[int, dict[str, jax.Array]] | None = None
        self.latest: dict[str, Any] = {}

    def began(self, step: int, device_metrics: dict[str, jax.Array]) -> None:
        self._pending = (step, device_metrics)

    def finish(self) -> None:
        """Waits for the dispatched step, if there is one, and writes its row where one is due."""
        if self._pending is None:
            return
        (step, device_metrics), self._pending = self._pending, None
        run, config = self._run, self._run.work.config
        values = {name: float(v) for name, v in jax.device_get(device_metrics).items()}
        self._timer.steps += 1
        self._whole.steps += 1
        if not values.pop("applied"):
            _note_skipped(run, step, values)
        run.divergence.see(step, values["loss"])
        if run.watch is not None:
            run.watch.see(step, values)
        run.bar.advance()
        seconds, steps = self._timer.seconds_per_step(), self._timer.steps
        run.preemption.step_seconds = seconds
        speed = run.work.speed(self._phase, seconds)
        run.bar.describe = lambda: f"step {step}  loss {values['loss']:.3f}  {_shown(speed)}"
        if step % config.log_every_steps == 0 or step == config.total_steps:
            row = {"step": step, **values, "step_seconds": seconds, **speed}
            row |= {"steps": steps, "time": time.time()}
            row["data_wait_seconds"] = self._timer.waited / steps
            self._timer.restart()  # before the row is written: that is part of the next step
            run.logger.row(**row)
            self.latest = row

    def overall_speed(self) -> dict[str, float]:
        """Returns the figures of speed over all steps of this process in the phase."""
        if not self._whole.steps:
            return {}
        return self._run.work.speed(self._phase, self._whole.seconds_per_step())

    def restart(self) -> None:
        self._timer.restart()
        self._whole.restart()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves out of the time of steps what happens inside."""
        with self._timer.paused(), self._whole.paused():
            yield

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        """Counts what happens inside as waiting for data."""
        return self._timer.waiting()


def _evaluate(
    run: TrainingContext, evaluation: Evaluation, state: TrainState, step: int
) -> Scores | None:
    """Returns held-out scores, which are logged; None if a preemption cut the evaluation short."""

    patience = COMPILE_PATIENCE if evaluation.compiles_on_the_way else 1.0

    def cut_short() -> bool:
        run.watchdog.at(f"evaluating step {step}", patience=patience)
        return run.preemption.requested()

    began = time.monotonic()
    with ticking(f"step {step}: evaluating"):
        scores = run.preemption.cut_short(
            lambda: evaluation.run(state.params, cut_short=cut_short), mesh=run.work.mesh
        )
    if scores is None:
        return None
    for split, values in scores.items():
        run.logger.row(step=step, split=split, **evaluation.columns, **values)
    run.logger.event("evaluate", step=step, seconds=time.monotonic() - began)
    run.bar.print(f"step {step}: {run.work.describe(scores)}")
    if run.watch is not None and "validation" in scores:
        length = evaluation.columns.get("sequence_length")
        run.watch.evaluated(step, scores["validation"], length=length)
    return scores


def _note_skipped(run: TrainingContext, step: int, values: dict[str, float]) -> None:
    run.skipped += 1
    loss, norm = values["loss"], values["grad_norm"]
    run.logger.event("skip", step=step, loss=str(loss), grad_norm=str(norm))
    run.bar.print(
        f"step {step}: loss {loss}, gradient norm {norm}; this update is left out "
        f"({run.skipped} of {run.work.config.optimizer.max_skipped_updates} that may be)"
    )


def _stop_at_non_finite(run: TrainingContext, step: int) -> None:
    raise NonFinite(
        f"step {step}: {run.skipped} updates were left out, being not finite or spikes, more than "
        "optimizer.max_skipped_updates. The state without them is saved; lower "
        "optimizer.learning_rate or lengthen optimizer.warmup_steps in a new `workdir`, or go back "
        "to an earlier step (`resume_step`)"
    )


def _shown(speed: dict[str, float]) -> str:
    """Returns the first rate among the figures: "25,361 tokens/s"."""
    name = next(name for name in speed if name.endswith("_per_second"))
    return f"{speed[name]:,.0f} {name.removesuffix('_per_second')}/s"


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
