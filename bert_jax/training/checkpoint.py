"""Checkpoints of a run under `workdir/checkpoints/STEP/`; the only module that knows orbax.

Orbax's v1 API, not v0's CheckpointManager: v1 is what its documentation teaches, its policies are
plain values, it reads v0 checkpoints, and v0 leaves the top level with release 1.0. Only arrays are
stored and loaded (as OCDBT), never pickled objects: loading a checkpoint executes no Python.
"""

import logging
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from orbax.checkpoint import v1 as ocp

from bert_jax.config import CheckpointConfig, TrainConfig
from bert_jax.errors import NoUsableCheckpoint, StorageFailed
from bert_jax.training import bucket
from bert_jax.training.state import TrainState

DIRECTORY = bucket.CHECKPOINTS
# What Orbax writes into a step last.
_COMMITTED = "commit_success.txt"


class Checkpoints:
    """The checkpoints of one workdir: save in the background, load, forget the old ones."""

    def __init__(self, workdir: Path, config: CheckpointConfig):
        # What fails is raised, too; Orbax would print a page of tracebacks before it.
        logging.getLogger("absl").setLevel(logging.CRITICAL)
        policies = ocp.training.preservation_policies
        keep: Any = [policies.LatestN(config.keep_last)]
        if config.keep_every:
            keep.append(policies.EveryNSteps(config.keep_every))
        preserve: Any = policies.AnyPreservationPolicy(keep)
        self._checkpointer = ocp.training.Checkpointer(
            str(bucket.checkpoints_of(workdir)),
            preservation_policy=preserve,
            cleanup_tmp_directories=True,
        )

    def save(self, state: TrainState, *, step: int) -> None:
        """Starts a save and returns once the arrays are copied. Waits for the one before it."""
        self.wait()
        try:
            self._checkpointer.save_async(step, _as_dict(state), force=True)
        except (OSError, ValueError) as error:
            raise _storage_failed(error) from error

    def wait(self) -> None:
        """Returns when the save under way is committed. A failed save raises StorageFailed."""
        try:
            self._checkpointer.wait()
        except (OSError, ValueError) as error:
            raise _storage_failed(error) from error

    def latest_step(self) -> int | None:
        latest = self._checkpointer.latest
        return None if latest is None else latest.step

    def load(self, step: int, *, config: TrainConfig, mesh: Mesh) -> TrainState:
        """The state of `step` in the layout of `mesh`, whatever mesh it was saved on."""
        abstract = _as_dict(TrainState.abstract(config, mesh))
        try:
            return TrainState(**self._checkpointer.load(step, abstract))
        except (OSError, ValueError, KeyError) as error:
            raise NoUsableCheckpoint(
                f"checkpoint {self._checkpointer.directory}/{step} cannot be read: "
                f"{_first_line(error)}. Remove that step to resume from the one before it."
            ) from error

    def close(self) -> None:
        self.wait()
        self._checkpointer.close()


def latest_step(workdir: Path) -> int | None:
    """The newest committed step, or None before the first."""
    return max(steps(workdir), default=None)


def steps(workdir: Path) -> list[int]:
    """Committed steps, ascending, by what is there alone."""
    root = bucket.checkpoints_of(workdir)
    if not root.is_dir():
        return []
    found = [p for p in root.iterdir() if p.name.isdigit() and p.is_dir()]
    if bucket.is_address(root):
        # On a disk a step gets its name when it is whole. Nothing is renamed in a bucket.
        found = [p for p in found if (p / _COMMITTED).exists()]
    return sorted(int(p.name) for p in found)


def load_params(workdir: Path, *, step: int, config: TrainConfig, mesh: Mesh) -> Any:
    """Only the parameters of one step, for evaluation and export; moments are not read."""
    return _load(workdir, "params", step=step, config=config, mesh=mesh)


def load_opt_state(workdir: Path, *, step: int, config: TrainConfig, mesh: Mesh) -> Any:
    """Only the optimiser's state of one step."""
    return _load(workdir, "opt_state", step=step, config=config, mesh=mesh)


def _load(workdir: Path, part: str, *, step: int, config: TrainConfig, mesh: Mesh) -> Any:
    abstract = _as_dict(TrainState.abstract(config, mesh))
    placeholders = jax.tree.map(lambda _: ocp.PLACEHOLDER, abstract)
    wanted = placeholders | {part: abstract[part]}
    path = bucket.checkpoints_of(workdir) / str(step)
    try:
        return ocp.load(str(path), wanted)[part]
    except (OSError, ValueError, KeyError) as error:
        raise NoUsableCheckpoint(
            f"checkpoint {path} cannot be read: {_first_line(error)}. Name an earlier step "
            f"(there are {', '.join(map(str, steps(workdir))) or 'none'})."
        ) from error


def _as_dict(state: TrainState) -> dict[str, Any]:
    return {"step": state.step, "params": state.params, "opt_state": state.opt_state}


def _storage_failed(error: Exception) -> StorageFailed:
    return StorageFailed(
        f"a checkpoint could not be saved: {_first_line(error)}. Steps saved before it are intact; "
        "free or repair the storage and run the same command again."
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
