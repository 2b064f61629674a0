"""Keep memory that the CPU back end frees: getting it back costs as much as the step itself."""

import contextlib
import ctypes
import os
import sys
from pathlib import Path

# Options of glibc's mallopt(3).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -2, -3, -4, -8
# What the heap grows by at a time beyond what is asked of it.
_PAD = 2**28
# glibc takes no higher threshold; and its own limit of the number of mappings.
_LARGE, _MAPPINGS = 2**25, 2**16


class _Mallinfo2(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks")
    ) + tuple((name, ctypes.c_size_t) for name in ("uordblks", "fordblks", "keepcost"))


# Device nodes of TPUs and NVIDIA GPUs.
_ACCELERATORS = ("accel*", "vfio/[0-9]*", "nvidia[0-9]*")


def computes_on_cpu() -> bool:
    """Returns whether jax will end up on the CPU, found without importing it."""
    if "JAX_PLATFORMS" in os.environ:
        return os.environ["JAX_PLATFORMS"] == "cpu"
    return not any(any(Path("/dev").glob(pattern)) for pattern in _ACCELERATORS)


def keep_freed_memory() -> bool:
    """Tells glibc to hold on to freed memory; True if it could be set.

    To be called before jax is imported: a thread that has an arena of its own keeps it.

    XLA's CPU back end allocates a step's temporaries anew each time. By default glibc maps and
    unmaps them, and every page is faulted in and zeroed again: 15 million faults in 300 steps of
    the demo. With one arena, no mapping of its own for large blocks and no trimming, the pages stay
    (docs/benchmarks.md, "Memory of the host"). Of no use, and not called, where the temporaries
    live on an accelerator.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another C library, such as musl
        return False
    settings = ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1), (_TOP_PAD, _PAD))
    results = [mallopt(option, ctypes.c_int(value)) for option, value in settings]
    return all(results)


def map_large_blocks() -> None:
    """Lets glibc map blocks of 32 MiB and more again, and give them back when they are freed.

    To be called where a step needs a large part of the memory: blocks that are kept have holes, in
    which the next large one has no room, so that the process grows to about twice what it uses. The
    pages of such steps cost little beside what they compute.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library: it keeps nothing
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for option, value in ((_MMAP_THRESHOLD, _LARGE), (_MMAP_MAX, _MAPPINGS)):
            mallopt(option, ctypes.c_int(value))


def kept_bytes() -> int:
    """Returns how much freed memory glibc holds on to, which the next step gets again."""
    try:
        mallinfo2 = ctypes.CDLL("libc.so.6").mallinfo2
    except (OSError, AttributeError):  # another C library, or glibc before 2.33
        return 0
    mallinfo2.restype = _Mallinfo2
    found = mallinfo2()
    # The pad at the top may never have been touched: nobody has counted it as taken yet.
    return found.fordblks - min(found.keepcost, _PAD)
