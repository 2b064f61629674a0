"""The log of steps: a row of metrics.jsonl every few steps, the bar, and the time of a step."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from bert_jax.training.hooks import CONTINUE, Action, Hook
from bert_jax.training.job import Row

if TYPE_CHECKING:
    from bert_jax.training.loop import Run


class StepLog(Hook):
    """Writes rows. A step's time is that of the loop, without evaluating, saving and compiling."""

    def begin(self, run: "Run", step: int, rows: Sequence[Row]) -> Action:
        self._past = rows
        return super().begin(run, step, rows)

    def begin_phase(self, phase: int) -> None:
        """Begins to measure, once the phase is compiled and its data are open."""
        self.run.logger.open_curves(self._past)
        self._phase = phase
        self._latest: Row = {}
        self.restart()

    def restart(self) -> None:
        """Begins to measure, since the last row and since the phase began, anew."""
        self._restart_row()
        self._all_steps, self._phase_began = 0, self._row_began

    def _restart_row(self) -> None:
        self._steps, self._waited, self._row_began = 0, 0.0, time.monotonic()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves out of the time of steps what happens inside."""
        entered = time.monotonic()
        try:
            yield
        finally:
            passed = time.monotonic() - entered
            self._row_began += passed
            self._phase_began += passed

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts what happens inside as waiting for data."""
        entered = time.monotonic()
        try:
            yield
        finally:
            self._waited += time.monotonic() - entered

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> Action:
        run, config = self.run, self.run.job.config
        self._steps += 1
        self._all_steps += 1
        run.bar.advance()
        seconds, steps = _seconds_per_step(self._row_began, self._steps), self._steps
        run.preemption.step_seconds = seconds
        speed = run.job.speed(self._phase, seconds)
        loss = metrics["loss"]
        run.bar.describe = lambda: f"step {step}  loss {loss:.3f}  {_shown(speed)}"
        if step % config.log_every_steps == 0 or step == config.total_steps:
            values = {name: value for name, value in metrics.items() if name != "applied"}
            row = {"step": step, **values, "step_seconds": seconds, **speed}
            row |= {"steps": steps, "time": time.time()}
            row["data_wait_seconds"] = self._waited / steps
            row |= run.job.epochs(step)
            self._restart_row()  # before the row is written: that is part of the next step
            run.logger.row(**row)
            self._latest = row
        return CONTINUE

    def closing_row(self) -> Row:
        """Returns the last row of this process in the phase, with the speed over all its steps."""
        if not self._all_steps:
            return self._latest
        seconds = _seconds_per_step(self._phase_began, self._all_steps)
        return self._latest | self.run.job.speed(self._phase, seconds)


def _seconds_per_step(began: float, steps: int) -> float:
    return max(time.monotonic() - began, 1e-9) / steps


def _shown(speed: dict[str, float]) -> str:
    """Returns the first rate among the figures: "25,361 tokens/s"."""
    name = next(name for name in speed if name.endswith("_per_second"))
    return f"{speed[name]:,.0f} {name.removesuffix('_per_second')}/s"
