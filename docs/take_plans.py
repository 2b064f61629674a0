"""Writes plans.json: plans of the large recipes for TPU slices, by the TPU compiler.

    python docs/take_plans.py               # compiles the missing plans: hours on two cores
    python docs/take_plans.py NUMBER ...    # compiles these plans again, counted from 0

`docs/generate.py` writes the table in benchmarks/results/tpu-plans.md from plans.json.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_name("plans.json")
_IN_A_LOOP = ("compute.layer_loop=scan",)
# Config, topology, slices, overrides. The compilers of tpu7x and for ModernBERT need hours for
# unrolled layers; the compiler of v6e refuses 256 evaluated rows of 8,192 (libtpu 0.0.51).
_PLANNED: tuple[tuple[str, str, int, tuple[str, ...]], ...] = (
    ("bert_large_64core", "v3:4x8", 1, ()),
    ("bert_large_64core", "v3:8x8", 1, ()),
    ("bert_large_64core", "v4:4x4x4", 1, ()),
    ("bert_large_64core", "v5e:8x8", 1, ()),
    ("bert_large_64core", "v5p:4x4x4", 1, ()),
    ("bert_large_64core", "v6e:8x8", 1, ()),
    ("bert_large_64core", "tpu7x:2x4x4", 1, _IN_A_LOOP),
    ("bert_large_64core", "v5e:4x4", 2, ()),
    ("bert_large_64core_packed", "v3:4x8", 1, ()),
    ("bert_large_64core_packed", "v5e:8x8", 1, ()),
    ("bert_base_64core", "v3:4x8", 1, ()),
    ("bert_base_64core", "v3:4x4", 1, ()),
    ("bert_base_64core", "v3:8x8", 1, ()),
    ("bert_base_64core", "v4:4x4x4", 1, ()),
    ("bert_base_64core", "v5e:8x8", 1, ()),
    ("bert_base_64core", "v5p:4x4x4", 1, ()),
    ("bert_base_64core", "v6e:8x8", 1, ()),
    ("bert_base_64core", "tpu7x:2x4x4", 1, ()),
    ("bert_base_64core", "v5e:4x4", 2, ()),
    ("modernbert_base_50b", "v4:4x4x4", 1, _IN_A_LOOP),
    ("modernbert_base_50b", "v5e:8x8", 1, _IN_A_LOOP),
    ("modernbert_base_50b", "v6e:8x8", 1, (*_IN_A_LOOP, "evaluation.batch_size=512")),
)
_OF_A_PLAN = ("devices", "total_hours", "dollars", "prices_date")
_OF_A_PHASE = (
    "sequence_length", "global_batch_size", "memory_bytes", "memory", "cycles",
    "compute_seconds", "exposed_seconds", "collective_seconds", "step_seconds", "mfu",
)  # fmt: skip


def plan(config: str, topology: str, slices: int, overrides: tuple[str, ...]) -> dict[str, Any]:
    """Returns the kept part of what `bert-jax plan --json` prints."""
    command = [sys.executable, "-m", "bert_jax", "plan", config, "--topology", topology, "--json"]
    command += ["--slices", str(slices), *(f"--set={override}" for override in overrides)]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return kept(found) | {"overrides": [*overrides]}


def kept(found: dict[str, Any]) -> dict[str, Any]:
    names = ("config", "topology", "slices", *_OF_A_PLAN)
    phases = [{name: phase[name] for name in _OF_A_PHASE} for phase in found["phases"]]
    return {
        **{name: found[name] for name in names},
        "libtpu": found["versions"]["libtpu"],
        "phases": phases,
    }


def main() -> None:
    again = {int(number) for number in sys.argv[1:]}
    there = json.loads(_FILE.read_text()) if _FILE.exists() else []
    for number, planned in enumerate(_PLANNED):
        if number in again or number >= len(there):
            there[number : number + 1] = [plan(*planned)]
            lines = ",\n".join(json.dumps(each) for each in there)
            _FILE.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
