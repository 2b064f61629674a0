"""Checkpoints of a run under `workdir/checkpoints/STEP/`; the only module that knows orbax.

Orbax's v1 API, not v0's CheckpointManager: v1 is what its documentation teaches, it reads v0
checkpoints, and v0 leaves the top level with release 1.0. Only arrays are stored and loaded (as
OCDBT), never pickled objects: loading a checkpoint executes no Python.

A step is a directory with a manifest (manifest.py), which is written after Orbax's commit. Older
steps are removed after that, by us: there is never a moment without a whole step. A process that
ends between the two loses the step (recovery.py).
"""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from orbax.checkpoint import v1 as ocp

from bert_jax.config import CheckpointConfig, OptimizerConfig, TrainConfig
from bert_jax.errors import BertJaxError, NoUsableCheckpoint, StorageFailed, Unreachable
from bert_jax.progress import note
from bert_jax.registry import OPTIMIZERS
from bert_jax.runtime import network
from bert_jax.update.state import TrainState
from bert_jax.workdir import bucket, location, log_reader, manifest

DIRECTORY, SET_ASIDE = location.CHECKPOINTS, "set_aside"
# In the names of Orbax's unfinished saves.
_UNFINISHED = ".orbax-checkpoint-tmp"
# Orbax's last file. In a bucket a step is written in place, so only this says that it is whole.
_COMMITTED = "commit_success.txt"
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
        """`facts` go into each manifest. `on_saved(step, seconds)` is called after each whole save,
        from the thread that waits for it; both matter only in process 0."""
        # What fails is raised, too; Orbax would print a page of tracebacks before it.
        logging.getLogger("absl").setLevel(logging.CRITICAL)
        self._workdir, self._config = workdir, config
        self._facts, self._on_saved = dict(facts or {}), on_saved
        self._location = location.at(workdir)
        self._root = self._location.checkpoints
        self._finisher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="save")
        self._under_way: Future | None = None
        # The step that Orbax has committed last; in process 0 all without a manifest yet, with the
        # time they began.
        self.committed: int | None = None
        self._undescribed: dict[int, float] = {}

    def save(self, state: TrainState, *, step: int) -> None:
        """Starts a save and returns once the arrays are copied. Waits for the one before it.

        Raises StorageFailed if it, or the one before it, cannot be written; Unreachable if that is
        the network's doing.
        """
        self.wait()
        began = time.monotonic()
        if step == self.committed:
            # Its manifest could not be written. To save it again would begin with its removal.
            self._under_way = self._finisher.submit(self._describe)
            return
        options = ocp.options.ArrayOptions(saving=_SAVING)
        with self._failures(), ocp.Context(array_options=options):
            response = ocp.save_async(str(self._root / str(step)), _as_dict(state), overwrite=True)
        self._under_way = self._finisher.submit(self._finish, response, step, began)

    def wait(self) -> bool:
        """Returns when the save under way is whole; False if there was none.

        A failed save raises StorageFailed or Unreachable.
        """
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            return False
        try:
            with self._failures():
                under_way.result()
        except (StorageFailed, Unreachable):
            if jax.process_index() == 0 and not self._location.is_in_bucket:
                # What is left of it takes up space.
                with contextlib.suppress(OSError):
                    _remove_unfinished(self._root)
            raise
        return True

    def close(self) -> None:
        try:
            self.wait()
        finally:
            self._finisher.shutdown(wait=False)

    def _finish(self, response: Any, step: int, began: float) -> None:
        response.result()
        self.committed = step
        if jax.process_index() == 0:
            self._undescribed[step] = began
        self._describe()

    def _describe(self) -> None:
        """Writes the manifests of what is committed, of earlier saves, too, then removes what is
        old.
        """
        if jax.process_index() > 0:
            return
        keep_last, keep_every = self._config.keep_last, self._config.keep_every
        for committed, since in list(self._undescribed.items()):
            manifest.write(self._root / str(committed), **self._facts)
            del self._undescribed[committed]
            if self._on_saved is not None:
                self._on_saved(committed, time.monotonic() - since)
        try:
            prune(self._workdir, keep_last=keep_last, keep_every=keep_every, patience=0)
        except Unreachable as error:  # the step is whole; the next save removes what is old
            note(str(error))

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Raises what goes wrong with a save as StorageFailed or Unreachable."""
        try:
            with self._location.failures():
                yield
        except BertJaxError:
            raise
        except (OSError, ValueError) as error:
            if network.is_transient(error):
                raise network.unreachable(str(self._workdir), error) from error
            is_first = not self._location.is_in_bucket and not steps(self._workdir)
            before = "No step was saved yet" if is_first else "Steps saved before it are intact"
            raise StorageFailed(
                f"a checkpoint could not be saved: {_first_line(error)}. {before}; free or repair "
                "the storage and run the same command again."
            ) from error


def steps(workdir: Path, *, patience: float | None = None) -> list[int]:
    """Returns the steps with a manifest, ascending.

    `problem` says whether their bytes are right. While the network fails, what is asked is asked
    again for `patience` seconds.
    """
    there = _directories(workdir, patience=patience)
    return [step for step, is_whole in there.items() if is_whole]


def incomplete_steps(workdir: Path) -> list[int]:
    """Returns the steps without a manifest, ascending: of saves that did not end, or tampered
    with.
    """
    return [step for step, is_whole in _directories(workdir).items() if not is_whole]


def problem(workdir: Path, step: int) -> str | None:
    """Returns what is wrong with a step, naming the file; None if every byte is as it was saved.

    Raises Unreachable if the network does not let it be seen.
    """
    place = location.at(workdir)
    return place.asking(lambda: manifest.problem(place.checkpoints / str(step)))


def describe(workdir: Path, step: int) -> tuple[int, str, str | None]:
    """Returns the bytes and time of a step, and what is wrong with its manifest.

    Other files are not read.
    """
    place = location.at(workdir)
    try:
        values = place.asking(lambda: manifest.read(place.checkpoints / str(step)))
    except ValueError as error:
        return 0, "", str(error)
    return sum(f["size"] for f in values["files"].values()), values["saved_at"], None


def prune(
    workdir: Path, *, keep_last: int, keep_every: int = 0, patience: float | None = None
) -> list[int]:
    """Removes all steps but the newest ones, multiples of `keep_every` and the best one (the hook
    `best_checkpoint`); returns the removed.
    """
    there = steps(workdir, patience=patience)
    kept = kept_of(workdir, there, keep_last=keep_last, keep_every=keep_every)
    removed = [step for step in there if step not in kept]
    for step in removed:
        remove(workdir, step, patience=patience)
    return removed


def kept_of(
    workdir: Path, there: Sequence[int], *, keep_last: int, keep_every: int = 0
) -> set[int]:
    """Returns which of the steps that are there `prune` leaves."""
    every = (step for step in there if keep_every and step % keep_every == 0)
    best = log_reader.best_step(workdir, there)
    return {*there[-keep_last:], *every, *(() if best is None else (best,))}


def remove(workdir: Path, step: int, *, patience: float | None = None) -> None:
    """Removes one step. What is left of a removal cut short is no step."""
    place = location.at(workdir)
    makes_it_one = (manifest.MANIFEST, _COMMITTED)
    place.discard(place.checkpoints / str(step), first=makes_it_one, patience=patience)


def set_aside(workdir: Path, step: int) -> str:
    """Moves one step to `set_aside/STEP-TIME`, out of every count; returns the new place."""
    place = location.at(workdir)
    root = place.checkpoints
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    target = root.parent / SET_ASIDE / f"{step}-{stamp}"
    number = 0
    while place.asking(target.exists):
        number += 1
        target = target.parent / f"{step}-{stamp}-{number}"
    target.parent.mkdir(parents=True, exist_ok=True)
    place.asking(lambda: place.move(root / str(step), target))
    return str(target)


def remove_unfinished(workdir: Path) -> None:
    """Removes what saves and removals that were cut off have left under other names."""
    place = location.at(workdir)
    place.asking(lambda: _remove_unfinished(place.checkpoints))


def _remove_unfinished(root: Any) -> None:
    for path in bucket.children(root) if bucket.is_dir(root) else ():
        if _UNFINISHED in path.name or path.name.endswith(location.REMOVED):
            path.rmtree()


def _directories(workdir: Path, *, patience: float | None = None) -> dict[int, bool]:
    """Returns step -> whether it has a manifest, ascending."""
    place = location.at(workdir)
    return place.asking(lambda: _directories_in(place.checkpoints), patience=patience)


def _directories_in(root: Any) -> dict[int, bool]:
    names = (
        [p.name for p in bucket.children(root) if p.name.isdecimal()] if bucket.is_dir(root) else []
    )
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


def load_part(workdir: Path, part: str, *, step: int, config: TrainConfig, mesh: Mesh) -> Any:
    if part == "params" and config.optimizer.kind not in OPTIMIZERS:
        # What is not read needs no optimiser to say what it looks like.
        known = dataclasses.replace(config, optimizer=OptimizerConfig())
        path = location.at(workdir).checkpoints / str(step)
        with _reading(workdir, path):
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
    path = location.at(workdir).checkpoints / str(step)
    with _reading(workdir, path):
        return ocp.load(str(path), wanted)


@contextlib.contextmanager
def _reading(workdir: Path, path: Any) -> Iterator[None]:
    """Raises NoUsableCheckpoint for whatever Orbax meets in files that it has not written so."""
    try:
        yield
    except Exception as error:
        if network.is_transient(error):
            raise network.unreachable(str(path), error) from error
        if isinstance(error, BertJaxError | MemoryError | jax.errors.JaxRuntimeError):
            raise
        raise NoUsableCheckpoint(
            f"checkpoint {path} cannot be read: {_first_line(error)}. Name an earlier step "
            f"(there are {', '.join(map(str, steps(workdir))) or 'none'})."
        ) from error


def _as_dict(state: TrainState) -> dict[str, Any]:
    return {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
