"""Predict a run on TPUs that are not here.

Compiles every step of the config ahead of time with the real TPU compiler, on any Linux machine,
and says what it needs and takes: memory, cycles, collectives, step time, hours, dollars, and
warnings. Exit code 2 if a step does not fit. It needs the TPU compiler, `pip install libtpu`, best
in a separate environment: where libtpu is installed, jax looks for a TPU at every start.
"""

import dataclasses
import json
from typing import Any

from bert_jax.cli.corpora import Corpora, corpora
from bert_jax.cli.options import WithConfig
from bert_jax.cli.output import in_options, table, tell
from bert_jax.config.fields import REQUIRED, section, setting
from bert_jax.errors import UsageError


@section
class PlanOptions(WithConfig):
    topology: str = setting(
        REQUIRED,
        "NAME: generation and chips of a slice, such as v3:4x8, v4:4x4x4, v5e:8x8, tpu7x:2x4x4",
    )
    slices: int | None = setting(
        None, "N: slices of that size (default: the config's `mesh.slices`)"
    )
    corpus: Corpora = setting(
        (),
        "DIR|NAME=DIR: a directory of prepare, or several: say how many epochs the phases are, "
        "of each source",
    )
    json: bool = setting(False, "print the plan as JSON")


def run(options: PlanOptions) -> int:
    from bert_jax import config_loader
    from bert_jax_lab.planning import topologies

    config = config_loader.load_config(options.config, options.overrides)
    slices = config.mesh.slices if options.slices is None else options.slices
    topology = topologies.parse(options.topology, slices=slices)
    topologies.prepare_environment()
    from bert_jax.data.corpus.several import open_corpora
    from bert_jax_lab.cli.sources import objects, print_sources, sources_of
    from bert_jax_lab.planning.plan import plan

    place = corpora(options.corpus)
    # Before the steps are compiled, which takes minutes.
    sources = [] if place is None else sources_of(config, open_corpora(place))
    found = _in_options(plan(config, topology))
    if options.json:
        more = {"sources": objects(config, sources)} if sources else {}
        print(json.dumps(found.to_json() | more, indent=2))
    else:
        _print_plan(found)
        if sources:
            print_sources(config, sources)
    return 0 if found.fits else UsageError.exit_code


def _in_options(plan: Any) -> Any:
    """Returns the plan with its advice as --set."""

    def shown(text: str | None) -> str | None:
        return text and in_options(text, {})

    phases = tuple(dataclasses.replace(p, remedy=shown(p.remedy)) for p in plan.phases)
    return dataclasses.replace(plan, phases=phases, warnings=tuple(map(shown, plan.warnings)))


def _print_plan(plan: Any) -> None:
    slices = f"{plan.slices} slices of " if plan.slices > 1 else ""
    tell(
        f"{plan.config} on {slices}{plan.topology}: {plan.devices} devices, {plan.chips} chips, "
        f"{plan.hosts} hosts; {plan.parameters:,} parameters"
    )
    for phase in plan.phases:
        _print_phase(phase)
    if plan.total_hours is not None:
        dollars = "no list price found"
        if plan.dollars is not None:
            dollars = f"${plan.dollars:,.0f} on demand (prices of {plan.prices_date})"
        tell(
            f"whole recipe: {_hours(plan.total_hours)} ({_hours(plan.total_hours_overlapped)} if "
            f"all communication overlaps), {plan.chip_hours:,.0f} chip-hours, {dollars}"
        )
    for warning in plan.warnings:
        tell(f"warning: {warning}")


def _print_phase(phase: Any) -> None:
    title = (
        f"length {phase.sequence_length}, {phase.global_batch_size:,} rows, {phase.steps:,} steps"
    )
    if phase.memory_bytes is None:
        tell(f"{title}: NOT COMPILED: {phase.remedy}")
        return
    if not phase.fits:
        tell(
            f"{title}: DOES NOT FIT: needs {_gib(phase.memory_bytes)} a device, of which the "
            f"compiler has {_gib(phase.available_bytes)}; {phase.remedy}"
        )
        return
    memory = phase.memory
    kinds = ", ".join(f"{name} {_gib(size)}" for name, size in memory.items() if size)
    rows = [
        (
            "memory",
            f"{_gib(phase.memory_bytes)} of {_gib(phase.available_bytes)} "
            f"({_gib(phase.hbm_bytes)} on the device)",
            kinds,
        ),
        (
            "FLOPs a device",
            f"{phase.flops_per_device:.4g}",
            f"{_ms(phase.product_seconds)} at the peak rate",
        ),
    ]
    at_the_clock = f"{_ms(phase.compute_seconds)} at the clock"
    if phase.scheduled_cycles is not None:
        told = f"{at_the_clock}; the final schedule, bytes and products, whichever are most"
        rows.append(("scheduled cycles", f"{phase.scheduled_cycles:,}", told))
        at_the_clock = "the estimate that tiles are chosen by"
    told = f"{at_the_clock}: {_largest(phase)}"
    rows.append(("compiler's cycles", f"{phase.estimated_cycles:,}", told))
    rows += _kernels(phase)
    if phase.attention:
        named = (f"{entry} in {layers} layers" for layers, entry in phase.attention.items())
        rows.append(("attention", "", ", ".join(named)))
    rows += [
        (
            traffic.kind,
            _ms(traffic.seconds),
            f"{traffic.count} over {' x '.join(traffic.axes) or '-'} ({traffic.group_size}), "
            f"{traffic.bytes / 2**20:,.1f} MiB in all",
        )
        for traffic in phase.collectives
    ]
    held_out = phase.evaluation
    scheduled = ""
    if phase.exposed_seconds is not None and phase.collective_seconds:
        hidden = 100 * (1 - phase.exposed_seconds / phase.collective_seconds)
        seconds = phase.compute_seconds + phase.exposed_seconds
        scheduled = f"{_ms(seconds)} by the schedule, {hidden:.0f} % of collectives beside work; "
    rows += [
        (
            "step",
            _ms(phase.step_seconds),
            f"computation + collectives; {scheduled}"
            f"{_ms(phase.step_seconds_overlapped)} if all overlaps; "
            f"{phase.binds} binds",
        ),
        ("MFU", f"{100 * phase.mfu:.1f} %", f"{_hours(phase.hours)} in all"),
        (
            "host's duty",
            f"{phase.host_rows_needed:,.0f} rows/s",
            "of each host",
        ),
        (
            "evaluation step",
            _ms(held_out.step_seconds),
            f"{held_out.rows:,} rows, {_gib(held_out.memory_bytes)} a device, "
            f"{held_out.scheduled_cycles or held_out.estimated_cycles:,} cycles",
        ),
        (
            "a save",
            f"{phase.saving.bytes / 1e9:.2f} GB",
            f"about {phase.saving.seconds:.0f} s, {phase.saving.per_hour:,.1f} an hour: "
            f"{100 * phase.saving.share:.1f} % of the time",
        ),
    ]
    table(title, ("", "figure", "of which"), rows)


def _kernels(phase: Any) -> list[tuple[str, str, str]]:
    """Returns a row for each kind of kernel, what costs most first."""
    kinds: dict[str, tuple[int, int]] = {}
    for kernel in phase.kernels:
        count, cycles = kinds.get(kernel.kind, (0, 0))
        kinds[kernel.kind] = (count + kernel.count, cycles + kernel.cycles)
    costly_first = sorted(kinds.items(), key=lambda item: -item[1][1])
    return [
        ("kernel (charged)", f"{cycles:,} cycles", f"{count} x {kind}, no estimate by the compiler")
        for kind, (count, cycles) in costly_first
    ]


def _largest(phase: Any, number: int = 5) -> str:
    """Returns the operations that most cycles go to."""
    total = sum(phase.cycles_by_operation.values())
    largest = list(phase.cycles_by_operation.items())[:number]
    return ", ".join(f"{name} {100 * cycles / total:.0f} %" for name, cycles in largest)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**27 else f"{size / 2**20:.1f} MiB"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"


def _hours(hours: float) -> str:
    return f"{hours:.2f} h" if hours >= 0.1 else f"{3600 * hours:.0f} s"
