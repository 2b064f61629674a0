"""The loop: the steps of one phase, and what is read, saved and evaluated between them."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax

from bert_jax.errors import Preempted
from bert_jax.model.attention.implementation import serving
from bert_jax.progress import Progress, note, ticking
from bert_jax.runtime.preemption import Preemption
from bert_jax.runtime.watchdog import COMPILE_PATIENCE, Watchdog
from bert_jax.training import device_feed
from bert_jax.training.compiled_steps import CompiledSteps
from bert_jax.training.hooks import EVALUATE, SAVE, STOP, Action, Hook, asked_by, of_process_0
from bert_jax.training.job import Evaluation, Row, Scores, TrainingJob
from bert_jax.training.saving import Saver
from bert_jax.training.step_log import StepLog
from bert_jax.update.state import TrainState
from bert_jax.workdir.metrics_log import MetricsLogger

# Global batches on their way to the devices ahead of the step.
_DEVICE_PREFETCH = 2


@dataclass(kw_only=True)
class Run:
    """The state of one process that its phases share, and hooks see. It ends with the process."""

    job: TrainingJob
    directory: Path
    hooks: Sequence[Hook]
    log: StepLog
    logger: MetricsLogger
    preemption: Preemption
    watchdog: Watchdog
    saver: Saver
    bar: Progress
    # The last step that began.
    step: int
    feed: Future | None = None
    # The threads that compile, open the data and make the batches of a phase.
    workers: Sequence[ThreadPoolExecutor] = ()
    # The step that is dispatched and not yet waited for, with its metrics; and what hooks have
    # asked for when they saw metrics.
    pending: tuple[int, dict[str, jax.Array]] | None = None
    asked: dict[Action, Hook] = field(default_factory=dict)

    def print(self, text: str) -> None:
        """Shows a line above the bar."""
        self.bar.print(text)

    def event(self, name: str, **values: Any) -> None:
        """Writes a line of events.jsonl."""
        self.logger.event(name, **values)

    def end_phase(self) -> None:
        """Ends the threads of a phase, each after what it has in hand, without waiting for them."""
        for worker in self.workers:
            worker.shutdown(wait=False, cancel_futures=True)

    def read_metrics(self) -> None:
        """Waits for the dispatched step, if there is one, and shows its metrics to the hooks."""
        if self.pending is None:
            return
        (step, device_metrics), self.pending = self.pending, None
        metrics = {name: float(v) for name, v in jax.device_get(device_metrics).items()}
        self.preemption.is_idle = False  # from here on there is a step to save
        answers = [hook.on_metrics(step, metrics) for hook in self.hooks]
        self.asked = asked_by(self.hooks, answers) | self.asked


class PhaseEnd(NamedTuple):
    """How a phase ended: its last row and scores, and why the run stops there, if it does."""

    state: TrainState
    row: Row
    scores: Scores
    stopped: str = ""


def train_phase(
    run: Run, state: TrainState, *, phase: int, step: int, last_step: int, owes_evaluation: bool
) -> PhaseEnd:
    """Trains from `step` to `last_step`, all within `phase`, or until a hook stops the run.

    `owes_evaluation` says that the state was saved at a step of this phase whose evaluation a
    preemption prevented. Raises Preempted when the state is saved after SIGTERM, and what hooks
    raise: NonFinite when too many updates were left out, Diverged when the loss stays far too high.
    """
    run.step, scores = step, {}
    _announce(run, phase)
    try:
        with run.bar.paused():
            steps, evaluation, batches = _prepare(run, state, phase, step, last_step)
    except Preempted:
        _save_at_last(run, state, step)
        raise run.preemption.preemption_error() from None
    is_on_cpu = jax.default_backend() == "cpu"
    run.log.begin_phase(phase)
    if owes_evaluation:
        found = _evaluate(run, evaluation, state, step)
        if found is None:
            raise run.preemption.preemption_error()
        scores, asked = found
        if STOP in asked:
            return PhaseEnd(state, {}, scores, asked[STOP].stop(step))
        run.log.restart()

    while step < last_step:
        for hook in run.hooks:
            hook.before_step(step)
        try:
            batch = _next_batch(run, batches, step)
            if not steps.is_ready(batch):
                with run.log.paused(), run.bar.paused():
                    steps.wait(state, batch)
        except Preempted:
            run.read_metrics()
            _save_at_last(run, state, step)
            raise run.preemption.preemption_error() from None
        run.watchdog.at(f"step {step + 1}")
        # The step is dispatched first; only then is the one before it waited for. Not on a CPU: a
        # second step in flight has its temporaries beside those of the first (docs/benchmarks.md,
        # "Memory of the host").
        if is_on_cpu:
            run.read_metrics()
        state, metrics = steps(state, batch)
        run.read_metrics()
        run.step = step = step + 1
        run.pending = step, metrics

        preempted = run.preemption.requested() and step != run.job.config.total_steps
        answers = [] if preempted else [hook.on_step(step) for hook in run.hooks]
        if not preempted and not any(answers) and not any(run.asked):
            continue
        run.read_metrics()
        asked = asked_by(run.hooks[: len(answers)], answers) | run.asked
        run.asked = {}
        with run.log.paused():
            # First of all the state is safe: an evaluation may take longer than the machine is
            # there. This very step may have spent the budget of updates left out.
            if preempted or STOP in asked or step == run.job.config.total_steps:
                _save(run, state, step, for_good=True)
            elif SAVE in asked:
                _save(run, state, step)
            if EVALUATE in asked and not preempted:
                stopped = {STOP: asked[STOP]} if STOP in asked else {}
                found = _evaluate(run, evaluation, state, step)
                preempted = found is None
                scores, asked = found or (scores, {})
                asked = asked | stopped
                if preempted or STOP in asked:
                    _save_at_last(run, state, step)
                elif SAVE in asked and run.saver.saved_step != step:
                    _save(run, state, step)
        if preempted:
            raise run.preemption.preemption_error()
        if STOP in asked:
            return PhaseEnd(state, run.log.closing_row(), scores, asked[STOP].stop(step))
    return PhaseEnd(state, run.log.closing_row(), scores)


def _save(run: Run, state: TrainState, step: int, *, for_good: bool = False) -> None:
    (run.saver.save_for_good if for_good else run.saver.save)(state, step)
    for hook in run.hooks:
        hook.on_save(step)


def _save_at_last(run: Run, state: TrainState, step: int) -> None:
    """Saves for good, unless the step is saved: a save under way may still fail."""
    run.saver.finish()
    if run.saver.saved_step != step:
        _save(run, state, step, for_good=True)


def _announce(run: Run, phase: int) -> None:
    """Says what changes with a phase."""
    if changes := run.job.config.changes_of(phase):
        named = (
            f"{path} {new}" if old is None else f"{path} {old} -> {new}"
            for path, (old, new) in changes.items()
        )
        note(f"phase {phase}: {', '.join(named)}")
        run.event("phase", phase=phase, changes=changes)
    config, rows = run.job.config.in_phase(phase), run.job.config.phases[phase]
    kind = run.job.mesh.devices.flat[0].device_kind
    length, name = rows.sequence_length, config.compute.attention
    by_layers = serving(
        name, config.model, length=length, device_kind=kind, dtype=config.compute.dtype
    )
    run.event("attention", phase=phase, by_layers=by_layers)


def _prepare(
    run: Run, state: TrainState, phase: int, step: int, last_step: int
) -> tuple[CompiledSteps, Evaluation, Iterator[Future]]:
    """Compiles and opens the data at the same time, all in the background: a signal is heard.

    TensorFlow takes seconds to import: it does so while the steps compile.
    """
    job, rows = run.job, run.job.config.phases[phase]
    background = ThreadPoolExecutor(max_workers=3, thread_name_prefix="prepare")
    feeding = ThreadPoolExecutor(max_workers=1, thread_name_prefix="feed")
    run.workers = background, feeding

    def open_data() -> Iterator[Future]:
        batches = job.batches(phase, step, last_step)
        return device_feed.ahead(batches, depth=_DEVICE_PREFETCH, worker=feeding)

    run.feed = opening = background.submit(open_data)
    steps = CompiledSteps(run, phase=phase, background=background)
    abstract = job.abstract_batch(phase)
    if abstract is not None:
        note(f"phase {phase}: compiling for {rows.global_batch_size} x {rows.sequence_length} ...")
        run.watchdog.at(f"compiling phase {phase}", patience=COMPILE_PATIENCE)
        steps.begin(state, abstract)
    evaluation = job.evaluation(phase, state.params)
    run.preemption.wait(background.submit(evaluation.prepare))
    if abstract is not None:
        steps.wait(state, abstract)
    run.watchdog.at("opening the data")
    opened = time.monotonic()
    batches = run.preemption.wait(opening)
    run.event("open", phase=phase, seconds=time.monotonic() - opened)
    return steps, evaluation, batches


def _next_batch(run: Run, batches: Iterator[Future], step: int) -> Any:
    """Returns the next batch. Raises Preempted if the process is to go while it waits for it."""
    run.watchdog.at(f"waiting for the data of step {step + 1}")
    with run.log.waiting(), run.watchdog.waiting():
        batch = run.preemption.wait(next(batches))
    assert batch is not None, "the data ended before the phase"
    return batch


def _evaluate(
    run: Run, evaluation: Evaluation, state: TrainState, step: int
) -> tuple[Scores, dict[Action, Hook]] | None:
    """Returns held-out scores, which are logged, and what hooks ask for when they see them; None
    if a preemption cut the evaluation short.
    """
    patience = COMPILE_PATIENCE if evaluation.compiles_on_the_way else 1.0

    def cut_short() -> bool:
        run.watchdog.at(f"evaluating step {step}", patience=patience)
        return run.preemption.requested()

    began = time.monotonic()
    once = run.bar.paused() if evaluation.compiles_on_the_way else contextlib.nullcontext()
    with ticking(f"step {step}: evaluating"), once:
        scores = run.preemption.cut_short(
            lambda: evaluation.run(state.params, cut_short=cut_short), mesh=run.job.mesh
        )
    if scores is None:
        return None
    rows = {split: {**evaluation.columns, **values} for split, values in scores.items()}
    for split, values in rows.items():
        run.logger.row(step=step, split=split, **values)
    run.event("evaluate", step=step, seconds=time.monotonic() - began)
    run.print(f"step {step}: {run.job.describe(scores)}")
    answers = [hook.on_evaluation(step, rows) for hook in run.hooks]
    return scores, asked_by(run.hooks, of_process_0(answers, mesh=run.job.mesh))
