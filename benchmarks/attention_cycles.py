"""Cycles and memory of one layer's attention, forward and backward, by the TPU compiler.

    python benchmarks/attention_cycles.py v5e chunked 8192 1 [--window 128]
    python benchmarks/attention_cycles.py v3 fused 512 4 --heads 16 --dropout 0.1

12 heads of 64 (ModernBERT-Base) where nothing else is said, in bfloat16 on one device, rows of one
sequence. Prints the compiler's estimate, and the cycles of its final schedule or of its bytes,
whichever are more (bert_jax_lab/planning/schedule.py); kernels are in the latter alone.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from bert_jax_lab.planning import schedule, topologies
from bert_jax_lab.planning.topologies import CHIPS

SIZE = 64


def main() -> None:
    parser = argparse.ArgumentParser(description="Cycles of attention by the TPU compiler.")
    parser.add_argument("generation", choices=CHIPS)
    parser.add_argument("attention", help="such as chunked")
    parser.add_argument("length", type=int)
    parser.add_argument("rows", type=int)
    parser.add_argument("--window", type=int)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--dropout", type=float, default=0.0, help="the share of weights dropped")
    arguments = parser.parse_args()
    chip = CHIPS[arguments.generation]
    topologies.prepare_environment()
    with tempfile.TemporaryDirectory() as folder:
        import jax
        import jax.numpy as jnp

        from bert_jax.model import sharding
        from bert_jax.model.dropout import DropoutKey
        from bert_jax.model.mask import Mask
        from bert_jax.registry import ATTENTION

        entry = ATTENTION[arguments.attention]

        def both_ways(q, k, v, ids_BL, places_BL, g):
            mask = Mask.of_rows(ids_BL, places_BL, window=arguments.window)
            key = DropoutKey.create(seed=0, step=jnp.int32(0), rows_B=places_BL[:, 0])
            options = {"bias_BHLS": None, "key": key, "rate": arguments.dropout}

            def attend(q, k, v):
                return entry.attend(q, k, v, mask=mask, **options)

            out, pull = jax.vjp(attend, q, k, v)
            return out, pull(g)

        shape = "2x2x1" if chip.is_three_dimensional else "2x2"
        topology = topologies.parse(f"{arguments.generation}:{shape}")
        mesh = sharding.make_mesh(fsdp=1, tensor=1, devices=topologies.devices(topology)[:1])
        with jax.set_mesh(mesh):
            rows = sharding.batch_sharding(mesh)
            size = (arguments.rows, arguments.heads, SIZE, arguments.length)
            x = jax.ShapeDtypeStruct(size, "bfloat16", sharding=rows)
            ids = jax.ShapeDtypeStruct(size[::3], "int32", sharding=rows)
            lowered = jax.jit(both_ways).trace(x, x, x, ids, ids, x)
            program = lowered.lower(lowering_platforms=("tpu",)).compile(
                compiler_options={"xla_dump_to": folder, "xla_dump_hlo_as_text": True,
                                  "xla_dump_hlo_pass_re": ""}
            )  # fmt: skip
        (page,) = Path(folder).glob("*.after_codegen.txt")
        found = schedule.cycles(page.read_text(encoding="utf-8"), chip)
    assert found is not None
    memory: Any = program.memory_analysis()
    print(
        f"{found.estimated / 1e6:.2f} M cycles estimated; {found.real / 1e6:.2f} M by schedule and "
        f"bytes ({found.bundles / 1e6:.2f} M, {found.by_memory / 1e6:.2f} M); "
        f"{memory.temp_size_in_bytes / 2**20:,.0f} MiB"
    )


if __name__ == "__main__":
    main()
