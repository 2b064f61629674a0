"""Keeps memory that XLA's CPU backend frees: reallocation can take as long as the step itself."""

import ctypes
import os
from pathlib import Path

# Options of glibc's mallopt(3).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -2, -3, -4, -8
# The heap grows by this many bytes beyond a request.
_PAD = 2**28
# The highest threshold of glibc, and its default number of mappings.
_LARGE, _MAPPINGS = 2**25, 2**16
# Device nodes of TPUs and NVIDIA GPUs.
_ACCELERATORS = ("accel*", "vfio/[0-9]*", "nvidia[0-9]*")
# Fields of glibc's struct mallinfo2.
_FREE, _TOP = 8, 9


class _Mallinfo2(ctypes.Structure):
    _fields_ = (("sizes", ctypes.c_size_t * 10),)


def computes_on_cpu() -> bool:
    """Returns whether JAX will use the CPU, without importing it."""
    if "JAX_PLATFORMS" in os.environ:
        return os.environ["JAX_PLATFORMS"] == "cpu"
    return not any(any(Path("/dev").glob(pattern)) for pattern in _ACCELERATORS)


def keep_freed_memory() -> bool:
    """Makes glibc keep freed memory; returns True if this succeeded.

    Call it before JAX is imported: threads keep an arena that they already have.

    XLA's CPU backend allocates the temporaries of each step. By default glibc maps and unmaps them,
    so that every page faults and is zeroed again: 15 million faults in 300 steps of the demo. With
    one arena, no separate mapping for large blocks and no trimming, the pages remain mapped
    (benchmarks/results/host-memory.md).
    """
    return _set((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1), (_TOP_PAD, _PAD))


def map_large_blocks() -> None:
    """Makes glibc map blocks of 32 MiB and more again, and unmap them when they are freed.

    Call it if a step needs a large part of the memory: kept blocks are fragmented, and the process
    would grow to about twice its working set.
    """
    _set((_MMAP_THRESHOLD, _LARGE), (_MMAP_MAX, _MAPPINGS))


def kept_bytes() -> int:
    """Returns the bytes of freed memory that glibc keeps for the next step."""
    try:
        mallinfo2 = ctypes.CDLL("libc.so.6").mallinfo2
    except (OSError, AttributeError):  # another C library, or glibc before 2.33
        return 0
    mallinfo2.restype = _Mallinfo2
    sizes = mallinfo2().sizes
    # The pad at the top may be untouched, so that it does not count as used memory.
    return sizes[_FREE] - min(sizes[_TOP], _PAD)


def _set(*options: tuple[int, int]) -> bool:
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another C library, such as musl
        return False
    results = [mallopt(option, ctypes.c_int(value)) for option, value in options]
    return all(results)
