"""Predicts memory, time and cost of every phase of a run on TPUs that this machine does not have.

The compiler determines memory, cycles and collectives (`compile.py`). FLOPs have a closed form
(`update/flops.py`), and a table lists rates and prices (`topologies.py`). The time of a step is its
computation time in the final schedule, plus the exposed part of its collectives, which does not
overlap with computation. Compilation, preemptions, the latency of collectives, and waiting for data
are not included.
"""

import collections
import contextlib
import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from bert_jax.config import PhaseConfig, TrainConfig
from bert_jax.model import bert, sharding
from bert_jax.model.attention.implementation import serving
from bert_jax.registry import OBJECTIVES
from bert_jax.training import preflight
from bert_jax.training.evaluate import batch_shape
from bert_jax.training.hooks import evaluations_in
from bert_jax.update.flops import train_flops
from bert_jax.update.state import TrainState
from bert_jax.versions import installed
from bert_jax_lab.planning import compile, topologies, warnings
from bert_jax_lab.planning.collectives import Traffic
from bert_jax_lab.planning.compile import Compiled, DoesNotFit, NotCompiled
from bert_jax_lab.planning.topologies import Topology


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """The evaluation step of a phase, and the hours of all evaluations of the phase."""

    rows: int
    memory_bytes: int
    step_seconds: float
    hours: float


@dataclass(frozen=True, kw_only=True)
class PhasePlan:
    """One phase. Bytes, cycles, FLOPs and seconds are per device and step."""

    sequence_length: int
    global_batch_size: int
    steps: int
    fits: bool
    memory_bytes: int | None  # None if the compiler rejects the step
    hbm_bytes: int  # per device, from the data sheet
    available_bytes: int  # for one program, from the compiler
    memory: dict[str, int]
    flops_per_device: float
    attention: dict[str, str]  # the implementation for each kind of layer
    # The other fields are None, or empty, if the step does not fit.
    cycles: int | None = None
    collectives: tuple[Traffic, ...] = ()
    step_seconds: float | None = None  # the sum of the next two
    compute_seconds: float | None = None
    exposed_seconds: float | None = None
    collective_seconds: float | None = None  # of all collectives, exposed or not
    mfu: float | None = None
    hours: float | None = None
    host_rows_needed: float | None = None  # per second and host
    evaluation: EvaluationPlan | None = None
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
    chip_hours: float | None
    dollars: float | None
    prices_date: str
    warnings: tuple[str, ...]
    versions: dict[str, str]


def plan(config: TrainConfig, topology: Topology) -> Plan:
    """Compiles every phase of `config` for the topology, which takes minutes for a large model.

    Call `topologies.prepare_environment` first. Raises `UsageError` if the mesh or a batch does not
    divide evenly.
    """
    config = dataclasses.replace(
        config, mesh=dataclasses.replace(config.mesh, slices=topology.slices)
    )
    mesh = compile.make_mesh(config, topology)
    preflight.require_on_mesh(config, mesh)
    phases = tuple(
        phase_plan(config.in_phase(number), number, mesh=mesh, topology=topology)
        for number in range(len(config.phases))
    )
    hours = None
    if fits := all(phase.fits for phase in phases):
        hours = sum(p.hours + p.evaluation.hours for p in phases)  # type: ignore[operator]
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
        chip_hours=None if hours is None else hours * topology.chips,
        dollars=None if hours is None or price is None else hours * topology.chips * price,
        prices_date=topologies.PRICES_DATE,
        warnings=tuple(warnings.warnings(config, phases, topology=topology)),
        versions=installed("bert-jax", "jax", "jaxlib", "libtpu"),
    )


def phase_plan(config: TrainConfig, number: int, *, mesh: Any, topology: Topology) -> PhasePlan:
    """Compiles the steps of one phase; `config` is the phase's config."""
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
    evaluated = None
    try:
        # The evaluation step is first, because it compiles in a fraction of the time.
        evaluated = compile.evaluation_step(config, shape, mesh=mesh, topology=topology)
        trained = compile.train_step(config, phase, mesh=mesh, topology=topology)
    except (DoesNotFit, NotCompiled) as refusal:
        advice = (
            f"the evaluation step: {refusal}; set another evaluation.batch_size"
            if evaluated is None
            else remedy(config, phase, refusal, mesh=mesh, topology=topology)
        )
        return PhasePlan(
            **known,
            fits=False,
            memory_bytes=getattr(refusal, "needed", None),
            available_bytes=getattr(refusal, "available", chip.compiler_bytes),
            memory={},
            remedy=advice,
        )
    compute, exposed = trained.cycles / chip.clock_hz, trained.exposed_cycles / chip.clock_hz
    seconds = compute + exposed
    return PhasePlan(
        **known,
        fits=True,
        memory_bytes=trained.memory.total,
        available_bytes=chip.compiler_bytes,
        memory=dataclasses.asdict(trained.memory),
        cycles=trained.cycles,
        collectives=trained.collectives,
        step_seconds=seconds,
        compute_seconds=compute,
        exposed_seconds=exposed,
        collective_seconds=sum(each.seconds for each in trained.collectives),
        mfu=flops / chip.peak_flops / seconds,
        hours=phase.steps * seconds / 3600,
        host_rows_needed=host_rows(mesh, phase.global_batch_size) / seconds,
        evaluation=_evaluation_plan(config, number, evaluated, shape, topology),
    )


def remedy(
    config: TrainConfig, phase: PhaseConfig, refusal: DoesNotFit | NotCompiled, *, mesh: Any,
    topology: Topology,
) -> str:  # fmt: skip
    """Returns the smallest number of microbatches with which a rejected train step fits. Each
    number is tried by compiling the step.
    """
    if isinstance(refusal, NotCompiled):
        return (
            f"{refusal}; change compute.layer_loop, compute.attention or "
            "optimizer.gradient_accumulation_steps to compile another program"
        )
    rows = phase.global_batch_size // sharding.row_shards(mesh)
    count = 2 * config.optimizer.gradient_accumulation_steps
    while count <= rows:
        optimizer = dataclasses.replace(config.optimizer, gradient_accumulation_steps=count)
        changed = dataclasses.replace(config, optimizer=optimizer)
        with contextlib.suppress(DoesNotFit, NotCompiled):
            if rows % count == 0:
                found = compile.train_step(changed, phase, mesh=mesh, topology=topology)
                return (
                    f"it fits with set optimizer.gradient_accumulation_steps={count} "
                    f"({found.memory.total / 2**30:.2f} GiB per device)"
                )
        count *= 2
    return "it does not fit with any number of microbatches: it needs more chips"


def host_rows(mesh: Any, rows: int) -> float:
    """Returns the number of rows of a global batch on the busiest host, which makes the rows of
    every shard on it.

    Hosts that share a shard, for example with `tensor` over several hosts, all make its rows.
    """
    shards = mesh.devices.reshape(-1, mesh.shape["tensor"])
    hosts = collections.Counter(h for shard in shards for h in {d.process_index for d in shard})
    return rows / len(shards) * max(hosts.values())


def _evaluation_plan(
    config: TrainConfig, number: int, found: Compiled, shape: PhaseConfig, topology: Topology
) -> EvaluationPlan:
    rows = shape.global_batch_size
    seconds = (found.cycles + found.exposed_cycles) / topology.chip.clock_hz
    batches = evaluations_in(config, number) * math.ceil(config.evaluation.num_examples / rows)
    return EvaluationPlan(
        rows=rows,
        memory_bytes=found.memory.total,
        step_seconds=seconds,
        hours=batches * seconds / 3600,
    )
