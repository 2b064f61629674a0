"""TPU generations and slices: memory, rates, links and prices.

A device is a JAX device: a core (half a chip) on v2, v3 and tpu7x, a chip on the others. `parse`
and the table need no compiler. `devices` asks the TPU compiler in the package libtpu, which runs on
any Linux machine, also without these devices.
"""

import importlib.util
import math
import os
import re
import sys
from dataclasses import dataclass
from typing import Any

from bert_jax.errors import UsageError, install_command
from bert_jax.update.chips import PEAK_BF16
from bert_jax_lab.planning import schedule_files

_GIB, _GB = 2**30, 10**9
PRICES_DATE = "2026-10"
# Chips per host of a slice with several hosts; a single host may have more.
_CHIPS_OF_A_HOST = 4


@dataclass(frozen=True)
class Chip:
    """One generation. Rates are in bytes, FLOPs or cycles per second, sizes in bytes."""

    generation: str
    device_kind: str  # jax.Device.device_kind
    devices_per_chip: int
    hbm_bytes: int  # per device, from the data sheet
    compiler_bytes: int  # per device: the limit of one program, from the compiler's errors
    flops_per_cycle: int  # per device: width x height x 2 of all its matrix units
    memory_bandwidth: float  # per device
    link_bandwidth: float  # one link of a chip, one direction
    dimensions: int  # of the grid of chips
    network_bandwidth: float  # a chip's share of its host's network card; 0: no multi-slice
    largest_host: int  # chips of the largest single host
    dollars_per_chip_hour: float | None  # on demand, list price; None: not published

    @property
    def peak_flops(self) -> float:
        """Returns the FLOP/s of a device, in bf16."""
        return PEAK_BF16[self.device_kind]

    @property
    def clock_hz(self) -> float:
        """Returns the clock that turns cycles into seconds: the clock at the peak rate."""
        return self.peak_flops / self.flops_per_cycle


# Sources, read 2026-10.
# - HBM size and bandwidth: docs.cloud.google.com/tpu/docs/{v2,v3,v4,v5e,v5p,v6e,tpu7x};
#   halved if a device is a core.
# - compiler_bytes: "exceeds available HBM" in the errors of libtpu 0.0.51.
# - flops_per_cycle: matrix units from those pages (128 x 128: one per core on v2, two on v3, four
#   on v4, v5e and v5p; v4 and v5p have two cores per device). For v6e and tpu7x, only 524,288 is
#   consistent with the compiler's estimate for a large product (369 k and 422 k FLOPs per cycle).
#   The resulting clocks are 0.69, 0.94, 1.05, 1.50, 1.75, 1.75 and 2.20 GHz.
# - link_bandwidth: v2, 496 Gbit/s (Jouppi et al. 2020, "A domain-specific supercomputer", CACM);
#   v3, 70 GB/s (Jouppi et al. 2023, "TPU v4", ISCA; the former has 656 Gbit/s = 82 GB/s, the lower
#   value is used); v4, 45 GB/s (jax-ml.github.io/scaling-book, "How to think about TPUs"; the paper
#   has 50); others: bidirectional bandwidth per chip from those pages, per link and direction.
# - network_bandwidth: v5e 2 x 100 Gbit/s and v6e 4 x 200 Gbit/s for 8 chips, v5p 50 and tpu7x
#   100 Gbit/s per chip (those pages); v4, 25 GB/s per host of 4 (scaling book). Multi-slice needs
#   v4 or newer (docs.cloud.google.com/tpu/docs/multislice-introduction).
# - hosts: launch/accelerators.tsv, which names its sources.
# - prices: the cheapest US region. v5p 4.20 and v6e 2.70: SkyPilot's catalogue v8
#   (github.com/skypilot-org/skypilot-catalog, commit 006059e, from Google's billing interface). v2
#   (4.50 for 4 chips), v3 (8.00 for 4 chips), v4 and v5e: cloud.google.com/tpu/pricing. tpu7x: not
#   published.
# fmt: off
_TABLE = (
    # generation, kind, devices per chip, GiB per device, usable GiB, FLOPs per cycle, GB/s of
    # memory, GB/s per link, dimensions, GB/s of the network, largest host, dollars per chip-hour
    Chip("v2", "TPU v2", 2, 8 * _GIB, int(7.48 * _GIB), 128 * 128 * 2,
         350 * _GB, 62 * _GB, 2, 0, 4, 1.125),
    Chip("v3", "TPU v3", 2, 16 * _GIB, int(15.48 * _GIB), 128 * 128 * 2 * 2,
         450 * _GB, 70 * _GB, 2, 0, 4, 2.00),
    Chip("v4", "TPU v4", 1, 32 * _GIB, int(30.75 * _GIB), 128 * 128 * 2 * 8,
         1200 * _GB, 45 * _GB, 3, 6.25 * _GB, 4, 3.22),
    Chip("v5e", "TPU v5 lite", 1, 16 * _GIB, int(15.75 * _GIB), 128 * 128 * 2 * 4,
         819 * _GB, 50 * _GB, 2, 3.125 * _GB, 8, 1.20),
    Chip("v5p", "TPU v5", 1, 95 * _GIB, int(95.73 * _GIB), 128 * 128 * 2 * 8,
         2765 * _GB, 100 * _GB, 3, 6.25 * _GB, 4, 4.20),
    Chip("v6e", "TPU v6 lite", 1, 32 * _GIB, int(31.24 * _GIB), 256 * 256 * 2 * 4,
         1638 * _GB, 100 * _GB, 2, 12.5 * _GB, 8, 2.70),
    Chip("tpu7x", "TPU7x", 2, 96 * _GIB, int(94.74 * _GIB), 256 * 256 * 2 * 4,
         7380 * _GB / 2, 100 * _GB, 3, 12.5 * _GB, 4, None),
)
# fmt: on
CHIPS = {chip.generation: chip for chip in _TABLE}


@dataclass(frozen=True)
class Topology:
    """One or several equal slices: `v3:4x8` has 4 x 8 chips."""

    name: str
    chip: Chip
    shape: tuple[int, ...]  # chips of a slice along each dimension
    slices: int

    @property
    def chips(self) -> int:
        return math.prod(self.shape) * self.slices

    @property
    def devices(self) -> int:
        return self.chips * self.chip.devices_per_chip

    @property
    def hosts(self) -> int:
        a_slice = math.prod(self.shape)
        if a_slice <= self.chip.largest_host:
            return self.slices
        return self.slices * math.ceil(a_slice / _CHIPS_OF_A_HOST)


def parse(name: str, *, slices: int = 1) -> Topology:
    """Returns the topology of a name such as v3:4x8. Raises `UsageError` for an invalid name."""
    match = re.fullmatch(r"(\w+):(\d+(?:x\d+)+)", name)
    if not match:
        raise UsageError(f"`topology` {name}: write it as GENERATION:CHIPSxCHIPS, such as v3:4x8")
    chip = CHIPS.get(match[1])
    if chip is None:
        raise UsageError(f"`topology` {name}: unknown generation; choose from {', '.join(CHIPS)}")
    shape = tuple(int(size) for size in match[2].split("x"))
    dims = chip.dimensions
    if len(shape) != dims or 0 in shape:
        example = "4x4x4" if dims == 3 else "4x8"
        raise UsageError(
            f"`topology` {name}: a slice of {chip.generation} has {dims} dimensions, "
            f"such as {chip.generation}:{example}"
        )
    if slices < 1:
        raise UsageError(f"`slices` {slices}: must be at least 1")
    if slices > 1 and not chip.network_bandwidth:
        raise UsageError(f"`slices` {slices}: several slices need v4 or newer, not {name}")
    return Topology(name, chip, shape, slices)


def prepare_environment() -> None:
    """Prepares this process to compile for TPUs. Call it before jax is imported.

    Raises `UsageError` if libtpu is not installed.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise UsageError(
            f"the TPU compiler is not installed: {install_command('libtpu')}, preferably in a "
            "separate environment: with libtpu, jax looks for a TPU at every start, unless "
            "JAX_PLATFORMS=cpu is set"
        )
    if "jax" not in sys.modules:
        os.environ["JAX_PLATFORMS"] = "cpu"  # leave the local chips to other processes
    for name, value in {
        "TPU_SKIP_MDS_QUERY": "1",  # do not ask the cloud what this machine is
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": "v3-8",  # any value prevents a warning
        "TPU_MIN_LOG_LEVEL": "3",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",  # several plans at a time
    }.items():
        os.environ.setdefault(name, value)
    schedule_files.request()


def devices(topology: Topology) -> list[Any]:
    """Returns the devices of the topology as the TPU compiler describes them."""
    from jax.experimental import topologies

    options: dict[str, Any] = {"num_slices": topology.slices} if topology.slices > 1 else {}
    if topology.chip.generation == "v4":
        # Both cores of a chip are one device, as on a v4 machine.
        options["chip_config_name"] = "megacore"
    try:
        found = list(topologies.get_topology_desc(topology.name, platform="tpu", **options).devices)
    except Exception as error:  # its type depends on the version of jax
        reason = str(error).splitlines()[0]
        raise UsageError(f"`topology` {topology.name}: the compiler rejects it: {reason}") from None
    if len(found) != topology.devices:
        raise UsageError(
            f"`topology` {topology.name}: the compiler has {len(found)} devices instead of "
            f"{topology.devices}"
        )
    return found
