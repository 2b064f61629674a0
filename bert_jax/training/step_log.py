"""The log of steps: rows of metrics.jsonl, the progress bar, and the step time."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence

from bert_jax.training.job import Row, Run


class StepLog:
    """Writes rows. The step time excludes evaluation, saving and compilation."""

    def __init__(self, run: Run, past_rows: Sequence[Row]):
        """`past_rows` are the rows of metrics.jsonl before this process started (process 0)."""
        self._run, self._past = run, past_rows

    def begin_phase(self, phase: int) -> None:
        """Starts the clock of a phase, after compilation, when the data are open."""
        self._run.logger.open_curves(self._past)
        self._phase = phase
        self._latest: Row = {}
        self.restart()

    def restart(self) -> None:
        """Restarts the clocks of the row and of the phase."""
        self._restart_row()
        self._all_steps, self._phase_began = 0, self._row_began

    def _restart_row(self) -> None:
        self._steps, self._waited, self._row_began = 0, 0.0, time.monotonic()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Excludes the block from the step time."""
        entered = time.monotonic()
        try:
            yield
        finally:
            passed = time.monotonic() - entered
            self._row_began += passed
            self._phase_began += passed

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the block as time spent waiting for data."""
        entered = time.monotonic()
        try:
            yield
        finally:
            self._waited += time.monotonic() - entered

    def see(self, step: int, metrics: Mapping[str, float]) -> None:
        """Counts a step, and writes its row if one is due."""
        run, config = self._run, self._run.job.config
        self._steps += 1
        self._all_steps += 1
        run.bar.advance()
        seconds, steps = _seconds_per_step(self._row_began, self._steps), self._steps
        speed = run.job.speed(self._phase, seconds)
        loss = metrics["loss"]
        run.bar.describe = lambda: f"step {step}  loss {loss:.3f}  {_shown(speed)}"
        if step % config.log_every_steps == 0 or step == config.total_steps:
            values = {name: value for name, value in metrics.items() if name != "applied"}
            row = {"step": step, **values, "step_seconds": seconds, **speed}
            row |= {"steps": steps, "time": time.time()}
            row["data_wait_seconds"] = self._waited / steps
            row |= run.job.seen(step)
            self._restart_row()  # before writing the row, which belongs to the next step
            run.logger.row(**row)
            self._latest = row

    def closing_row(self) -> Row:
        """Returns the last row of the phase in this process, with the mean speed of the phase."""
        if not self._all_steps:
            return self._latest
        seconds = _seconds_per_step(self._phase_began, self._all_steps)
        return self._latest | self._run.job.speed(self._phase, seconds)


def _seconds_per_step(began: float, steps: int) -> float:
    return max(time.monotonic() - began, 1e-9) / steps


def _shown(speed: dict[str, float]) -> str:
    """Returns the first speed, such as "25,361 tokens/s"."""
    name = next(name for name in speed if name.endswith("_per_second"))
    return f"{speed[name]:,.0f} {name.removesuffix('_per_second')}/s"
