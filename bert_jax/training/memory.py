"""Refuses a step that does not fit into memory, before it runs, with the setting that would."""

from typing import Any

from bert_jax.config import TrainConfig
from bert_jax.errors import UsageError
from bert_jax.runtime.free_memory import free_bytes
from bert_jax.update.step import temporary_bytes

_GIB = 2**30


def require_memory(
    program: Any, *, config: TrainConfig, phase: int, devices: list[Any], parameter_bytes: int
) -> None:
    """Raises UsageError if the compiler's figure for a step is more than what is free.

    `devices` are this process's, on which the state lies already; `parameter_bytes` is what one of
    them holds of the parameters in float32, as which their gradients are summed.
    """
    sizes, free = program.memory_analysis(), free_bytes(devices[0])
    if sizes is None or free is None:
        return
    # The devices of a CPU take all of it from one host.
    sharing = len(devices) if devices[0].platform == "cpu" else 1
    needed, fixed = temporary_bytes(sizes) * sharing, parameter_bytes * sharing
    if needed <= free:
        return
    raise UsageError(
        f"phase {phase}: a step needs {needed / _GIB:.1f} GiB beside the state, and "
        f"{free / _GIB:.1f} GiB are free: {_remedy(config, phase, needed, free, fixed)}"
    )


def _remedy(config: TrainConfig, phase: int, needed: int, free: int, fixed: int) -> str:
    """Returns the first number of microbatches that fits by these figures, or the next best."""
    now = config.optimizer.gradient_accumulation_steps
    batch = config.phases[phase].global_batch_size
    for pieces in range(now + 1, batch + 1):
        # What is kept of a microbatch shrinks with it; the gradients' sum does not.
        if batch % pieces == 0 and fixed + (needed - fixed) * now / pieces <= 0.9 * free:
            return f"set optimizer.gradient_accumulation_steps={pieces}"
    return f"set compute.remat=full, or a smaller phases.{phase}.global_batch_size"
