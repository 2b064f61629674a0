"""The arrays of a checkpoint, as its files have them."""

import warnings
from pathlib import Path

import jax
import numpy as np


def arrays_of(workdir: Path, step: int | None = None) -> dict[str, np.ndarray]:
    """Every array of a step, by its path; the newest step, where none is named."""
    from orbax.checkpoint import v1 as ocp

    folder = workdir / "checkpoints"
    newest = max(int(path.name) for path in folder.iterdir()) if step is None else step
    with warnings.catch_warnings():
        # That no sharding is given, which is meant.
        warnings.filterwarnings("ignore", message="Sharding info not provided")
        found = ocp.load(str((folder / str(newest)).absolute()))
    leaves = jax.tree_util.tree_leaves_with_path(found)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def assert_same_bits(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.tobytes() == other[name].tobytes(), name
