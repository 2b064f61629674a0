"""Services that show the curves of many runs, behind the one metrics logger (registry.TRACKERS).

A tracker receives what metrics.jsonl does, by a thread of its own: one that fails or hangs is
named once and given up, and training goes on.
"""

import importlib.util
import os
import queue
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from bert_jax.errors import UsageError, brief, install_command
from bert_jax.progress import say
from bert_jax.registry import TRACKERS

_PROJECT = "bert-jax"
# Seconds that the end of a run waits for a tracker.
_PATIENCE = 30.0


class Tracker(Protocol):
    """One service. Every method is called in one thread, and may raise anything."""

    # What is imported, and installed as an extra of that name.
    package: str

    def begin(self, name: str, config: Mapping[str, Any], directory: Path) -> None:
        """Opens a run of that name; `directory` is the workdir, for files of its own."""
        ...

    def row(self, step: int, values: Mapping[str, float]) -> None:
        """Takes the numbers of one row, named "train/loss", "validation/mlm_loss", ..."""
        ...

    def finish(self) -> None: ...


class WeightsAndBiases:
    """wandb. Where the machine is offline, set WANDB_MODE=offline; WANDB_PROJECT is obeyed."""

    package = "wandb"

    def begin(self, name: str, config: Mapping[str, Any], directory: Path) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=name,
            group=name,
            dir=str(directory),
            config=dict(config),
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True),
        )
        # Rows of training and of an evaluation share a step, which its own counter forbids.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def row(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def finish(self) -> None:
        self._run.finish()


def require_installed(names: Iterable[str]) -> None:
    """Raises UsageError, with what to install, for a tracker whose package is not there."""
    for name in names:
        package = TRACKERS[name].package
        if importlib.util.find_spec(package) is None:
            raise UsageError(
                f"`tracker` {name}: the package {package!r} is not installed: "
                f"{install_command(package)}, or leave it out"
            )


class Trackers:
    """The trackers of one run: each in a thread, with a queue that training never waits for."""

    def __init__(self, names: Iterable[str], *, run: str, config: Mapping[str, Any], workdir: Path):
        """`run` is the name that they show; `config` what they keep of it."""
        self._lines: list[tuple[str, queue.SimpleQueue, threading.Thread]] = []
        for name in names:
            line: queue.SimpleQueue = queue.SimpleQueue()
            arguments = (name, TRACKERS[name](), line, run, config, workdir)
            thread = threading.Thread(target=_serve, args=arguments, daemon=True, name=name)
            thread.start()
            self._lines.append((name, line, thread))

    def row(self, values: Mapping[str, Any]) -> None:
        """Hands a row of metrics.jsonl on: its numbers, but for the time and the step."""
        split = values.get("split", "train")
        numbers = {
            f"{split}/{name}": value
            for name, value in values.items()
            if isinstance(value, float) and name != "time"
        }
        for _, line, _ in self._lines:
            line.put((values["step"], numbers))

    def close(self) -> None:
        """Waits for a while until all rows are there."""
        for _, line, _ in self._lines:
            line.put(None)
        for name, _, thread in self._lines:
            thread.join(_PATIENCE)
            if thread.is_alive():
                say(f"tracker {name}: still busy after {_PATIENCE:.0f} s; giving up on it")


def _serve(
    name: str,
    tracker: Tracker,
    line: queue.SimpleQueue,
    run: str,
    config: Mapping[str, Any],
    workdir: Path,
) -> None:
    try:
        tracker.begin(run, config, workdir)
        while (item := line.get()) is not None:
            tracker.row(*item)
        tracker.finish()
    # Whatever it raises, and some end the process: it is not what the run is for.
    except BaseException as error:
        what = brief(str(error)) if str(error) else ""
        say(f"tracker {name} failed ({type(error).__name__} {what}); training goes on without it")
