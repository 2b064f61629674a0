"""Compares a token in rows of 8,192 with one in rows of 1,024: whole train steps of modern_base.

    python benchmarks/long_rows.py                          # a CPU: minutes, 6 GiB
    python benchmarks/long_rows.py --topology v5e:8x8       # by the TPU compiler

Steps with 4 and with 7 of its 22 layers, which are one more global layer and two local ones: a
straight line through both gives all 22, 8 of them global. On a CPU an update has 8,192 tokens in
float32, and the steps take turns. On a TPU it is the recipe's own, and times are the compiler's
cycles over the clock, with collectives (`bert-jax plan`).
"""

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from bert_jax_lab.planning import topologies

LENGTHS, DEPTHS, ALL = (1024, 8192), (4, 7), 22
_TOKENS = 8192


def config_of(name: str, length: int, layers: int, *changes: str) -> Any:
    """Returns the config with its last phase of that length alone, and so many layers."""
    from bert_jax import config_loader

    config = config_loader.load_config(name)
    number = max(i for i, p in enumerate(config.phases) if p.sequence_length == length)
    rows = config.phases[number].global_batch_size
    phase = f'[{{"sequence_length": {length}, "steps": 1000, "global_batch_size": {rows}, '
    phase += '"masked_lm_prob": 0.3}]'
    fixed = (f"phases={phase}", f"model.num_hidden_layers={layers}")
    return config_loader.load_config(name, [*fixed, "optimizer.warmup_steps=0", *changes])


def on_a_cpu(name: str, turns: int) -> list[list[str]]:
    """Returns the rows of the table: seconds of a step at either depth and of all layers."""
    import jax
    import sliced_loss

    from bert_jax.model import sharding

    mesh = sharding.make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])
    small = ("compute.dtype=float32", "optimizer.gradient_accumulation_steps=1")
    with jax.set_mesh(mesh):
        steps = [
            sliced_loss.step_of(
                config_of(name, length, layers, *small,
                          f"phases.0.global_batch_size={_TOKENS // length}"),
                mesh,
            )
            for length in LENGTHS
            for layers in DEPTHS
        ]  # fmt: skip
        seconds = iter(sliced_loss.in_turns(steps, turns))
    return _rows([(length, next(seconds), next(seconds), _TOKENS) for length in LENGTHS], [])


def by_the_compiler(name: str, topology: Any, changes: list[str]) -> list[list[str]]:
    """Returns the same by the TPU compiler, with the memory of a device."""
    from bert_jax_lab.planning import aot_compile

    measured, memory = [], []
    for length in LENGTHS:
        seconds, gibibytes = [], []
        for layers in DEPTHS:
            config = config_of(name, length, layers, *changes)
            mesh = aot_compile.make_mesh(config, topology)
            (phase,) = config.phases
            found = aot_compile.train_figures(config, phase, mesh=mesh, topology=topology)
            seconds.append(found.cycles / topology.chip.clock_hz + found.collective_seconds)
            gibibytes.append(found.memory.total / 2**30)
            print(length, layers, f"{found.cycles / 1e6:.2f} M cycles", f"{seconds[-1]:.4f} s",
                  f"{gibibytes[-1]:.2f} GiB, compiled in {found.compile_seconds:.0f} s",
                  file=sys.stderr)  # fmt: skip
        tokens = phase.global_batch_size * length / topology.devices
        measured.append((length, *seconds, tokens))
        memory.append(f"{_line(*gibibytes):.2f}")
    return _rows(measured, memory)


def _line(few: float, many: float) -> float:
    """Returns what all layers come to."""
    return few + (ALL - DEPTHS[0]) * (many - few) / (DEPTHS[1] - DEPTHS[0])


def _rows(measured: list[tuple[int, float, float, float]], memory: list[str]) -> list[list[str]]:
    first, *_ = (_line(few, many) / tokens for _, few, many, tokens in measured)
    return [
        [f"{length:,}", f"{few:.3f}", f"{many:.3f}", f"{_line(few, many):.3f}",
         f"{1e6 * _line(few, many) / tokens:.2f}", f"{_line(few, many) / tokens / first:.2f}",
         *memory[i : i + 1]]
        for i, (length, few, many, tokens) in enumerate(measured)
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="modern_base")
    parser.add_argument("--topology", help="such as v5e:8x8; a CPU that is here without it")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    arguments = parser.parse_args()
    columns = ["length", *(f"{n} layers: s" for n in DEPTHS), f"{ALL} layers: s",
               "a token of a device: us", "of that at 1,024"]  # fmt: skip
    if arguments.topology is None:
        rows = on_a_cpu(arguments.config, arguments.turns)
    else:
        topology = topologies.parse(arguments.topology)
        topologies.prepare_environment()
        columns.append("memory: GiB a device")
        rows = by_the_compiler(arguments.config, topology, arguments.set)
    from bert_jax.pretrained.model_card import markdown_table

    print(markdown_table(columns, rows))


if __name__ == "__main__":
    main()
