"""Cycles of one train step, its layers scanned and unrolled, in all and by operation.

    python benchmarks/scan_against_unroll.py [--topology v3:4x8] [--layers 4]

Needs the `plan` extra. BERT-Base with fewer layers, phase 1. In the scanned step the loop's body is
counted as often as it runs, so both columns cover the same work; what differs is what a loop costs.
The schedule has no cycles by operation: those are the compiler's estimates, which are too many
where a part of an array is read or written.
"""

import argparse
import dataclasses

from bert_jax_lab.planning import topologies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topology", default="v3:4x8")
    parser.add_argument("--layers", type=int, default=4)
    arguments = parser.parse_args()
    topologies.prepare_environment()

    from bert_jax import config_loader
    from bert_jax_lab.planning import aot_compile

    topology = topologies.parse(arguments.topology)
    base = config_loader.load_config("bert_base", [f"model.num_hidden_layers={arguments.layers}"])
    found = {}
    for layers in ("unroll", "scan"):
        config = dataclasses.replace(base, compute=dataclasses.replace(base.compute, layers=layers))
        found[layers] = aot_compile.train_figures(
            config,
            config.phases[0],
            mesh=aot_compile.make_mesh(config, topology),
            topology=topology,
        )
    unrolled, scanned = found["unroll"], found["scan"]
    names = sorted(
        unrolled.cycles_by_operation.keys() | scanned.cycles_by_operation.keys(),
        key=lambda n: (
            -abs(scanned.cycles_by_operation.get(n, 0) - unrolled.cycles_by_operation.get(n, 0))
        ),
    )
    print("| operation | unrolled, k cycles | scanned, k cycles | difference |")
    print("|---|---|---|---|")
    by_schedule = [figures.scheduled_cycles or 0 for figures in (unrolled, scanned)]
    rows = [
        ("all, by schedule", *by_schedule),
        ("all, estimated", unrolled.compiler_cycles, scanned.compiler_cycles),
    ]
    rows += [
        (n, unrolled.cycles_by_operation.get(n, 0), scanned.cycles_by_operation.get(n, 0))
        for n in names[:10]
    ]
    for name, a, b in rows:
        print(f"| {name} | {a / 1e3:,.0f} | {b / 1e3:,.0f} | {(b - a) / 1e3:+,.0f} |")
    print(f"compiled in {unrolled.compile_seconds:.0f} s and {scanned.compile_seconds:.0f} s")


if __name__ == "__main__":
    main()
