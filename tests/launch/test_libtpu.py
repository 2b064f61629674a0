"""The launcher's flags, as a trainer gets them: libtpu reads LIBTPU_INIT_ARGS when it is loaded.

An unknown flag ends the process there, before a line of the trainer runs. A load takes seconds.
"""

import importlib.util
import os
import subprocess
import sys

import pytest

from tests.launch.cloud import in_shell
from tests.limits import HUNG

pytestmark = [
    pytest.mark.tpu_compiler,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None,
        reason="needs the TPU compiler: the extra `plan`",
    ),
]
_LOAD = """
import sys
from jax.experimental import topologies
print(len(topologies.get_topology_desc(sys.argv[1], platform="tpu").devices))
"""
_SMALLEST = {"v2": "2x2", "v3": "2x2", "v4": "2x2x1", "v5e": "2x2", "v5p": "2x2x1", "v6e": "2x2",
             "tpu7x": "2x2x1"}  # fmt: skip


def load(generation: str, flags: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, since libtpu is loaded once."""
    environment = os.environ | {
        "LIBTPU_INIT_ARGS": flags, "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost", "TPU_ACCELERATOR_TYPE": "v3-8",
        "TPU_MIN_LOG_LEVEL": "3", "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
    }  # fmt: skip
    command = [sys.executable, "-c", _LOAD, f"{generation}:{_SMALLEST[generation]}"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HUNG)


@pytest.mark.parametrize("generation", _SMALLEST)
def test_libtpu_is_loaded_with_the_flags_of_the_launcher(generation):
    flags = in_shell(f"libtpu_flags {generation}")
    assert flags.startswith("--xla_")
    done = load(generation, flags)
    assert done.returncode == 0 and done.stdout.strip() in ("4", "8"), done.stderr


def test_a_flag_that_libtpu_does_not_know_ends_the_process():
    done = load("v5e", "--xla_tpu_no_such_flag=true")
    assert done.returncode != 0 and "xla_tpu_no_such_flag" in done.stdout + done.stderr
