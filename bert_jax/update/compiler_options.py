"""Compiler options of every step, by platform: one table for real and for planned devices.

These are options of one compilation; flags of the process are in `launch/flags.tsv`.
"""

# Without these two options the TPU compiler gathers sharded weights by an all-reduce of zero-padded
# arrays: twice the traffic, and a broadcast and an update per weight. The compilers of v2, v3, v4,
# v5e, v5p, v6e and tpu7x accept both (libtpu 0.0.51; an unknown option is an error:
# tests/lab/planning/test_plan.py compiles with them).
TPU_COMPILER_OPTIONS = {
    "xla_tpu_prefer_async_allgather_to_allreduce": "true",
    "xla_enable_async_all_gather": "true",
}


def for_platform(platform: str) -> dict[str, str]:
    """Returns the value of `compile(compiler_options=...)` for "tpu", "gpu" or "cpu"."""
    return dict(TPU_COMPILER_OPTIONS) if platform == "tpu" else {}
