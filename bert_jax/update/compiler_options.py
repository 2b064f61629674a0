"""Options that every step is compiled with, by platform: one table, for chips here or planned.

These are options of one compilation, not flags of the process: `launch/flags.tsv` has those.
"""

# Without these two the TPU compiler writes the gathering of sharded weights as an all-reduce of
# arrays padded with zeros: twice the traffic, and a broadcast and an update for each weight. The
# compilers of v2, v3, v4, v5e, v5p, v6e and tpu7x accept both (libtpu 0.0.51; an option that one
# does not know is an error: tests/lab/planning/test_plan.py compiles with them).
TPU_COMPILER_OPTIONS = {
    "xla_tpu_prefer_async_allgather_to_allreduce": "true",
    "xla_enable_async_all_gather": "true",
}


def for_platform(platform: str) -> dict[str, str]:
    """Returns what to give to `compile(compiler_options=...)` for "tpu", "gpu" or "cpu"."""
    return dict(TPU_COMPILER_OPTIONS) if platform == "tpu" else {}
