"""Free memory: of the host, its control groups and `ulimit -v`, or of an accelerator."""

import resource
from types import SimpleNamespace

import jax
import pytest

from bert_jax.memory.free import free_bytes, free_bytes_of_host
from bert_jax.runtime import host_allocator

_MEBI = 2**20


@pytest.fixture
def machine(tmp_path):
    """A host with 8 GiB left, of which a group may take 3 GiB more."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 99 kB\nMemAvailable:    8388608 kB\n")
    (tmp_path / "proc/self/statm").write_text("1024 1 1 1 1 1 0\n")
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "cgroup/memory.current").write_text(f"{1024 * _MEBI}\n")
    (tmp_path / "cgroup/memory.stat").write_text(f"anon 5\ninactive_file {512 * _MEBI}\n")
    (tmp_path / "cgroup/memory.max").write_text(f"{3584 * _MEBI}\n")
    return tmp_path


def test_the_least_of_all_limits_counts(machine, monkeypatch):
    def found() -> int | None:
        return free_bytes_of_host(machine / "proc", machine / "cgroup")

    assert found() == 3072 * _MEBI
    (machine / "cgroup/memory.max").write_text("max\n")
    assert found() == 8192 * _MEBI
    version_1 = machine / "cgroup/memory"
    version_1.mkdir()
    (version_1 / "memory.limit_in_bytes").write_text(f"{100 * _MEBI}\n")
    (version_1 / "memory.usage_in_bytes").write_text(f"{30 * _MEBI}\n")
    (version_1 / "memory.stat").write_text(f"total_inactive_file {10 * _MEBI}\n")
    assert found() == 80 * _MEBI
    # The process is in a nested group; the groups above have limits as well.
    inner = version_1 / "slurm/job_7"
    inner.mkdir(parents=True)
    (machine / "proc/self/cgroup").write_text("5:devices:/\n4:cpu,memory:/slurm/job_7\n0::/user\n")
    for name in ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"):
        (inner.parent / name).write_text((version_1 / name).read_text())
        (inner / name).write_text((version_1 / name).read_text())
    (inner / "memory.limit_in_bytes").write_text(f"{200 * _MEBI}\n")
    (inner.parent / "memory.limit_in_bytes").write_text(f"{60 * _MEBI}\n")
    assert found() == 40 * _MEBI
    (machine / "cgroup/user").mkdir()
    (machine / "cgroup/user/memory.max").write_text(f"{20 * _MEBI}\n")
    (machine / "cgroup/user/memory.current").write_text("0\n")
    (machine / "cgroup/user/memory.stat").write_text("anon 5\n")
    assert found() == 20 * _MEBI
    pages = 1024 * resource.getpagesize()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (pages + 7 * _MEBI, -1))
    assert found() == 7 * _MEBI
    monkeypatch.undo()
    assert free_bytes_of_host(machine / "none", machine / "none") is None


def test_this_machine_and_accelerators():
    assert host_allocator.kept_bytes() >= 0
    assert (free_bytes(jax.devices()[0]) or 0) > 100 * _MEBI
    stats = {"bytes_limit": 100, "bytes_in_use": 30}
    for found, expected in ((stats, 70), ({}, None), (None, None)):
        device = SimpleNamespace(platform="tpu", memory_stats=lambda found=found: found)
        assert free_bytes(device) == expected
