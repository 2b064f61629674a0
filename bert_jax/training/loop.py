"""The loop: the steps of one phase, and the saves and evaluations between them."""

import contextlib
import functools
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from bert_jax.errors import BertJaxError, Preempted
from bert_jax.model.attention.implementation import serving
from bert_jax.progress import note, ticking
from bert_jax.runtime.stop import Preemption
from bert_jax.runtime.watchdog import COMPILE_PATIENCE, Watchdog
from bert_jax.training import device_feed
from bert_jax.training.compiled_steps import CompiledSteps
from bert_jax.training.hooks import Hook, Stop, agreed, evaluates_at
from bert_jax.training.job import Evaluation, Row, Run, Scores
from bert_jax.training.saving import Saver
from bert_jax.training.step_log import StepLog
from bert_jax.update.state import TrainState

# Global batches in transfer to the devices ahead of the step.
_DEVICE_PREFETCH = 2


@dataclass(kw_only=True)
class Loop(Run):
    """The state of a run in this process that its phases share. Nothing of it is saved."""

    hooks: Sequence[Hook]
    log: StepLog
    preemption: Preemption
    watchdog: Watchdog
    saver: Saver
    # The last step that was dispatched, and its metrics until they are read.
    step: int
    pending: dict[str, jax.Array] | None = None
    # The first answer of a hook that stops the run.
    stop: Stop | None = None
    feed: Future | None = None
    # The threads that compile, open the data and make the batches of a phase.
    workers: Sequence[ThreadPoolExecutor] = ()

    def end_phase(self) -> None:
        """Ends the threads of a phase after their current task, without waiting for them."""
        for worker in self.workers:
            worker.shutdown(wait=False, cancel_futures=True)

    def read_metrics(self) -> None:
        """Waits for the dispatched step, if there is one, and shows its metrics to the hooks."""
        if self.pending is None:
            return
        device_metrics, self.pending = self.pending, None
        metrics = {name: float(v) for name, v in jax.device_get(device_metrics).items()}
        self.preemption.is_idle = False  # from now on there is a step to save
        for answer in [hook.on_metrics(self.step, metrics) for hook in self.hooks]:
            self.stop = self.stop or answer
        self.log.see(self.step, metrics)

    def save(self, state: TrainState, *, for_good: bool = False) -> None:
        """Saves the step unless it is saved. `for_good` waits until the save is complete."""
        if for_good:
            self.saver.finish()  # a save in progress may fail
        if self.saver.saved_step != self.step:
            (self.saver.save_for_good if for_good else self.saver.save)(state, self.step)


class PhaseEnd(NamedTuple):
    """The state, the last row and the scores at the end of a phase."""

    state: TrainState
    row: Row
    scores: Scores


def train_phase(
    loop: Loop, state: TrainState, *, phase: int, last_step: int, owes_evaluation: bool
) -> PhaseEnd:
    """Trains to `last_step`, within `phase`, or until a hook stops the run (`loop.stop`).

    `owes_evaluation`: the evaluation of the current step was prevented by a preemption. Raises
    Preempted after SIGTERM, when the state is saved, and the errors of hooks: NonFinite after too
    many skipped updates, Diverged when the loss stays far too high.
    """
    config, scores = loop.job.config, {}
    _announce(loop, phase)
    try:
        with loop.bar.paused():
            steps, evaluation, batches = _prepare(loop, state, phase, last_step)
    except Preempted:
        raise _preempted(loop, state) from None
    is_on_cpu = jax.default_backend() == "cpu"
    loop.log.begin_phase(phase)
    if owes_evaluation:
        scores = _evaluate(loop, evaluation, state)
        loop.log.restart()

    while loop.step < last_step and loop.stop is None:
        for hook in loop.hooks:
            hook.before_step(loop.step)
        try:
            batch = _next_batch(loop, batches)
            if not steps.is_ready(batch):
                with loop.log.paused(), loop.bar.paused():
                    _compile(loop, steps, state, batch)
        except Preempted:
            raise _preempted(loop, state) from None
        loop.watchdog.at(f"step {loop.step + 1}")
        # A step is dispatched before the metrics of the previous step are awaited: the device never
        # waits for Python. Not on a CPU, where two steps in flight take the memory of two steps.
        if is_on_cpu:
            loop.read_metrics()
        state, metrics = steps(state, batch)
        loop.read_metrics()
        loop.step, loop.pending = loop.step + 1, metrics

        is_last = loop.step == config.total_steps
        is_preempted = loop.preemption.requested() and not is_last
        is_saved = not is_preempted and loop.saver.is_due(loop.step)
        is_evaluated = not is_preempted and evaluates_at(config, loop.step)
        if not (is_preempted or is_saved or is_evaluated or loop.stop):
            continue
        loop.read_metrics()
        with loop.log.paused():
            # The save comes first: an evaluation may take longer than a preempted machine exists.
            if is_preempted:
                raise _preempted(loop, state)
            if is_saved or loop.stop:
                loop.save(state, for_good=is_last or loop.stop is not None)
            if is_evaluated:
                scores = _evaluate(loop, evaluation, state)
    if isinstance(loop.stop, BertJaxError):
        raise loop.stop
    return PhaseEnd(state, loop.log.closing_row(), scores)


def _preempted(loop: Loop, state: TrainState) -> Preempted:
    """Returns the error that ends a preempted run, after the state is saved."""
    loop.read_metrics()
    loop.save(state, for_good=True)
    return loop.preemption.preemption_error()


def _announce(loop: Loop, phase: int) -> None:
    """Logs what changes with a phase, and the implementations of attention."""
    job = loop.job
    if changes := job.config.changes_of(phase):
        named = (
            f"{path} {new}" if old is None else f"{path} {old} -> {new}"
            for path, (old, new) in changes.items()
        )
        note(f"phase {phase}: {', '.join(named)}")
        loop.event("phase", phase=phase, changes=changes)
    config = job.config.in_phase(phase)
    by_layers = serving(
        config.compute.attention,
        config.model,
        length=job.config.phases[phase].sequence_length,
        device_kind=job.mesh.devices.flat[0].device_kind,
        dtype=config.compute.dtype,
    )
    loop.event("attention", phase=phase, by_layers=by_layers)


def _prepare(
    loop: Loop, state: TrainState, phase: int, last_step: int
) -> tuple[CompiledSteps, Evaluation, Iterator[Future]]:
    """Compiles and opens the data at the same time, in the background, where a signal interrupts
    the wait. The import of TensorFlow, which takes seconds, overlaps with the compilation.
    """
    job, rows = loop.job, loop.job.config.phases[phase]
    background = ThreadPoolExecutor(max_workers=3, thread_name_prefix="prepare")
    feeding = ThreadPoolExecutor(max_workers=1, thread_name_prefix="feed")
    loop.workers = background, feeding

    def open_data() -> Iterator[Future]:
        batches = job.batches(phase, loop.step, last_step)
        return device_feed.ahead(batches, depth=_DEVICE_PREFETCH, worker=feeding)

    loop.feed = opening = background.submit(open_data)
    steps = CompiledSteps(job, phase=phase, background=background)
    abstract = job.abstract_batch(phase)
    if abstract is not None:
        note(f"phase {phase}: compiling for {rows.global_batch_size} x {rows.sequence_length} ...")
        loop.watchdog.at(f"compiling phase {phase}", patience=COMPILE_PATIENCE)
        steps.begin(state, abstract)
    evaluation = job.evaluation(phase, state.params)
    loop.preemption.wait(background.submit(evaluation.prepare))
    if abstract is not None:
        _compile(loop, steps, state, abstract)
    loop.watchdog.at("opening the data")
    opened = time.monotonic()
    batches = loop.preemption.wait(opening)
    loop.event("open", phase=phase, seconds=time.monotonic() - opened)
    return steps, evaluation, batches


def _compile(loop: Loop, steps: CompiledSteps, state: TrainState, batch: Any) -> None:
    """Waits until the step for batches of these shapes is compiled. Raises Preempted."""
    loop.watchdog.at(f"compiling phase {steps.phase}", patience=COMPILE_PATIENCE)
    loop.preemption.wait(steps.begin(state, batch))
    loop.event("compile", phase=steps.phase, seconds=time.monotonic() - steps.began)


def _next_batch(loop: Loop, batches: Iterator[Future]) -> Any:
    """Returns the next batch. Raises Preempted if a signal comes while the process waits for it."""
    loop.watchdog.at(f"waiting for the data of step {loop.step + 1}")
    with loop.log.waiting():
        batch = loop.preemption.wait(next(batches))
    assert batch is not None, "the data ended before the phase"
    return batch


def _evaluate(loop: Loop, evaluation: Evaluation, state: TrainState) -> Scores:
    """Evaluates the current step and logs the scores. Saves the state if a hook keeps the step or
    stops the run. Raises Preempted if a preemption cuts the evaluation short.
    """
    step = loop.step
    # A hook compiles what it evaluates when it is first used.
    may_compile = evaluation.compiles_on_the_way or any(
        hook.figures for hook in loop.job.config.hooks
    )
    patience = COMPILE_PATIENCE if may_compile else 1.0

    def cut_short() -> bool:
        loop.watchdog.at(f"evaluating step {step}", patience=patience)
        return loop.preemption.requested()

    runs = [functools.partial(evaluation.run, state.params)]
    runs += [functools.partial(hook.evaluate, step, state.params) for hook in loop.hooks]
    found: list[Scores] = []
    began = time.monotonic()
    once = loop.bar.paused() if evaluation.compiles_on_the_way else contextlib.nullcontext()
    with ticking(f"step {step}: evaluating"), once:
        for run in runs:
            each = run(cut_short=cut_short)
            if each is None:
                raise _preempted(loop, state)
            found.append(each)
    scores = found[0]
    added = {split: values for each in found[1:] for split, values in each.items()}
    rows = {split: {**evaluation.columns, **values} for split, values in scores.items()} | added
    for split, values in rows.items():
        loop.logger.row(step=step, split=split, **values)
    loop.event("evaluate", step=step, seconds=time.monotonic() - began)
    loop.print(f"step {step}: {loop.job.describe(scores)}")
    for split, values in added.items():
        shown = ", ".join(f"{name} {value:.4f}" for name, value in values.items())
        loop.print(f"step {step}: {split} {shown}")
    answers = [hook.on_evaluation(step, rows) for hook in loop.hooks]
    is_kept = any(hook.keeps(step) for hook in loop.hooks)
    stop, is_kept = agreed(loop.hooks, answers, keeps=is_kept)
    loop.stop = loop.stop or stop
    if stop or is_kept:
        loop.save(state, for_good=stop is not None)
    return scores
