"""Predicts memory, time and cost of every phase of a run on TPUs that are not here.

Memory, cycles and collectives are the compiler's (`aot_compile.py`), FLOPs have a closed form
(`update/flops.py`), rates and prices are data (`topologies.py`). The prediction is the plain sum of
computation and collectives, as if nothing overlapped. Beside it stand the sum with what the final
schedule lets overlap, and that with everything overlapped, the larger of the two. Left out are
compilation, checkpoints, preemptions, the latency of collectives and whatever the host is late
with.
"""

import collections
import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bert_jax.config import PhaseConfig, TrainConfig
from bert_jax.memory import fit
from bert_jax.model import bert, sharding
from bert_jax.model.attention.implementation import serving
from bert_jax.registry import OBJECTIVES
from bert_jax.training import preflight
from bert_jax.training.evaluate import batch_shape
from bert_jax.training.hooks import evaluations_in
from bert_jax.update.flops import train_flops
from bert_jax.update.state import TrainState
from bert_jax.versions import installed
from bert_jax_lab.planning import aot_compile, plan_warnings, topologies
from bert_jax_lab.planning.save_cost import SavePlan, save_plan
from bert_jax_lab.planning.topologies import Topology

# Compilations for one remedy.
_MOST_TRIES = 8


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """The evaluation step of a phase, and how long all of the phase's evaluations take."""

    rows: int
    memory_bytes: int
    estimated_cycles: int
    step_seconds: float
    hours: float
    scheduled_cycles: int | None = None


@dataclass(frozen=True, kw_only=True)
class PhasePlan:
    """One phase. Bytes, cycles, FLOPs and seconds are those of one device and one step."""

    sequence_length: int
    global_batch_size: int
    steps: int
    fits: bool
    memory_bytes: int | None  # None where the compiler does not take the step
    hbm_bytes: int  # of the device, by its data sheet
    available_bytes: int  # to one program, by the compiler
    memory: dict[str, int]
    flops_per_device: float
    attention: dict[str, str]  # what serves each kind of layers
    # The rest is None, or empty, where the step does not fit.
    estimated_cycles: int | None = None  # by which the compiler chooses tiles
    scheduled_cycles: int | None = None  # by its final schedule, bytes and products
    kernels: tuple[aot_compile.KernelCost, ...] = ()
    collectives: tuple[aot_compile.Traffic, ...] = ()
    cycles_by_operation: dict[str, int] = dataclasses.field(default_factory=dict)
    product_seconds: float | None = None  # matrix products at the peak rate
    memory_seconds: float | None = None  # its traffic at full bandwidth: an upper bound
    compute_seconds: float | None = None  # scheduled cycles over the clock; without, estimated ones
    collective_seconds: float | None = None
    exposed_seconds: float | None = None  # of collectives: the schedule has nothing beside them
    step_seconds: float | None = None  # computation + collectives: the prediction
    step_seconds_overlapped: float | None = None  # the larger of the two
    mfu: float | None = None
    binds: str | None = None  # "compute", "memory" or "network"
    hours: float | None = None
    host_rows_needed: float | None = None  # a second, by each host
    evaluation: EvaluationPlan | None = None
    saving: SavePlan | None = None
    compile_seconds: float | None = None
    remedy: str | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    config: str
    topology: str
    slices: int
    devices: int
    chips: int
    hosts: int
    fits: bool
    phases: tuple[PhasePlan, ...]
    parameters: int
    total_hours: float | None
    total_hours_overlapped: float | None
    chip_hours: float | None
    dollars: float | None
    prices_date: str
    warnings: tuple[str, ...]
    versions: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def plan(config: TrainConfig, topology: Topology) -> Plan:
    """Compiles every phase of `config` for the topology. Minutes for a large model.

    Call `topologies.prepare_environment` first. Raises `UsageError` if the mesh or a batch does not
    divide.
    """
    config = dataclasses.replace(
        config, mesh=dataclasses.replace(config.mesh, slices=topology.slices)
    )
    mesh = aot_compile.make_mesh(config, topology)
    preflight.require_on_mesh(config, mesh)
    phases = tuple(
        _phase_plan(config.in_phase(number), number, mesh=mesh, topology=topology)
        for number in range(len(config.phases))
    )
    fits = all(phase.fits for phase in phases)
    hours = overlapped = None
    if fits:
        hours = sum(p.hours + p.evaluation.hours for p in phases)  # type: ignore[operator]
        overlapped = sum(p.steps * p.step_seconds_overlapped / 3600 for p in phases)  # type: ignore[operator]
        overlapped += sum(p.evaluation.hours for p in phases)  # type: ignore[union-attr]
    price = topology.chip.dollars_per_chip_hour
    return Plan(
        config=config.name,
        topology=topology.name,
        slices=topology.slices,
        devices=topology.devices,
        chips=topology.chips,
        hosts=topology.hosts,
        fits=fits,
        phases=phases,
        parameters=bert.parameter_count(TrainState.abstract(config, mesh).params),
        total_hours=hours,
        total_hours_overlapped=overlapped,
        chip_hours=None if hours is None else hours * topology.chips,
        dollars=None if hours is None or price is None else hours * topology.chips * price,
        prices_date=topologies.PRICES_DATE,
        warnings=tuple(plan_warnings.warnings(config, phases, topology=topology, mesh=mesh)),
        versions=installed("bert-jax", "jax", "jaxlib", "libtpu"),
    )


def _phase_plan(config: TrainConfig, number: int, *, mesh, topology: Topology) -> PhasePlan:
    phase, chip = config.phases[number], topology.chip
    flops = train_flops(OBJECTIVES[config.objective], config.model, phase) / topology.devices
    known = {
        "sequence_length": phase.sequence_length,
        "global_batch_size": phase.global_batch_size,
        "steps": phase.steps,
        "hbm_bytes": chip.hbm_bytes,
        "flops_per_device": flops,
        "attention": serving(
            config.compute.attention,
            config.model,
            length=phase.sequence_length,
            device_kind=chip.device_kind,
            dtype=config.compute.dtype,
        ),
    }
    shape = batch_shape(config, phase, devices=mesh.size)
    held_out = None
    try:
        # The evaluation step first: it is compiled in a fraction of the other one's time.
        held_out = aot_compile.eval_figures(config, shape, mesh=mesh, topology=topology)
        figures = aot_compile.train_figures(config, phase, mesh=mesh, topology=topology)
    except (aot_compile.DoesNotFit, aot_compile.NotCompiled) as refusal:
        if held_out is None:
            advice = evaluation_remedy(config, shape, refusal, mesh=mesh, topology=topology)
        elif isinstance(refusal, aot_compile.NotCompiled):
            advice = (
                f"{refusal}; another compute.layers, compute.attention or "
                "optimizer.gradient_accumulation_steps makes another program"
            )
        else:
            advice = remedy(config, phase, refusal, mesh=mesh, topology=topology)
        return PhasePlan(
            **known,
            fits=False,
            memory_bytes=getattr(refusal, "needed", None),
            available_bytes=getattr(refusal, "available", chip.compiler_bytes),
            memory={},
            remedy=advice,
        )
    compute, network = figures.compute_seconds(chip), figures.collective_seconds
    products = flops / chip.peak_flops
    memory = figures.memory_traffic / chip.memory_bandwidth
    seconds = compute + network
    evaluation = _evaluation_plan(
        config, number, held_out, rows=shape.global_batch_size, topology=topology
    )
    return PhasePlan(
        **known,
        fits=True,
        memory_bytes=figures.memory.total,
        available_bytes=chip.compiler_bytes,
        memory=dataclasses.asdict(figures.memory),
        estimated_cycles=figures.cycles,
        scheduled_cycles=figures.scheduled_cycles,
        kernels=figures.kernels,
        collectives=figures.collectives,
        cycles_by_operation=figures.cycles_by_operation,
        product_seconds=products,
        memory_seconds=memory,
        compute_seconds=compute,
        collective_seconds=network,
        exposed_seconds=figures.exposed_seconds(chip),
        step_seconds=seconds,
        step_seconds_overlapped=max(compute, network),
        mfu=products / seconds,
        binds=_binds(compute=compute, network=network, products=products, memory=memory),
        hours=phase.steps * seconds / 3600,
        host_rows_needed=_host_rows(mesh, phase.global_batch_size) / seconds,
        evaluation=evaluation,
        saving=save_plan(config, seconds, hosts=topology.hosts, mesh=mesh),
        compile_seconds=figures.compile_seconds + held_out.compile_seconds,
    )


def remedy(
    config: TrainConfig, phase: PhaseConfig, refusal: aot_compile.DoesNotFit, *, mesh: Any,
    topology: Topology,
) -> str:  # fmt: skip
    """Returns what makes a refused step fit, tried by compiling it: the least change that does."""

    def needed(changed: TrainConfig) -> float:
        if changed is config:
            return refusal.needed
        return _bytes_of(aot_compile.train_figures, changed, phase, mesh=mesh, topology=topology)

    found = fit.search(
        config,
        needed=needed,
        smaller=lambda config, factor: fit.with_microbatches(
            config, factor, shards=sharding.row_shards(mesh)
        ),
        room=refusal.available,
        tries=_MOST_TRIES,
    )
    if found is None:
        return "accumulation is not enough: it needs compute.remat=full, more chips or less rows"
    fitting, size = found
    number = fitting.optimizer.gradient_accumulation_steps
    return f"it does with set {fit.MICROBATCHES}={number} ({size / 2**30:.2f} GiB a device)"


def evaluation_remedy(
    config: TrainConfig, shape: PhaseConfig,
    refusal: aot_compile.DoesNotFit | aot_compile.NotCompiled, *, mesh: Any, topology: Topology,
) -> str:  # fmt: skip
    """Returns with how many rows, fewer than these, a refused evaluation step is compiled and fits;
    they are tried.
    """
    room, why = topology.chip.compiler_bytes, ""
    if isinstance(refusal, aot_compile.DoesNotFit):
        room = refusal.available
    else:
        why = f"{refusal}; "
    evaluation = dataclasses.replace(config.evaluation, batch_size=shape.global_batch_size)
    refused = dataclasses.replace(config, evaluation=evaluation)

    def needed(changed: TrainConfig) -> float:
        if changed is refused:
            return math.inf
        smaller = dataclasses.replace(shape, global_batch_size=changed.evaluation.batch_size)
        return _bytes_of(aot_compile.eval_figures, config, smaller, mesh=mesh, topology=topology)

    found = fit.search(
        refused,
        needed=needed,
        smaller=lambda config, factor: fit.with_fewer_rows(config, factor, devices=mesh.size),
        room=room,
        tries=_MOST_TRIES,
    )
    if found is None:
        if why:
            return f"{why}nor with fewer rows"
        return "the evaluation step is what does not fit, with any batch: it needs more chips"
    fitting, size = found
    rows = f"set {fit.EVALUATION_ROWS}={fitting.evaluation.batch_size}"
    return f"{why}the evaluation step does with {rows} ({size / 2**30:.2f} GiB a device)"


def _bytes_of(
    figures: Callable[..., aot_compile.Figures], config: TrainConfig, shape: PhaseConfig, *,
    mesh: Any, topology: Topology,
) -> float:  # fmt: skip
    """Returns the bytes of a device that a compiled step takes; infinity where it is refused."""
    try:
        return figures(config, shape, mesh=mesh, topology=topology).memory.total
    except (aot_compile.DoesNotFit, aot_compile.NotCompiled):
        return math.inf


def _host_rows(mesh: Any, rows: int) -> float:
    """Returns how many rows of a global batch the busiest host makes: those of every shard that it
    has a part of.

    Hosts that share a shard, as `tensor` over more than one of them makes them, each make its rows.
    """
    shards = mesh.devices.reshape(-1, mesh.shape["tensor"])
    hosts = collections.Counter(h for shard in shards for h in {d.process_index for d in shard})
    return rows / len(shards) * max(hosts.values())


def _evaluation_plan(
    config: TrainConfig, number: int, figures: aot_compile.Figures, *, rows: int,
    topology: Topology,
) -> EvaluationPlan:  # fmt: skip
    seconds = figures.compute_seconds(topology.chip) + figures.collective_seconds
    batches = evaluations_in(config, number) * math.ceil(config.evaluation.num_examples / rows)
    return EvaluationPlan(
        rows=rows,
        memory_bytes=figures.memory.total,
        estimated_cycles=figures.cycles,
        scheduled_cycles=figures.scheduled_cycles,
        step_seconds=seconds,
        hours=batches * seconds / 3600,
    )


def _binds(*, compute: float, network: float, products: float, memory: float) -> str:
    """Returns what would help most if it were faster, by the largest of the three lower bounds."""
    if network > compute:
        return "network"
    return "memory" if memory > products else "compute"
