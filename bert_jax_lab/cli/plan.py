"""Estimate memory, time and cost of a run on TPUs without a TPU.

Compiles every step of the config with the real TPU compiler, on any Linux machine, and prints
memory, cycles, collectives, step time, hours, dollars and warnings. The exit code is 2 if a step
does not fit. It needs the TPU compiler, `pip install libtpu`. Install libtpu in a separate
environment, because jax looks for a TPU at every start if libtpu is installed.

example:
  bert-jax plan bert_large_64core --topology v5e:8x8
"""

import dataclasses
import json
from typing import Any

from bert_jax.cli.options import WithConfig
from bert_jax.cli.output import in_options, table, tell
from bert_jax.config.fields import REQUIRED, section, setting
from bert_jax.errors import UsageError


@section
class PlanOptions(WithConfig):
    topology: str = setting(
        REQUIRED,
        "NAME: generation and shape of a slice, for example v3:4x8, v4:4x4x4, v5e:8x8, tpu7x:2x4x4",
    )
    slices: int | None = setting(None, "N: number of slices (default: `mesh.slices` of the config)")
    json: bool = setting(False, "print the plan as JSON")


def run(options: PlanOptions) -> int:
    from bert_jax import config_loader
    from bert_jax_lab.planning import topologies

    config = config_loader.load_config(options.config, options.overrides)
    slices = config.mesh.slices if options.slices is None else options.slices
    topology = topologies.parse(options.topology, slices=slices)
    topologies.prepare_environment()
    from bert_jax_lab.planning.plan import plan

    found = _in_options(plan(config, topology))
    if options.json:
        print(json.dumps(dataclasses.asdict(found), indent=2))
    else:
        _print_plan(found)
    return 0 if found.fits else UsageError.exit_code


def _in_options(plan: Any) -> Any:
    """Returns the plan with its remedies as --set."""

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
        hours = f"{_hours(plan.total_hours)}, {plan.chip_hours:,.0f} chip-hours"
        tell(f"whole recipe: {hours}, {dollars}")
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
        sizes = f"{_gib(phase.memory_bytes)} per device of {_gib(phase.available_bytes)}"
        tell(f"{title}: DOES NOT FIT: needs {sizes}; {phase.remedy}")
        return
    memory = f"{_gib(phase.memory_bytes)} of {_gib(phase.available_bytes)}"
    kinds = ", ".join(f"{name} {_gib(size)}" for name, size in phase.memory.items() if size)
    hidden = 1 - phase.exposed_seconds / (phase.collective_seconds or 1.0)
    beside = f"of {_ms(phase.collective_seconds)} of collectives: {hidden:.0%} beside computation"
    named = ", ".join(f"{entry} in {layers} layers" for layers, entry in phase.attention.items())
    evaluated = phase.evaluation
    rows = [
        ("memory", memory, f"{kinds}; the device has {_gib(phase.hbm_bytes)}"),
        ("step", _ms(phase.step_seconds), f"computation + exposed; {_hours(phase.hours)} in total"),
        ("computation", _ms(phase.compute_seconds), f"{phase.cycles:,} cycles by the schedule"),
        ("exposed", _ms(phase.exposed_seconds), beside),
    ]
    for each in phase.collectives:
        axes = f"{' x '.join(each.axes) or '-'} ({each.group_size})"
        size = f"{each.count} over {axes}, {each.bytes / 2**20:,.1f} MiB in total"
        rows.append((each.kind, _ms(each.seconds), size))
    rows += [
        ("MFU", f"{phase.mfu:.1%}", f"{phase.flops_per_device:.4g} FLOPs per device"),
        ("attention", "", named),
        ("rows per host", f"{phase.host_rows_needed:,.0f}/s", "so that no step waits for data"),
    ]
    size = f"{evaluated.rows:,} rows, {_gib(evaluated.memory_bytes)} per device"
    rows.append(("evaluation step", _ms(evaluated.step_seconds), size))
    table(title, ("", "value", "parts"), rows)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**27 else f"{size / 2**20:.1f} MiB"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"


def _hours(hours: float) -> str:
    return f"{hours:.2f} h" if hours >= 0.1 else f"{3600 * hours:.0f} s"
