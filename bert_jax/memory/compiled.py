"""Refuses a step that does not fit into memory, before it runs, with the setting that would.

By the compiler's own figure, which is exact; fit.py asks before there is one, and has the search.
"""

from typing import Any

from jax.sharding import Mesh

from bert_jax.config import TrainConfig
from bert_jax.errors import UsageError
from bert_jax.memory import estimate, fit
from bert_jax.memory.free import free_bytes
from bert_jax.model import sharding
from bert_jax.update.step import temporary_bytes

_GIB = 2**30
# Of what is free, for what is found by an estimate.
_SHARE = 0.9


def require_memory(
    program: Any, *, config: TrainConfig, phase: int, state: Any, batch: Any, mesh: Mesh
) -> None:
    """Raises UsageError if the compiler's figure for a step is more than what is free.

    `state` and `batch` are what the step takes, or descriptions of them; the state lies on the
    devices already.
    """
    devices = mesh.local_devices
    sizes, free = program.memory_analysis(), free_bytes(devices[0])
    if sizes is None or free is None:
        return
    # The devices of a CPU take all of it from one host.
    platform = devices[0].platform
    sharing = len(devices) if platform == "cpu" else 1
    needed = temporary_bytes(sizes) * sharing
    saved = estimate.saved_bytes(state, platform=platform) * sharing
    if needed + saved <= free:
        return

    config = config.in_phase(phase)

    def estimated(config: TrainConfig) -> int:
        found = estimate.of_train_step(config, state, batch, mesh=mesh, platform=platform)
        return found.beside_state

    # The estimate says by which factor a change shrinks what the compiler has found.
    now = estimated(config)
    found = fit.first_that_fits(
        fit.candidates(config, shards=sharding.row_shards(mesh), platform=platform),
        room=_SHARE * free - saved,
        expected=lambda changed: needed * estimated(changed) / now,
    )
    remedy = f"it needs more memory, or a smaller phases.{phase}.global_batch_size"
    if found is not None:
        remedy = found.name
    what = "a step and a save need" if saved else "a step needs"
    raise UsageError(
        f"phase {phase}: {what} {(needed + saved) / _GIB:.1f} GiB beside the state, and "
        f"{free / _GIB:.1f} GiB are free: {remedy}"
    )
