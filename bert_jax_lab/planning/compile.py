"""Compiles steps ahead of time for TPUs that this machine does not have.

Mesh, state and batch are abstract; step and compiler are the real ones. Nothing runs.
"""

import contextlib
import functools
import hashlib
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache
from jax.sharding import Mesh

from bert_jax.config import PhaseConfig, TrainConfig
from bert_jax.errors import UsageError
from bert_jax.model import sharding
from bert_jax.progress import ticking
from bert_jax.registry import OBJECTIVES
from bert_jax.training import device_feed
from bert_jax.update import compiler_options
from bert_jax.update.state import TrainState
from bert_jax.update.step import lower_eval_step, lower_train_step, temporary_bytes
from bert_jax_lab.planning import collectives, schedule, schedule_files
from bert_jax_lab.planning.collectives import Traffic
from bert_jax_lab.planning.topologies import Chip, Topology, devices

# Compiled steps of this process by the text of the program: phases of the same shape share the
# train step, and phases of the same length the evaluation step.
_KNOWN: "dict[str, Compiled]" = {}
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class NotCompiled(UsageError):
    """The compiler rejects a step for a reason other than memory."""


class DoesNotFit(Exception):
    """The compiler rejects a step because of its memory. Sizes are in bytes per device."""

    def __init__(self, needed: int, available: int):
        super().__init__(
            f"needs {needed / 2**30:.2f} GiB per device, but the compiler has "
            f"{available / 2**30:.2f}"
        )
        self.needed, self.available = needed, available


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes per device while the step runs."""

    weights: int
    moments: int
    batch: int
    padding: int  # of the arguments, to the memory's tiles; and the step counter
    temporaries: int  # activations, gathered weights, gradients
    program: int

    @property
    def total(self) -> int:
        return sum(vars(self).values())


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """The costs of one compiled step for one device."""

    memory: Memory
    # From the final schedule (schedule.py): all computation cycles and exposed collectives.
    cycles: int
    exposed_cycles: int
    collectives: tuple[Traffic, ...]


def make_mesh(config: TrainConfig, topology: Topology) -> Mesh:
    """Returns the config's mesh over the topology's devices, as the TPU compiler describes them."""
    try:
        return sharding.make_mesh(
            slices=config.mesh.slices,
            fsdp=config.mesh.fsdp,
            tensor=config.mesh.tensor,
            devices=devices(topology),
        )
    except ValueError as error:
        raise UsageError(f"config {config.name!r} on {topology.name}: {error}") from None


def train_step(
    config: TrainConfig, phase: PhaseConfig, *, mesh: Mesh, topology: Topology
) -> Compiled:
    """Compiles the train step of a phase. Raises `DoesNotFit` or `NotCompiled`."""
    with jax.set_mesh(mesh):
        state = TrainState.abstract(config, mesh)
        objective, batch = _batch(config, phase, mesh)
        return _compiled(
            lambda: lower_train_step(config, state, batch, objective=objective, platform="tpu"),
            sizes={"weights": state.params, "moments": state.opt_state, "batch": batch},
            mesh=mesh,
            topology=topology,
            title=f"train step, {phase.global_batch_size} x {phase.sequence_length}",
        )


def evaluation_step(
    config: TrainConfig, shape: PhaseConfig, *, mesh: Mesh, topology: Topology
) -> Compiled:
    """Compiles the evaluation step for batches of a shape. Raises the errors of `train_step`."""
    with jax.set_mesh(mesh):
        params = TrainState.abstract(config, mesh).params
        objective, batch = _batch(config, shape, mesh)
        return _compiled(
            lambda: lower_eval_step(config, params, batch, objective=objective, platform="tpu"),
            sizes={"weights": params, "moments": (), "batch": batch},
            mesh=mesh,
            topology=topology,
            title=f"evaluation step, {shape.global_batch_size} x {shape.sequence_length}",
        )


def _batch(config: TrainConfig, shape: PhaseConfig, mesh: Mesh) -> tuple[Any, Any]:
    """Returns the objective, and an abstract batch of a shape."""
    objective = OBJECTIVES[config.objective]
    return objective, device_feed.abstract_batch(shape, fields=objective.fields, mesh=mesh)


def _compiled(
    lower: Callable[[], Any], *, sizes: dict, mesh: Mesh, topology: Topology, title: str
) -> Compiled:
    chip = topology.chip
    with ticking(f"compiling for {topology.name}: {title}"):
        lowered = lower()
        options = compiler_options.for_platform("tpu")
        described = repr((topology.name, options, lowered.as_text()))
        key = hashlib.sha256(described.encode()).hexdigest()
        if known := _KNOWN.get(key):
            return known
        schedule_files.forget()
        try:
            program, text = _compile(lowered, options)
        except Exception as error:  # its type depends on the version of jax
            raise error_of(error, chip, f"{topology.name}: {title}") from None
        rate = functools.partial(collectives.seconds, mesh=mesh, chip=chip)
        cost = schedule.cost(text, chip, rate)
        schedule_files.forget()
    found = {name: sharding.bytes_per_device(tree) for name, tree in sizes.items()}
    sizes_seen = program.memory_analysis()
    memory = Memory(
        **found,
        padding=sizes_seen.argument_size_in_bytes - sum(found.values()),
        temporaries=temporary_bytes(sizes_seen),
        program=sizes_seen.generated_code_size_in_bytes,
    )
    if memory.total > chip.compiler_bytes:
        raise DoesNotFit(memory.total, chip.compiler_bytes)
    _KNOWN[key] = Compiled(
        memory=memory,
        cycles=round(cost.cycles),
        exposed_cycles=round(cost.exposed),
        collectives=collectives.traffic(cost.collectives, mesh=mesh, chip=chip),
    )
    return _KNOWN[key]


def _compile(lowered: Any, options: dict[str, Any]) -> tuple[Any, str]:
    """Returns the program, and its text as written by the compiler.

    `as_text()` uses jaxlib, which may be older than libtpu and then cannot read some programs for
    newer chips.
    """
    with tempfile.TemporaryDirectory(prefix="bert-jax-plan-") as folder:
        options = options | {
            "xla_dump_to": folder,
            "xla_dump_hlo_as_text": True,
            "xla_dump_hlo_pass_re": "",
        }
        with _uncached():
            program = lowered.compile(compiler_options=options)
        (page,) = Path(folder).glob("*.after_codegen.txt")
        return program, page.read_text(encoding="utf-8")


@contextlib.contextmanager
def _uncached() -> Iterator[None]:
    """Disables the compilation cache, which lacks programs for other devices and program texts."""
    is_enabled = jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue]
    # jax reads the setting once, until the cache is reset.
    reset_cache()
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", is_enabled)
        reset_cache()


def error_of(error: Exception, chip: Chip, title: str) -> Exception:
    """Returns the error to raise for a compilation error: `DoesNotFit` for the memory of the
    device, `NotCompiled` for another status of the compiler, or the error itself.
    """
    text = str(error)
    # "vmem" is the memory of the core, which limits one fusion and does not depend on the batch.
    if "RESOURCE_EXHAUSTED" not in text or "memory space vmem" in text:
        reason = text.partition("\n")[0]
        if not re.match(r"[A-Z]+(_[A-Z]+)*: ", reason):
            return error
        return NotCompiled(f"{title}: the compiler rejects it: {reason[:300]}")
    match = re.search(r"([\d.]+)([KMGT]?)\)? exceeds available HBM \(([\d.]+)([KMGT]?)\)", text)
    match = match or re.search(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm", text)
    if match is None:
        return DoesNotFit(chip.compiler_bytes + 1, chip.compiler_bytes)
    needed, available = (int(float(match[i]) * _UNITS[match[i + 1]]) for i in (1, 3))
    # Both are rounded to a hundredth of their unit, and may be equal.
    return DoesNotFit(max(needed, available + _UNITS[match[4]] // 100), available)
