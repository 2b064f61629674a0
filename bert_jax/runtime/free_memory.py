"""Says how much memory a device may still take: on a CPU what the host and its limits leave."""

import contextlib
import resource
from pathlib import Path
from typing import Any

from bert_jax.runtime import host_memory

_CGROUP = Path("/sys/fs/cgroup")


def free_bytes(device: Any) -> int | None:
    """Returns the free memory of one device of this process; None where nobody says.

    The devices of a CPU share the host's, as do all processes on it.
    """
    if device.platform == "cpu":
        free = free_bytes_of_host()
        return None if free is None else free + host_memory.kept_bytes()
    stats = device.memory_stats() or {}
    if "bytes_limit" not in stats:
        return None
    return stats["bytes_limit"] - stats.get("bytes_in_use", 0)


def free_bytes_of_host(proc: Path = Path("/proc"), cgroup: Path = _CGROUP) -> int | None:
    """Returns the least that the host, the control group and `ulimit -v` leave to this process."""
    found = []
    with contextlib.suppress(OSError, KeyError):
        lines = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
        found.append(int(lines["MemAvailable"].split()[0]) * 1024)
    found += _left_in_cgroup(cgroup)
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        with contextlib.suppress(OSError):
            pages = int((proc / "self/statm").read_text().split()[0])
            found.append(limit - pages * resource.getpagesize())
    return max(min(found), 0) if found else None


def _left_in_cgroup(cgroup: Path) -> list[int]:
    """Returns what the group leaves, of version 2 or 1; its file cache is given up for us."""
    for limit, used, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        with contextlib.suppress(OSError, ValueError):
            allowed = int((cgroup / limit).read_text())  # "max" is no number: no limit
            taken = int((cgroup / used).read_text())
            stats = (cgroup / limit).with_name("memory.stat").read_text()
            given_up = dict(line.split() for line in stats.splitlines()).get(cache, "0")
            return [allowed - taken + int(given_up)]
    return []
