"""Free memory of a device; for CPU devices, limited by the host and its control groups."""

import contextlib
import resource
from pathlib import Path
from typing import Any

from bert_jax.runtime import host_allocator

_CGROUP = Path("/sys/fs/cgroup")


def free_bytes(device: Any) -> int | None:
    """Returns the free memory of one device of this process; None if it is unknown.

    The devices of a CPU share the memory of the host with all processes on it.
    """
    if device.platform == "cpu":
        free = free_bytes_of_host()
        return None if free is None else free + host_allocator.kept_bytes()
    stats = device.memory_stats() or {}
    if "bytes_limit" not in stats:
        return None
    return stats["bytes_limit"] - stats.get("bytes_in_use", 0)


def free_bytes_of_host(proc: Path = Path("/proc"), cgroup: Path = _CGROUP) -> int | None:
    """Returns the least free memory of the host, the control groups and `ulimit -v`."""
    found = []
    with contextlib.suppress(OSError, KeyError):
        lines = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
        found.append(int(lines["MemAvailable"].split()[0]) * 1024)
    for group in _own_groups(proc, cgroup):
        found += _left_in(group)
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        with contextlib.suppress(OSError):
            pages = int((proc / "self/statm").read_text().split()[0])
            found.append(limit - pages * resource.getpagesize())
    return max(min(found), 0) if found else None


def _own_groups(proc: Path, cgroup: Path) -> list[Path]:
    """Returns the directories of this process's control groups, of version 2 or 1.

    They include the parent groups, because a group's limit also applies to its subgroups.
    """
    own = ["0::/", ":memory:/"]  # the paths of a group as seen from inside its container
    with contextlib.suppress(OSError):
        own += (proc / "self/cgroup").read_text().splitlines()
    found: dict[Path, None] = {}
    for line in own:
        _, kinds, path = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        top = cgroup / "memory" if kinds else cgroup
        group = top / path.lstrip("/")
        found |= dict.fromkeys(each for each in (group, *group.parents) if each.is_relative_to(top))
    return list(found)


def _left_in(group: Path) -> list[int]:
    """Returns the free bytes of a group, counting its file cache as free."""
    for limit, used, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        with contextlib.suppress(OSError, ValueError):
            allowed = int((group / limit).read_text())  # "max", no limit, raises ValueError
            taken = int((group / used).read_text())
            stats = (group / "memory.stat").read_text()
            given_up = dict(line.split() for line in stats.splitlines()).get(cache, "0")
            return [allowed - taken + int(given_up)]
    return []
