"""The TPU compiler's estimate of a BERT-Large step, from two depths, in a minute.

    pip install -e '.[plan]'
    python benchmarks/tpu_cycles.py v3:4x8 128 [FIELD=VALUE ...]
    python benchmarks/tpu_cycles.py v3:4x8 512 --variant bits-16
    python benchmarks/tpu_cycles.py v5e:8x8 128 --option xla_tpu_scoped_vmem_limit_kib=32768

Compiles the step with 2 and with 6 layers and prints cycles a layer, cycles of everything else, and
what 24 layers come to (`bert-jax plan` compiles all of them: minutes; the two agree within 2 %).
Beside the estimate of each depth stand the count by the final schedule and the collectives beside
which it has no work (bert_jax_lab/planning/schedule.py).
`--variant` compiles another way of doing something, to see whether it pays: see
`benchmarks/tpu_variants.py`.
"""

import argparse

from bert_jax_lab.planning import topologies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("topology", help="such as v3:4x8")
    parser.add_argument("length", type=int, choices=(128, 512))
    parser.add_argument("overrides", nargs="*", metavar="FIELD=VALUE")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="OPTION",
        help="leave out an option of bert_jax/update/compiler_options.py",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="OPTION=VALUE",
        help="give the compiler one more option",
    )
    parser.add_argument("--variant", help="a name in benchmarks/tpu_variants.py")
    parser.add_argument(
        "--depths",
        type=int,
        nargs=2,
        default=(2, 6),
        metavar="LAYERS",
        help="the two depths; a loop runs over all layers but the last",
    )
    arguments = parser.parse_args()
    topologies.prepare_environment()

    import tpu_variants

    from bert_jax import config_loader
    from bert_jax.update import compiler_options
    from bert_jax_lab.planning import aot_compile

    for option in arguments.without:
        del compiler_options.TPU_COMPILER_OPTIONS[option]
    compiler_options.TPU_COMPILER_OPTIONS.update(o.split("=", 1) for o in arguments.option)
    if arguments.variant:
        if arguments.variant not in tpu_variants.VARIANTS:
            parser.error(f"--variant: choose from {', '.join(tpu_variants.VARIANTS)}")
        tpu_variants.VARIANTS[arguments.variant]()
    topology = topologies.parse(arguments.topology)
    few, many = arguments.depths
    cycles = {}
    for layers in (few, many):
        config = config_loader.load_config(
            "bert_large", [f"model.num_hidden_layers={layers}", *arguments.overrides]
        )
        (phase,) = [p for p in config.phases if p.sequence_length == arguments.length]
        mesh = aot_compile.make_mesh(config, topology)
        figures = aot_compile.train_figures(config, phase, mesh=mesh, topology=topology)
        cycles[layers] = figures.cycles
        by_schedule = f", {(figures.scheduled_cycles or 0) / 1e6:.2f} M by schedule"
        milliseconds = (
            1e3 * (seconds or 0)
            for seconds in (
                figures.compute_seconds(topology.chip),
                figures.collective_seconds,
                figures.exposed_seconds(topology.chip),
            )
        )
        print(
            f"{layers} layers: {cycles[layers] / 1e6:.2f} M cycles{by_schedule}; computation "
            "{:.2f} ms, collectives {:.2f} ms, {:.2f} of these with no work beside them".format(
                *milliseconds
            ),
            flush=True,
        )
        for kernel in figures.kernels:
            print(f"  {kernel}")
    layer = (cycles[many] - cycles[few]) / (many - few)
    rest = cycles[few] - few * layer
    print(
        f"{arguments.topology}, length {arguments.length}: {layer / 1e6:.3f} M a layer, "
        f"{rest / 1e6:.3f} M for the rest, {(24 * layer + rest) / 1e6:.1f} M for 24 layers"
    )


if __name__ == "__main__":
    main()
