"""The collectives of a compiled TPU program: kind, bytes, mesh axes, and time on the links."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jax.sharding import Mesh

from bert_jax_lab.planning.hlo import Instruction, array_bytes, attribute, operands_of
from bert_jax_lab.planning.topologies import Chip

_KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")


@dataclass(frozen=True)
class Collective:
    """`bytes` is the size of the whole array that is gathered, reduced or scattered."""

    kind: str
    bytes: int
    group: tuple[int, ...]  # partitions of the first group; () if `over_slices`
    over_slices: bool = False


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """All collectives of one kind over the same axes in one step."""

    kind: str
    axes: tuple[str, ...]
    group_size: int
    count: int
    bytes: int  # of the whole arrays, summed
    seconds: float


def collectives_of(
    i: Instruction, shapes: dict[str, str], computations: dict[str, list[Instruction]], *,
    is_fused: bool = False,
) -> list[tuple[str, Collective]]:  # fmt: skip
    """Returns the collectives of one instruction, each with its key in the computation.

    `shapes` maps the names of the instructions in its computation to their shapes.
    """
    if i.op == "send" and "megascale_transfer_type" in i.rest:
        kind = re.search(r'megascale_transfer_type="(\w+)"', i.rest)
        known = re.search(r'host_transfer_rendezvous="([^"]+)"', i.rest)
        size = array_bytes(i.shape.rsplit(", u32[]", 1)[0])
        name = kind[1].lower().replace("_", "-") if kind else "send"
        return [(known[1] if known else i.name, Collective(name, size, (), True))]
    kind = i.op.removesuffix("-start")
    if kind in _KINDS:
        channel = re.search(r"channel_id=(\d+)", i.rest)
        size = array_bytes(i.shape)
        operands = sum(array_bytes(shapes.get(o, "")) for o in operands_of(i))
        if i.op.endswith("-start") and kind != "all-reduce" and i.shape.startswith("("):
            size -= operands  # the shape of a start has operands and results
        if kind == "reduce-scatter":
            size = operands
        # An asynchronous collective is part of several fusions with the same channel. Other
        # collectives are separate, although all of a `shard_map` have the same channel.
        known = channel[0] if channel and is_fused else i.name
        return [(f"{kind} {known} {size}", Collective(kind, size, parse_group(i.rest)))]
    if i.op != "fusion":
        return []
    name = attribute(i, "calls")
    inside = computations.get(name, [])
    shapes = {each.name: each.shape for each in inside}
    found = [
        c for each in inside for c in collectives_of(each, shapes, computations, is_fused=True)
    ]
    if not any(each.op == "dynamic-slice" for each in inside):
        return found
    # An all-reduce with a result that is sliced per device is a reduce-scatter.
    return [
        (f"{key} {name}", Collective("reduce-scatter", c.bytes, c.group))
        if c.kind == "all-reduce"
        else (key, c)
        for key, c in found
    ]


def traffic(counts: Mapping[Collective, int], *, mesh: Mesh, chip: Chip) -> tuple[Traffic, ...]:
    """Returns collectives by kind and axes, each with its time at the link rate."""
    sums: dict[tuple, list] = {}
    for collective, count in counts.items():
        key = collective.kind, axes_of(collective, mesh), members_of(collective, mesh)
        entry = sums.setdefault(key, [0, 0, 0.0])
        entry[0] += count
        entry[1] += count * collective.bytes
        entry[2] += count * seconds(collective, mesh=mesh, chip=chip)
    return tuple(
        Traffic(kind=kind, axes=axes, group_size=size, count=n, bytes=total, seconds=time)
        for (kind, axes, size), (n, total, time) in sorted(sums.items())
    )


def members_of(collective: Collective, mesh: Mesh) -> int:
    """Returns the number of devices, or slices, of a group."""
    return mesh.shape["slice"] if collective.over_slices else len(collective.group) or mesh.size


def axes_of(collective: Collective, mesh: Mesh) -> tuple[str, ...]:
    """Returns the mesh axes along which the members of a group differ."""
    if collective.over_slices:
        return ("slice",)
    names = tuple(mesh.shape)
    if not collective.group:
        return tuple(name for name in names if mesh.shape[name] > 1)
    places = np.unravel_index(np.array(collective.group), tuple(mesh.shape.values()))
    return tuple(n for n, p in zip(names, places, strict=True) if len(set(p.tolist())) > 1)


def seconds(collective: Collective, *, mesh: Mesh, chip: Chip) -> float:
    """Returns the time of one collective on the links of a mesh, without latency."""
    return seconds_on_the_links(collective, size=members_of(collective, mesh), chip=chip)


def seconds_on_the_links(collective: Collective, *, size: int, chip: Chip) -> float:
    """Returns the time of one collective on a ring of `size` devices, without latency.

    A device sends (n - 1) / n of the array, and twice as much for an all-reduce. The ring uses both
    directions of one dimension, which are two links of a chip: any grid with an even side contains
    a closed ring, with or without wraparound. Between slices, the ring uses the network cards.
    """
    share = (size - 1) / size if size > 1 else 0.0
    if collective.kind == "all-reduce":
        share *= 2
    elif collective.kind == "collective-permute":
        share = 1.0
    if collective.over_slices:
        return collective.bytes * share * chip.devices_per_chip / chip.network_bandwidth
    rate = 2 * chip.link_bandwidth
    neighbours = {i ^ 1 for i in collective.group[:1]}
    if chip.devices_per_chip == 2 and collective.group and not neighbours & set(collective.group):
        rate /= 2  # the other cores of the chips form a second ring over the same links
    return collective.bytes * share / rate


def parse_group(attributes: str) -> tuple[int, ...]:
    """Returns the partitions of the first replica group, in any of XLA's notations.

    `{{0,1},{2,3}}`; `[2,4]<=[8]` with or without a transposition `T(1,0)`; and
    `mesh['a'=2,'b'=4] {'b'}`, a mesh and the axes that the group spans.
    """
    if match := re.search(r"source_target_pairs=\{\{(\d+),(\d+)\}", attributes):
        return int(match[1]), int(match[2])
    if match := re.search(r"replica_groups=\{\{([\d,]+)\}", attributes):
        return tuple(int(i) for i in match[1].split(","))
    if match := re.search(
        r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes
    ):
        groups, dims = _numbers(match[1]), _numbers(match[2])
        order = _numbers(match[3]) if match[3] else None
        devices = np.arange(math.prod(dims)).reshape(dims).transpose(order)
        return tuple(devices.reshape(groups)[0].ravel().tolist())
    if match := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", attributes):
        sizes = {name: int(n) for name, n in re.findall(r"'(\w+)'=(\d+)", match[1])}
        # `'a','b':(2)4`: the whole axis a, and 4 of axis b after a part of 2.
        spanned = {
            name: (int(before or 1), int(size or sizes[name]))
            for name, before, size in re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", match[2])
        }
        # Split each axis into: before, spanned, after. The first group is at 0 in the outer two.
        dims, first = [], []
        for name, size in sizes.items():
            before, part = spanned.get(name, (1, 1))
            dims += [before, part, size // (before * part)]
            first += [0, slice(None), 0]
        return tuple(np.arange(math.prod(dims)).reshape(dims)[tuple(first)].ravel().tolist())
    return ()


def _numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",")]
