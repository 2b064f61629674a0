"""Checkpoints of a run under `workdir/checkpoints/STEP/`; the only module that knows orbax.

Orbax's v1 API, not v0's CheckpointManager: v1 is what its documentation teaches, it reads v0
checkpoints, and v0 leaves the top level with release 1.0. Only arrays are stored and loaded (as
OCDBT), never pickled objects: loading a checkpoint executes no Python.

A step is a directory with a manifest (manifest.py), which is written after Orbax's commit. Older
steps are forgotten after that, by us: there is never a moment without a whole step.
"""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from orbax.checkpoint import v1 as ocp

from bert_jax.config import CheckpointConfig, OptimizerConfig, TrainConfig
from bert_jax.errors import NoUsableCheckpoint, StorageFailed
from bert_jax.registry import OPTIMIZERS
from bert_jax.update.state import TrainState
from bert_jax.workdir import manifest, remote_workdir

DIRECTORY, SET_ASIDE = remote_workdir.CHECKPOINTS, "set_aside"
# In the names of Orbax's unfinished saves, and of our unfinished removals.
_UNFINISHED, _REMOVED = ".orbax-checkpoint-tmp", ".removed"
# Where devices have copies of an array, Orbax lets each write its part of it. A part costs a
# compiled program, a transfer and a chunk, which are worth it for a megabyte, not for a bias.
_SAVING = ocp.options.ArrayOptions.Saving(min_slice_bytes_for_replica_parallel=2**20)


class Checkpoints:
    """The saving side of one workdir: in the background, manifest last, then the old ones go."""

    def __init__(
        self,
        workdir: Path,
        config: CheckpointConfig,
        *,
        facts: Mapping[str, Any] | None = None,
        on_saved: Callable[[int, float], None] | None = None,
    ):
        """`facts` go into each manifest. `on_saved(step, seconds)` is told of each whole save, from
        the thread that waits for it; both matter in process 0 alone."""
        # What fails is raised, too; Orbax would print a page of tracebacks before it.
        logging.getLogger("absl").setLevel(logging.CRITICAL)
        self._workdir, self._config = workdir, config
        self._facts, self._on_saved = dict(facts or {}), on_saved
        self._root = remote_workdir.checkpoints_of(workdir)
        self._finisher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="save")
        self._under_way: Future | None = None

    def save(self, state: TrainState, *, step: int) -> None:
        """Starts a save and returns once the arrays are copied. Waits for the one before it.

        Raises StorageFailed if it, or the one before it, cannot be written.
        """
        self.wait()
        began = time.monotonic()
        try:
            with ocp.Context(array_options=ocp.options.ArrayOptions(saving=_SAVING)):
                response = ocp.save_async(
                    str(self._root / str(step)), _as_dict(state), overwrite=True
                )
        except (OSError, ValueError) as error:
            raise _storage_failed(error) from error
        self._under_way = self._finisher.submit(self._finish, response, step, began)

    def wait(self) -> bool:
        """Returns when the save under way is whole; False if there was none.

        A failed save raises StorageFailed.
        """
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            return False
        try:
            under_way.result()
        except (OSError, ValueError, StorageFailed) as error:
            if jax.process_index() == 0:
                # What is left of it takes up space.
                with (
                    contextlib.suppress(OSError, StorageFailed),
                    remote_workdir.failures(self._workdir),
                ):
                    remove_unfinished(self._workdir)
            if isinstance(error, StorageFailed):
                raise
            raise _storage_failed(error) from error
        return True

    def close(self) -> None:
        try:
            self.wait()
        finally:
            self._finisher.shutdown(wait=False)

    def _finish(self, response: Any, step: int, began: float) -> None:
        response.result()
        if jax.process_index() > 0:
            return
        keep_last, keep_every = self._config.keep_last, self._config.keep_every
        with remote_workdir.failures(self._workdir):
            manifest.write(self._root / str(step), **self._facts)
            prune(self._workdir, keep_last=keep_last, keep_every=keep_every)
        if self._on_saved is not None:
            self._on_saved(step, time.monotonic() - began)


def steps(workdir: Path) -> list[int]:
    """Returns the steps with a manifest, ascending.

    `problem` says whether their bytes are right.
    """
    return [step for step, is_whole in _directories(workdir).items() if is_whole]


def cut_off(workdir: Path) -> list[int]:
    """Returns the steps without a manifest, ascending: of saves that did not end, or tampered
    with.
    """
    return [step for step, is_whole in _directories(workdir).items() if not is_whole]


def problem(workdir: Path, step: int) -> str | None:
    """Returns what is wrong with a step, naming the file; None if every byte is as it was saved."""
    return manifest.problem(remote_workdir.checkpoints_of(workdir) / str(step))


def describe(workdir: Path, step: int) -> tuple[int, str, str | None]:
    """Returns the bytes and time of a step, and what is wrong with its manifest.

    Other files are not read.
    """
    try:
        values = manifest.read(remote_workdir.checkpoints_of(workdir) / str(step))
    except ValueError as error:
        return 0, "", str(error)
    return sum(f["size"] for f in values["files"].values()), values["saved_at"], None


def prune(workdir: Path, *, keep_last: int, keep_every: int = 0) -> list[int]:
    """Removes all steps but the newest ones and multiples of `keep_every`; returns the removed."""
    there = steps(workdir)
    kept = {*there[-keep_last:], *(s for s in there if keep_every and s % keep_every == 0)}
    removed = [step for step in there if step not in kept]
    for step in removed:
        remove(workdir, step)
    return removed


def remove(workdir: Path, step: int) -> None:
    """Removes one step. What is left of a removal cut short is no step."""
    directory = remote_workdir.checkpoints_of(workdir) / str(step)
    if remote_workdir.is_address(directory):
        (directory / manifest.MANIFEST).unlink(missing_ok=True)
    else:
        directory = directory.rename(directory.with_name(f"{step}{_REMOVED}"))
    directory.rmtree()


def set_aside(workdir: Path, step: int) -> str:
    """Moves one step to `set_aside/STEP-TIME`, out of every count; returns the new place."""
    root = remote_workdir.checkpoints_of(workdir)
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    target = root.parent / SET_ASIDE / f"{step}-{stamp}"
    number = 0
    while target.exists():
        number += 1
        target = target.parent / f"{step}-{stamp}-{number}"
    target.parent.mkdir(parents=True, exist_ok=True)
    remote_workdir.move(root / str(step), target)
    return str(target)


def remove_unfinished(workdir: Path) -> None:
    """Removes what saves and removals that were cut off have left under other names."""
    root = remote_workdir.checkpoints_of(workdir)
    for path in root.iterdir() if root.is_dir() else ():
        if _UNFINISHED in path.name or path.name.endswith(_REMOVED):
            path.rmtree()


def _directories(workdir: Path) -> dict[int, bool]:
    """Returns step -> whether it has a manifest, ascending."""
    root = remote_workdir.checkpoints_of(workdir)
    names = [p.name for p in root.iterdir() if p.name.isdigit()] if root.is_dir() else []
    there = sorted(int(name) for name in names if name == str(int(name)))
    return {step: manifest.exists(root / str(step)) for step in there}


def load_state(workdir: Path, *, step: int, config: TrainConfig, mesh: Mesh) -> TrainState:
    """Returns the state of `step` in the layout of `mesh`, whatever mesh it was saved on.

    Raises NoUsableCheckpoint if it cannot be read. Ask `problem` first: bits that were changed are
    read without an error.
    """
    return TrainState(
        **load_arrays(workdir, _as_dict(TrainState.abstract(config, mesh)), step=step)
    )


def load_params(workdir: Path, *, step: int, config: TrainConfig, mesh: Mesh) -> Any:
    """Returns only the parameters of one step, for evaluation and export; moments are not read."""
    return _load(workdir, "params", step=step, config=config, mesh=mesh)


def load_opt_state(workdir: Path, *, step: int, config: TrainConfig, mesh: Mesh) -> Any:
    """Returns only the optimiser's state of one step."""
    return _load(workdir, "opt_state", step=step, config=config, mesh=mesh)


def _load(workdir: Path, part: str, *, step: int, config: TrainConfig, mesh: Mesh) -> Any:
    if part == "params" and config.optimizer.kind not in OPTIMIZERS:
        # What is not read needs no optimiser to say what it looks like.
        known = dataclasses.replace(config, optimizer=OptimizerConfig())
        path = remote_workdir.checkpoints_of(workdir) / str(step)
        there: Any = ocp.metadata(str(path)).metadata
        rest = jax.tree.map(lambda _: ocp.PLACEHOLDER, there)
        wanted = rest | {part: TrainState.abstract(known, mesh).params}
        return load_arrays(workdir, wanted, step=step)[part]
    abstract = _as_dict(TrainState.abstract(config, mesh))
    placeholders = jax.tree.map(lambda _: ocp.PLACEHOLDER, abstract)
    wanted = placeholders | {part: abstract[part]}
    return load_arrays(workdir, wanted, step=step)[part]


def load_arrays(workdir: Path, wanted: Any, *, step: int) -> Any:
    """Returns the arrays of one step that `wanted` describes: shapes, types and shardings."""
    path = remote_workdir.checkpoints_of(workdir) / str(step)
    try:
        return ocp.load(str(path), wanted)
    except (OSError, ValueError, KeyError) as error:
        raise NoUsableCheckpoint(
            f"checkpoint {path} cannot be read: {_first_line(error)}. Name an earlier step "
            f"(there are {', '.join(map(str, steps(workdir))) or 'none'})."
        ) from error


def _as_dict(state: TrainState) -> dict[str, Any]:
    return {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}


def _storage_failed(error: Exception) -> StorageFailed:
    return StorageFailed(
        f"a checkpoint could not be saved: {_first_line(error)}. Steps saved before it are intact; "
        "free or repair the storage and run the same command again."
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
