"""The estimate of a step's memory beside the compiler's figure, and beside what a process takes.

    python benchmarks/memory_estimate.py [--run] [--shape '[2, 256, 128, 32, 1, []]']
    python benchmarks/memory_estimate.py --plans

Six shapes of pre-training, from 0.3 to 4 GiB. With --run each step runs three times in a process of
its own, whose peak of resident memory, less what the process had before there was a state, stands
beside the estimate and what a process takes by itself. Off by more than a fifth, of the compiler's
figure or of the peak, is exit code 1. With --plans the estimates of the steps in docs/plans.json
appear there next to the figures of the TPU compiler, without its programs.
"""

import argparse
import dataclasses
import json
import multiprocessing
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Layers, width, length, rows, microbatches, and what else is set.
_SHAPES: tuple[tuple[int, int, int, int, int, tuple[str, ...]], ...] = (
    (2, 256, 128, 32, 1, ()),
    (8, 512, 128, 16, 1, ("compute.dtype=bfloat16",)),
    (6, 384, 512, 8, 1, ()),
    (12, 768, 128, 32, 2, ("model.vocab_size=30522",)),
    (8, 512, 512, 16, 1, ("compute.layers=scan", "compute.remat=full")),
    (12, 512, 256, 32, 2, ("compute.layers=scan", "compute.remat=dots")),
)
_GIB = 2**30


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", action="store_true", help="run the steps, too")
    parser.add_argument("--shape", type=json.loads, help="one alone, as a list in JSON")
    parser.add_argument("--plans", action="store_true", help="the steps of docs/plans.json instead")
    arguments = parser.parse_args()
    if arguments.plans:
        print("| plan | rows x length | estimate | compiler | ratio |\n" + "|---" * 5 + "|")
        for plan in json.loads((Path(__file__).parents[1] / "docs/plans.json").read_text()):
            for shape, ours, exact in of_plan(plan):
                sizes = f"{ours / _GIB:.2f} | {exact / _GIB:.2f} | {ours / exact:.2f}"
                print(f"| {plan['config']} {plan['topology']} | {shape} | {sizes} |")
        return 0
    shapes = [arguments.shape] if arguments.shape else _SHAPES
    print("| layers x width | length | rows | microbatches | other | estimate | compiler | ratio |"
          + (" with its process | process | ratio |" if arguments.run else ""))  # fmt: skip
    print("|" + "---|" * (11 if arguments.run else 8))
    worst = 0.0
    # A process for each: glibc keeps what one step has freed.
    context = multiprocessing.get_context("spawn")
    for shape in shapes:
        with context.Pool(1) as pool:
            estimate, expected, exact, peak = pool.apply(_measure, (shape, arguments.run))
        layers, width, length, rows, pieces, others = shape
        cells = [f"{layers} x {width}", length, rows, pieces, ", ".join(others)]
        cells += [f"{estimate / _GIB:.2f}", f"{exact / _GIB:.2f}", f"{estimate / exact:.2f}"]
        if arguments.run:
            cells += [f"{expected / _GIB:.2f}", f"{peak / _GIB:.2f}", f"{expected / peak:.2f}"]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
        worst = max(worst, abs(estimate / exact - 1))
        if arguments.run:
            worst = max(worst, abs(expected / peak - 1))
    return int(worst > 0.2)


def of_plan(plan: dict[str, Any]) -> Iterator[tuple[str, int, int]]:
    """Yields rows x length of each step of a plan, and its bytes on a device: those estimated, and
    those of the TPU compiler without its program.
    """
    import jax

    from bert_jax.config_loader import load_config
    from bert_jax.memory import estimate
    from bert_jax.registry import OBJECTIVES
    from bert_jax.update.state import TrainState
    from bert_jax_lab.planning import param_sharding, topologies

    config = load_config(plan["config"], [f"mesh.slices={plan['slices']}", *plan["overrides"]])
    topology = topologies.parse(plan["topology"], slices=plan["slices"])
    mesh = param_sharding.abstract_mesh(config, topology)
    with jax.sharding.use_abstract_mesh(mesh):
        state = TrainState.abstract(config, mesh)
    for phase, found in zip(config.phases, plan["phases"], strict=True):
        sizes = dataclasses.asdict(phase)
        sizes = {name: sizes[name] for name in ("sequence_length", "max_predictions")}
        batch = {
            name: jax.ShapeDtypeStruct((phase.global_batch_size, f.columns(**sizes)), f.dtype)
            for name, f in OBJECTIVES[config.objective].fields.items()
        }
        ours = estimate.of_train_step(config, state, batch, mesh=mesh, platform="tpu").total
        exact = sum(size for kind, size in found["memory"].items() if kind != "program")
        yield f"{phase.global_batch_size:,} x {phase.sequence_length:,}", ours, exact


def _measure(shape: Any, is_run: bool) -> tuple[int, int, int, int]:
    """Returns figures in bytes: estimated for the step and with its process; the compiler's; the
    process's.
    """
    import jax

    from bert_jax.config_loader import load_config
    from bert_jax.memory import estimate
    from bert_jax.model import sharding
    from bert_jax.registry import OBJECTIVES
    from bert_jax.training import device_feed
    from bert_jax.update.state import TrainState
    from bert_jax.update.step import compile_lowered, lower_train_step, temporary_bytes

    layers, width, length, rows, pieces, others = shape
    phase = {"sequence_length": length, "steps": 3, "global_batch_size": rows}
    config = load_config(
        "bert_base",
        [
            f"model.num_hidden_layers={layers}",
            f"model.hidden_size={width}",
            f"model.num_attention_heads={width // 64}",
            f"model.intermediate_size={4 * width}",
            "model.vocab_size=8192",
            "compute.dtype=float32",
            "optimizer.warmup_steps=1",
            f"optimizer.gradient_accumulation_steps={pieces}",
            f"phases={json.dumps([phase])}",
            *others,
        ],
    )
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    platform, objective = jax.devices()[0].platform, OBJECTIVES[config.objective]
    with jax.set_mesh(mesh):
        batch = device_feed.abstract_batch(config.phases[0], fields=objective.fields, mesh=mesh)
        abstract = TrainState.abstract(config, mesh)
        places = {"mesh": mesh, "platform": platform}
        total = estimate.of_train_step(config, abstract, batch, **places).total
        expected = total + estimate.process_bytes(platform=platform)
        state_bytes = sharding.bytes_per_device(abstract)
        step = compile_lowered(lower_train_step(config, abstract, batch, objective=objective))
        exact = state_bytes + temporary_bytes(step.memory_analysis())
        if not is_run:
            return total, expected, exact, 0
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        state = TrainState.initial(config, mesh)
        zeros = {n: jax.numpy.zeros(x.shape, x.dtype, device=x.sharding) for n, x in batch.items()}
        for _ in range(3):
            state, metrics = step(state, zeros)
            jax.block_until_ready(metrics)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return total, expected, exact, (peak - before) * 1024


if __name__ == "__main__":
    sys.exit(main())
