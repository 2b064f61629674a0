"""Checkpoints of a run under `workdir/checkpoints/STEP/`; the only module that uses Orbax.

It uses Orbax's v1 API, because v0's CheckpointManager leaves the top level with release 1.0. Only
arrays are stored and loaded (as OCDBT), never pickled objects: loading a checkpoint executes no
Python code.

A step is a directory with a manifest (manifest.py), which is written after Orbax's commit. Older
steps are removed after that, so that there is always a complete step. A process that ends between
the commit and the manifest loses the step (recovery.py).
"""

import contextlib
import dataclasses
import datetime
import logging
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from orbax.checkpoint import v1 as ocp

from bert_jax.config import CheckpointConfig, OptimizerConfig, TrainConfig
from bert_jax.errors import BertJaxError, NoUsableCheckpoint, StorageFailed, Unreachable
from bert_jax.progress import note
from bert_jax.runtime import network
from bert_jax.update.state import TrainState
from bert_jax.workdir import location, log_reader, manifest, storage

DIRECTORY, SET_ASIDE = location.CHECKPOINTS, "set_aside"
# Part of the names of Orbax's unfinished saves.
_UNFINISHED = ".orbax-checkpoint-tmp"
# Devices with copies of an array each write a part of it. A part costs a compiled program, a
# transfer and a chunk, which is worth it for a megabyte but not for a bias.
_SAVING = ocp.options.ArrayOptions.Saving(min_slice_bytes_for_replica_parallel=2**20)


class Checkpoints:
    """Saves the steps of one workdir in the background: arrays, manifest, removal of old steps."""

    def __init__(
        self,
        workdir: Path,
        config: CheckpointConfig,
        *,
        kept: Collection[int] = (),
        on_saved: Callable[[int, float], None] | None = None,
        guard: location.Guard = lambda patience: None,
    ):
        """Steps in `kept` are never removed. `guard` raises WorkdirTaken once another process is
        the trainer: then a save does not become complete, and no step is removed.

        `on_saved(step, seconds)` is called after each complete save, from the thread that waits for
        it. Only process 0 uses these two.
        """
        # Orbax raises its errors, and would also log a page of tracebacks.
        logging.getLogger("absl").setLevel(logging.CRITICAL)
        self._workdir, self._config, self._kept = workdir, config, kept
        self._on_saved, self._guard = on_saved, guard
        self._location = location.at(workdir)
        self._root = self._location.checkpoints
        self._finisher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="save")
        self._under_way: Future | None = None
        # The last complete step.
        self.committed: int | None = None

    def save(self, state: TrainState, *, step: int) -> None:
        """Starts a save and returns once the arrays are copied. Waits for the previous save first.

        Raises StorageFailed if either save cannot be written; Unreachable if the network failed.
        """
        self.wait()
        began = time.monotonic()
        options = ocp.options.ArrayOptions(saving=_SAVING)
        with self._failures(), ocp.Context(array_options=options):
            response = ocp.save_async(str(self._root / str(step)), _as_dict(state), overwrite=True)
        self._under_way = self._finisher.submit(self._finish, response, step, began)

    def wait(self) -> bool:
        """Returns when the current save is complete; False if there was none.

        Raises StorageFailed or Unreachable if the save failed.
        """
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            return False
        try:
            with self._failures():
                under_way.result()
        except (StorageFailed, Unreachable):
            if jax.process_index() == 0 and not self._location.is_in_bucket:
                # The unfinished files take up space.
                with contextlib.suppress(OSError):
                    remove_unfinished(self._workdir)
            raise
        return True

    def close(self) -> None:
        try:
            self.wait()
        finally:
            self._finisher.shutdown(wait=False)

    def _finish(self, response: Any, step: int, began: float) -> None:
        response.result()
        if jax.process_index() == 0:
            self._guard(0)
            manifest.write(self._root / str(step))
            if self._on_saved is not None:
                self._on_saved(step, time.monotonic() - began)
            try:
                self._remove_old()
            except Unreachable as error:  # the step is complete; the next save removes old steps
                note(str(error))
        self.committed = step

    def _remove_old(self) -> None:
        """Removes the steps that are not kept, and the remains of failed saves."""
        there = _directories(self._workdir, patience=0)
        whole = [step for step, is_whole in there.items() if is_whole]
        # The best step is that of the hook `best_checkpoint`.
        best = log_reader.best_step(self._workdir, whole)
        kept = {*self._kept, *whole[-self._config.keep_last :], best}
        every = self._config.keep_every
        kept.update(step for step in whole if every and step % every == 0)
        for step in there:
            if step not in kept:
                remove(self._workdir, step, patience=0)

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Raises the errors of a save as StorageFailed or Unreachable."""
        try:
            with self._location.failures():
                yield
        except BertJaxError:
            raise
        except (OSError, ValueError) as error:
            if network.is_transient(error):
                raise network.unreachable(str(self._workdir), error) from error
            is_first = not self._location.is_in_bucket and not steps(self._workdir)
            before = "No step was saved yet" if is_first else "Earlier steps are intact"
            raise StorageFailed(
                f"a checkpoint could not be saved: {network.described(error)}. {before}; free or "
                "repair the storage and run the same command again."
            ) from error


def steps(workdir: Path, *, patience: float | None = None) -> list[int]:
    """Returns the steps with a manifest, ascending; `problem` verifies their bytes.

    Retries for `patience` seconds while the network fails.
    """
    there = _directories(workdir, patience=patience)
    return [step for step, is_whole in there.items() if is_whole]


def incomplete_steps(workdir: Path) -> list[int]:
    """Returns the steps without a manifest, ascending: their save was interrupted, or they were
    changed.
    """
    return [step for step, is_whole in _directories(workdir).items() if not is_whole]


def problem(workdir: Path, step: int) -> str | None:
    """Returns the problem of a step with the file name; None if every byte is unchanged.

    Raises Unreachable if the network fails.
    """
    place = location.at(workdir)
    return place.asking(lambda: manifest.problem(place.checkpoints / str(step)))


def describe(workdir: Path, step: int) -> tuple[int, str, str | None]:
    """Returns the bytes and the time of a step, and the problem of its manifest, if any.

    No other file is read.
    """
    place = location.at(workdir)
    try:
        values = place.asking(lambda: manifest.read(place.checkpoints / str(step)))
    except ValueError as error:
        return 0, "", str(error)
    return sum(f["size"] for f in values["files"].values()), values["saved_at"], None


def remove(workdir: Path, step: int, *, patience: float | None = None) -> None:
    """Removes one step. An interruption leaves a directory without a manifest."""
    place = location.at(workdir)
    directory = place.checkpoints / str(step)

    def remove_files() -> None:
        (directory / manifest.MANIFEST).unlink(missing_ok=True)
        if directory.is_dir():
            directory.rmtree()

    place.asking(remove_files, patience=patience)


def set_aside(workdir: Path, step: int) -> str:
    """Moves one step to `set_aside/STEP-TIME`, where it is ignored; returns the new path."""
    place = location.at(workdir)
    root = place.checkpoints
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S.%f")
    target = root.parent / SET_ASIDE / f"{step}-{stamp}"
    place.asking(lambda: place.move(root / str(step), target))
    return str(target)


def remove_unfinished(workdir: Path) -> None:
    """Removes the files of interrupted saves, which Orbax writes under another name."""
    place = location.at(workdir)

    def remove_files() -> None:
        for name in storage.names_in(place.checkpoints):
            if _UNFINISHED in name:
                (place.checkpoints / name).rmtree()

    place.asking(remove_files)


def _directories(workdir: Path, *, patience: float | None = None) -> dict[int, bool]:
    """Returns step -> whether it has a manifest, ascending."""
    place = location.at(workdir)

    def look() -> dict[int, bool]:
        root = place.checkpoints
        there = sorted(int(n) for n in storage.names_in(root) if n.isdecimal() and n == str(int(n)))
        return {step: manifest.exists(root / str(step)) for step in there}

    return place.asking(look, patience=patience)


def load_state(workdir: Path, *, step: int, config: TrainConfig, mesh: Mesh) -> TrainState:
    """Returns the state of `step` with the sharding of `mesh`, independent of the mesh it was saved
    on.

    Raises NoUsableCheckpoint if it cannot be read. Call `problem` first: changed bits are read
    without an error.
    """
    path, wanted = location.at(workdir).checkpoints / str(step), TrainState.abstract(config, mesh)
    with _reading(workdir, path):
        return TrainState(**ocp.load(str(path), _as_dict(wanted)))


def load_params(workdir: Path, *, step: int, config: TrainConfig, mesh: Mesh) -> Any:
    """Returns the parameters of `step`, without reading the state of the optimizer.

    The optimizer may belong to an extension that is not loaded. Raises NoUsableCheckpoint.
    """
    path = location.at(workdir).checkpoints / str(step)
    config = dataclasses.replace(config, optimizer=OptimizerConfig())
    params = TrainState.abstract(config, mesh).params
    with _reading(workdir, path):
        others = jax.tree.map(lambda _: ocp.PLACEHOLDER, ocp.metadata(str(path)).metadata)
        return ocp.load(str(path), others | {"params": params})["params"]


@contextlib.contextmanager
def _reading(workdir: Path, path: Any) -> Iterator[None]:
    """Raises NoUsableCheckpoint for errors of Orbax with unreadable files."""
    try:
        yield
    except Exception as error:
        if network.is_transient(error):
            raise network.unreachable(str(path), error) from error
        if isinstance(error, BertJaxError | MemoryError | jax.errors.JaxRuntimeError):
            raise
        raise NoUsableCheckpoint(
            f"checkpoint {path} cannot be read: {network.described(error)}. Use an earlier step "
            f"(available: {', '.join(map(str, steps(workdir))) or 'none'})."
        ) from error


def _as_dict(state: TrainState) -> dict[str, Any]:
    return {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
