"""Memory kept by glibc, in a process of its own: it cannot be unsaid."""

import subprocess
import sys

import pytest

_PROGRAM = """
import sys
from bert_jax.runtime.host_allocator import keep_freed_memory, map_large_blocks
if sys.argv[1] != "leave":
    assert keep_freed_memory()
if sys.argv[1] == "map":
    map_large_blocks()
import resource
import numpy as np

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(2):
        np.ones(5 * 2**24, np.float32)  # 320 MiB: more than the heap grows by beforehand
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
print(faults())
"""


def _faults(how: str) -> int:
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM, how], capture_output=True, text=True, check=True
    )
    return int(result.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_freed_memory_is_not_faulted_in_again():
    kept = _faults("keep")
    assert kept < _faults("leave") / 10
    assert kept < _faults("map") / 10


def test_the_platform_named_by_the_user_decides(monkeypatch):
    from bert_jax.runtime.host_allocator import computes_on_cpu

    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert computes_on_cpu()
    monkeypatch.setenv("JAX_PLATFORMS", "tpu,cpu")
    assert not computes_on_cpu()
