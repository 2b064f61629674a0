"""Steps compiled ahead of time for devices that are not here, and what the results say.

A mesh of described devices, a state and a batch of described arrays, the real step, the real
compiler. Nothing runs.
"""

import contextlib
import functools
import hashlib
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
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
from bert_jax_lab.planning import hlo_cost, schedule, schedule_files
from bert_jax_lab.planning.topologies import Chip, Topology, devices

# Of what this process has compiled, by the text of the program: phases of one shape have the same
# train step, and those of one length the same evaluation step.
_KNOWN: "dict[str, Figures]" = {}
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class NotCompiled(UsageError):
    """The compiler does not take a step, for another reason than memory."""


class DoesNotFit(Exception):
    """The compiler refuses a step for its memory. Sizes in bytes a device."""

    def __init__(self, needed: int, available: int):
        super().__init__(
            f"needs {needed / 2**30:.2f} GiB a device, of which the compiler has "
            f"{available / 2**30:.2f}"
        )
        self.needed, self.available = needed, available


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one device while the step runs."""

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
class Traffic:
    """All collectives of one kind over the same axes in one step."""

    kind: str
    axes: tuple[str, ...]
    group_size: int
    count: int
    bytes: int  # of the whole arrays, summed
    seconds: float


@dataclass(frozen=True, kw_only=True)
class KernelCost:
    """All calls of one custom kernel; the compiler gives no estimate, so it is charged here."""

    name: str
    count: int
    flops: float | None  # of one call; None: its author states none, and only bytes are charged
    bytes: int  # of one call
    cycles: int  # of all calls

    @property
    def kind(self) -> str:
        """Its name without the number that the compiler gives each: `broadcast.257`."""
        return re.sub(r"[.\d]+$", "", self.name) or self.name


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The costs of one compiled step for one device."""

    memory: Memory
    compiler_cycles: int
    scheduled_cycles: int | None  # by the final schedule, bytes and products (schedule.py)
    waiting_cycles: int | None  # for collectives, by the final schedule
    kernels: tuple[KernelCost, ...]
    memory_traffic: int  # bytes to and from the large memory
    collectives: tuple[Traffic, ...]
    cycles_by_operation: dict[str, int]  # of the compiler's, largest first
    compile_seconds: float

    @property
    def cycles(self) -> int:
        """Those of the compiler's estimate, by which it chooses tiles."""
        return self.compiler_cycles + sum(k.cycles for k in self.kernels)

    def compute_seconds(self, chip: Chip) -> float:
        """Returns the time at the clock by the final schedule, where the compiler has written one,
        else by its estimate.
        """
        cycles = self.cycles if self.scheduled_cycles is None else self.scheduled_cycles
        return cycles / chip.clock_hz

    def exposed_seconds(self, chip: Chip) -> float | None:
        """Returns the time of collectives beside which the final schedule has no computation."""
        return None if self.waiting_cycles is None else self.waiting_cycles / chip.clock_hz

    @property
    def collective_seconds(self) -> float:
        return sum(c.seconds for c in self.collectives)


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


def train_figures(
    config: TrainConfig, phase: PhaseConfig, *, mesh: Mesh, topology: Topology
) -> Figures:
    """Compiles the train step of a phase. Raises `DoesNotFit` or `NotCompiled`."""

    with jax.set_mesh(mesh):
        state = TrainState.abstract(config, mesh)
        objective = OBJECTIVES[config.objective]
        batch = device_feed.abstract_batch(phase, fields=objective.fields, mesh=mesh)
        return _figures(
            lambda: lower_train_step(config, state, batch, objective=objective, platform="tpu"),
            sizes={"weights": state.params, "moments": state.opt_state, "batch": batch},
            mesh=mesh,
            topology=topology,
            title=f"train step, {phase.global_batch_size} x {phase.sequence_length}",
        )


def eval_figures(
    config: TrainConfig, shape: PhaseConfig, *, mesh: Mesh, topology: Topology
) -> Figures:
    """Compiles the evaluation step for batches of a shape. Raises as `train_figures` does."""
    with jax.set_mesh(mesh):
        params = TrainState.abstract(config, mesh).params
        objective = OBJECTIVES[config.objective]
        batch = device_feed.abstract_batch(shape, fields=objective.fields, mesh=mesh)
        return _figures(
            lambda: lower_eval_step(config, params, batch, objective=objective, platform="tpu"),
            sizes={"weights": params, "moments": (), "batch": batch},
            mesh=mesh,
            topology=topology,
            title=f"evaluation step, {shape.global_batch_size} x {shape.sequence_length}",
        )


def _figures(
    lower: Callable[[], Any], *, sizes: dict, mesh: Mesh, topology: Topology, title: str
) -> Figures:
    began = time.monotonic()
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
            what = f"{topology.name}: {title}"
            raise _refusal(error, topology.chip) or _not_compiled(error, what) from None
        cost = hlo_cost.cost(text)
        rate = functools.partial(_seconds, mesh=mesh, chip=topology.chip)
        scheduled = schedule.cycles(text, topology.chip, rate)
        schedule_files.forget()
    found = {name: sharding.bytes_per_device(tree) for name, tree in sizes.items()}
    sizes_seen = program.memory_analysis()
    memory = Memory(
        **found,
        padding=sizes_seen.argument_size_in_bytes - sum(found.values()),
        temporaries=temporary_bytes(sizes_seen),
        program=sizes_seen.generated_code_size_in_bytes,
    )
    if memory.total > topology.chip.compiler_bytes:
        raise DoesNotFit(memory.total, topology.chip.compiler_bytes)
    _KNOWN[key] = Figures(
        memory=memory,
        compiler_cycles=cost.cycles,
        scheduled_cycles=None if scheduled is None else round(scheduled.real),
        waiting_cycles=None if scheduled is None else round(scheduled.waiting),
        kernels=_kernels(cost, topology.chip),
        memory_traffic=cost.traffic + sum(k.bytes * n for k, n in cost.kernels.items()),
        collectives=_traffic(cost, mesh=mesh, chip=topology.chip),
        cycles_by_operation=dict(sorted(cost.by_operation.items(), key=lambda c: -c[1])),
        compile_seconds=time.monotonic() - began,
    )
    return _KNOWN[key]


def _compile(lowered: Any, options: dict[str, Any]) -> tuple[Any, str]:
    """Returns the program, and its text as the compiler itself writes it.

    Not by `as_text()`: that goes through jaxlib, which may be older than libtpu and then cannot
    read every program for the newer chips.
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
    """Compiles anew: the cache of compiled programs cannot load one for a device that is not here,
    and one from it has no page.
    """
    is_enabled = jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue]
    # Whether the cache is used jax asks once, until it is reset.
    reset_cache()
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", is_enabled)
        reset_cache()


def _refusal(error: Exception, chip: Chip) -> DoesNotFit | None:
    text = str(error)
    if "RESOURCE_EXHAUSTED" not in text or "memory space vmem" in text:
        return None  # that of the core has room for one fusion, whatever the batch
    match = re.search(r"([\d.]+)([KMGT]?)\)? exceeds available HBM \(([\d.]+)([KMGT]?)\)", text)
    if match is None:
        match = re.search(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm", text)
    if match is None:
        return DoesNotFit(chip.compiler_bytes + 1, chip.compiler_bytes)
    needed, available = (
        int(float(match[i]) * _UNITS[match[i + 1]]) for i in (1, 3)
    )  # fmt: skip
    # Both are rounded to a hundredth of their unit, so that they may be written alike.
    return DoesNotFit(max(needed, available + _UNITS[match[4]] // 100), available)


def _not_compiled(error: Exception, what: str) -> Exception:
    """Returns what to raise where the compiler has another reason; the error itself, if it is none
    of the compiler's, which begin with the name of a status.
    """
    said = str(error).partition("\n")[0]
    if not re.match(r"[A-Z]+(_[A-Z]+)*: ", said):
        return error
    return NotCompiled(f"{what}: the compiler does not take it: {said[:300]}")


def _kernels(cost: hlo_cost.Cost, chip: Chip) -> tuple[KernelCost, ...]:
    """Returns each custom kernel, charged the larger of FLOPs over the peak and bytes over
    bandwidth.
    """

    def cycles(kernel: hlo_cost.Kernel) -> float:
        seconds = max((kernel.flops or 0) / chip.peak_flops, kernel.bytes / chip.memory_bandwidth)
        return seconds * chip.clock_hz

    return tuple(
        KernelCost(
            name=kernel.name,
            count=count,
            flops=kernel.flops,
            bytes=kernel.bytes,
            cycles=round(count * cycles(kernel)),
        )
        for kernel, count in cost.kernels.items()
    )


def _traffic(cost: hlo_cost.Cost, *, mesh: Mesh, chip: Chip) -> tuple[Traffic, ...]:
    """Returns collectives by kind and axes, each with its time at the link rate."""
    sums: dict[tuple, list] = {}
    for collective, count in cost.collectives.items():
        axes = _axes(collective, mesh)
        size = _members(collective, mesh)
        entry = sums.setdefault((collective.kind, axes, size), [0, 0, 0.0])
        entry[0] += count
        entry[1] += count * collective.bytes
        entry[2] += count * _seconds(collective, mesh=mesh, chip=chip)
    return tuple(
        Traffic(kind=kind, axes=axes, group_size=size, count=n, bytes=total, seconds=seconds)
        for (kind, axes, size), (n, total, seconds) in sorted(sums.items())
    )


def _members(collective: hlo_cost.Collective, mesh: Mesh) -> int:
    return mesh.shape["slice"] if collective.over_slices else len(collective.group) or mesh.size


def _seconds(collective: hlo_cost.Collective, *, mesh: Mesh, chip: Chip) -> float:
    return seconds_on_the_links(collective, size=_members(collective, mesh), chip=chip)


def _axes(collective: hlo_cost.Collective, mesh: Mesh) -> tuple[str, ...]:
    """Returns the mesh axes along which the members of a group differ."""
    if collective.over_slices:
        return ("slice",)
    names = tuple(mesh.shape)
    if not collective.group:
        return tuple(name for name in names if mesh.shape[name] > 1)
    places = np.unravel_index(np.array(collective.group), tuple(mesh.shape.values()))
    return tuple(n for n, p in zip(names, places, strict=True) if len(set(p.tolist())) > 1)


def seconds_on_the_links(collective: hlo_cost.Collective, *, size: int, chip: Chip) -> float:
    """Returns the time of one collective on a ring of `size` devices, without the latency of its
    start.

    A device passes on (n - 1) / n of the array, and twice that for an all-reduce. The ring has both
    directions of one dimension, that is two links of a chip, whatever more the chip has: a closed
    ring exists in any grid with an even side, wrapped around or not. Over slices the ring goes
    through the network cards instead.
    """
    share = (size - 1) / size if size > 1 else 0.0
    if collective.kind == "all-reduce":
        share *= 2
    elif collective.kind == "collective-permute":
        share = 1.0
    if collective.over_slices:
        return collective.bytes * share * chip.devices_per_chip / chip.network_bandwidth
    rate = 2 * chip.link_bandwidth
    neighbours = {i ^ 1 for i in collective.group[:1]}
    if chip.devices_per_chip == 2 and collective.group and not neighbours & set(collective.group):
        rate /= 2  # the other core of each chip is in another ring, over the same links
    return collective.bytes * share / rate
