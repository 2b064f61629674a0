"""Cycles of a compiled TPU program by its final schedule: one bundle of instructions is one cycle.

The compiler writes the schedule of each fusion and each kernel (`schedule_files.py`), for one of
the two cores of a chip if the cores share the tiles of a fusion (v4, v5p). It does not include
memory stalls. The time of an instruction is therefore the largest of its bundles, its bytes over
the bandwidth, and its matmul FLOPs over the peak rate. A collective overlaps with the instructions
between its start and its end, and the links carry one collective at a time. For the remaining time
the core waits; this time is exposed. Memory latency, bytes that a kernel fetches itself, and
instructions without a schedule are not included.
"""

import collections
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bert_jax_lab.planning import hlo, schedule_files
from bert_jax_lab.planning.collectives import Collective, collectives_of
from bert_jax_lab.planning.hlo import Instruction, attribute, operands_of
from bert_jax_lab.planning.topologies import Chip

_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_LINE = re.compile(r"^\s*(?:0x)?[0-9a-f]+\s+(LB|LH|LE|PB|PF|CT)?\s*:\s*((?:>\s*)*)\{")
_TILES = re.compile(r'"iteration_bounds":\[([^\]]*)\]')
# The dim of the tiles that the two cores of a chip share.
_SHARED = re.compile(r'"megacore_split_dim":"(\d+)"')
_EXIT = re.compile(r"scmp\.\w+\.[us]32\.totalorder \S+, (\d+) /\* loop exit test")


# The compiler writes an estimate for instructions that compute.
_COMPUTES = re.compile(r'"estimated_cycles":"?\d')


class Line(NamedTuple):
    """A bundle: its loop depth, whether a loop begins there, and the trips it tests."""

    depth: int
    begins: bool
    trips: int | None


@dataclass(frozen=True)
class Cost:
    """The cost of one run of a program, or of a part of it, for one device."""

    cycles: float = 0.0
    # Cycles of collectives that do not overlap with computation.
    exposed: float = 0.0
    # How often each collective runs.
    collectives: Mapping[Collective, int] = field(default_factory=dict)

    def plus(self, other: "Cost", times: int = 1) -> "Cost":
        counts = collections.Counter(self.collectives)
        for collective, count in other.collectives.items():
            counts[collective] += times * count
        cycles, exposed = self.cycles + times * other.cycles, self.exposed + times * other.exposed
        return Cost(cycles, exposed, counts)


def cost(text: str, chip: Chip, seconds: Callable[[Collective], float]) -> Cost:
    """Returns the cost of the last compiled program, given its text; loops count as often as they
    run. A collective takes `seconds` on the links.

    Raises ValueError for a text without an entry, or without schedules.
    """
    computations, entry = hlo.computations_of(text)
    bundles = _of_instructions(text)
    if entry is None or not bundles:
        raise ValueError("the compiler has written no program, or no schedule")
    return _Reader(computations, bundles, chip, seconds).cost(entry)


class _Reader:
    """Sums up the computations of a program."""

    def __init__(
        self, computations: dict[str, list[Instruction]], bundles: Mapping[str, int], chip: Chip,
        seconds: Callable[[Collective], float],
    ):  # fmt: skip
        self._computations, self._bundles, self._chip = computations, bundles, chip
        self._seconds = seconds
        self._costs: dict[str, Cost] = {}

    def cost(self, name: str) -> Cost:
        if name not in self._costs:
            self._costs[name] = self._sum(self._computations.get(name, []))
        return self._costs[name]

    def _sum(self, instructions: list[Instruction]) -> Cost:
        total, shapes = Cost(), {i.name: i.shape for i in instructions}
        begin, ends = _collectives(instructions, shapes, self._computations), dict[int, float]()
        # The cycle from which the links, and the network between slices, are free.
        free = {False: 0.0, True: 0.0}

        def start(collective: Collective, end: int) -> None:
            began = max(free[collective.over_slices], total.cycles + total.exposed)
            took = self._seconds(collective) * self._chip.clock_hz
            free[collective.over_slices] = began + took
            ends[end] = max(ends.get(end, 0.0), began + took)

        for place, i in enumerate(instructions):
            for collective, end in begin[place]:
                total = total.plus(Cost(collectives={collective: 1}))
                if end > place:
                    start(collective, end)
            if i.op == "while":
                trips = hlo.trips_of(i, self._computations)
                total = total.plus(self.cost(attribute(i, "body")), trips)
            elif i.op == "conditional":
                branches = map(self.cost, hlo.branches_of(i))
                total = total.plus(max(branches, key=lambda each: each.cycles, default=Cost()))
            elif i.op == "call":
                total = total.plus(self.cost(attribute(i, "to_apply")))
            elif called := _beside(i):
                total = total.plus(Cost(collectives=self.cost(called).collectives))
            else:
                total = total.plus(Cost(self._cycles(i, shapes)))
            for collective, end in begin[place]:
                if end == place:  # nothing overlaps with it
                    start(collective, end)
            wait = max(0.0, ends.pop(place, 0.0) - total.cycles - total.exposed)
            total = total.plus(Cost(exposed=wait))
        return total

    def _cycles(self, i: Instruction, shapes: dict[str, str]) -> float:
        """Returns the cycles of an instruction that computes, 0 for other instructions."""
        if not _COMPUTES.search(i.rest) and i.name not in self._bundles:
            return 0.0
        moved = hlo.moved_bytes(i, shapes, self._computations) / self._chip.memory_bandwidth
        products = flops(i, self._computations) / self._chip.peak_flops
        clock = self._chip.clock_hz
        return max(self._bundles.get(i.name, 0), moved * clock, products * clock)


def _beside(i: Instruction) -> str:
    """Returns the computation that an instruction starts on another core of the chip (collectives
    and scatters on v5p and newer), "" if there is none.
    """
    if i.op == "async-start":
        return attribute(i, "calls")
    called = re.search(r"called_computations=\{%?([\w.\-]+)", i.rest)
    return called[1] if i.op == "custom-call" and called else ""


def _collectives(
    instructions: list[Instruction],
    shapes: dict[str, str],
    computations: dict[str, list[Instruction]],
) -> dict[int, list[tuple[Collective, int]]]:
    """Returns the collectives that begin at each index of a computation, with the index of their
    end: the "done" instruction, the last fusion that they are part of, or the "recv".
    """
    began: dict[str, tuple[int, Collective]] = {}
    ends: dict[str, int] = {}
    of: dict[str, list[str]] = {}
    for place, i in enumerate(instructions):
        keys = of[i.name] = []
        for key, collective in collectives_of(i, shapes, computations):
            began.setdefault(key, (place, collective))
            keys.append(key)
        if i.op.endswith("-done"):
            keys += [key for operand in operands_of(i) for key in of.get(operand, [])]
        elif i.op == "recv" and (known := re.search(r'host_transfer_rendezvous="([^"]+)"', i.rest)):
            keys.append(known[1])
        ends |= dict.fromkeys(keys, place)
    found: dict[int, list[tuple[Collective, int]]] = collections.defaultdict(list)
    for key, (place, collective) in began.items():
        found[place].append((collective, ends[key]))
    return found


def _of_instructions(text: str) -> dict[str, int]:
    """Returns the bundles of each instruction with a schedule. The compiler writes equal fusions
    once: instructions with equal shape, tiles and estimate share a schedule.
    """
    files = {
        match[1]: path
        for path in schedule_files.written()
        if (match := re.fullmatch(r"\d+-(.+)-\d+-final_bundles\.txt", path.name))
        and "schedule-analysis" not in path.name
    }
    found: dict[str, int] = {}
    alike: dict[Any, int] = {}
    kinds: dict[str, Any] = {}
    for line in text.splitlines():
        match = re.match(r"\s+(?:ROOT )?%([\w.\-]+) = (.*?)(?:, metadata|$)", line)
        if not match or ("window_config" not in line and match[1] not in files):
            continue
        tiles = _TILES.search(line)
        estimate = re.search(r'"estimated_cycles":"(\d+)","estimated_scoped', line)
        kind = (match[2].split(" ")[0], tiles and tiles[1], estimate and estimate[1])
        kinds[match[1]] = kind
        if match[1] in files:
            lines = [*_lines(files[match[1]].read_text(encoding="utf-8"))]
            bundles = _span(lines, trips=_tiles_of_a_core(line)) if tiles else _kernel(lines)
            found[match[1]] = alike[kind] = bundles
    return {**{name: alike[kind] for name, kind in kinds.items() if kind in alike}, **found}


def _tiles_of_a_core(line: str) -> int:
    """Returns the number of tiles of a fusion that the busier core computes."""
    tiles, shared = _TILES.search(line), _SHARED.search(line)
    bounds = [int(bound) for bound in re.findall(r"\d+", tiles[1])] if tiles else []
    if shared:
        bounds[int(shared[1])] = -(-bounds[int(shared[1])] // 2)
    return math.prod(bounds)


def _lines(text: str) -> Iterator[Line]:
    for line in text.splitlines():
        if match := _LINE.match(line):
            test = _EXIT.search(line)
            yield Line(match[2].count(">"), match[1] == "LB", int(test[1]) if test else None)


def _span(lines: list[Line], *, trips: int, depth: int = 0) -> int:
    """Returns the executed bundles: the outermost loop runs `trips` times, over the tiles of a
    fusion, and an inner loop as often as the constant in its exit test.
    """
    total = i = 0
    while i < len(lines):
        if lines[i].depth <= depth:
            total, i = total + 1, i + 1
            continue
        j = i + 1
        while j < len(lines) and lines[j].depth > depth:
            if lines[j].begins and lines[j].depth == depth + 1:
                break
            j += 1
        tests = [x.trips for x in lines[i:j] if x.depth == depth + 1 and x.trips is not None]
        turns = trips if trips and depth == 0 else max(tests[-1] if tests else 1, 1)
        total += turns * _span(lines[i:j], trips=trips, depth=depth + 1)
        i = j
    return total


def _kernel(lines: list[Line]) -> int:
    """Returns the executed bundles of a kernel: one loop over its grid, plus one iteration before
    and one after it. Some lines lack the mark of the loop, and inner loops are unrolled.
    """
    first = next((i for i, line in enumerate(lines) if line.depth), len(lines))
    tests = [(i, x.trips) for i, x in enumerate(lines) if x.depth == 1 and x.trips is not None]
    if not tests:
        return len(lines)
    last, trips = tests[-1]
    end = min(last + 3, len(lines))
    return first + max(trips - 2, 1) * (end - first) + len(lines) - end


# --- matrix products ------------------------------------------------------------------------------


def flops(i: Instruction, computations: dict[str, list[Instruction]]) -> int:
    """Returns the FLOPs of the matrix products in a fusion and in the fusions that it calls.

    The compiler writes a product as a convolution, and shared dims (rows of a batch, heads) as
    spatial dims of its window.
    """
    inside = computations.get(attribute(i, "calls"), []) if i.op == "fusion" else []
    shapes = {each.name: each.shape for each in inside}
    total = 0
    for each in inside:
        total += _of_convolution(each, shapes) if each.op == "convolution" else 0
        total += flops(each, computations)
    return total


def _of_convolution(i: Instruction, shapes: dict[str, str]) -> int:
    left, right = (_sizes(shapes.get(o, "")) for o in operands_of(i)[:2])
    labels, out = _LABELS.search(i.rest), _sizes(i.shape)
    if labels is None or not left or not right:
        return 0
    multiplied = right[labels[2].index("i")]
    spatial = [c for c in labels[1] if c.isdigit()]
    windows, strides, dilations = (
        _of_window(i, name, len(spatial)) for name in ("size", "stride", "lhs_dilate")
    )
    for c, size, stride, dilation in zip(spatial, windows, strides, dilations, strict=True):
        there, made = left[labels[1].index(c)], out[labels[3].index(c)]
        # The window moves over a shared dim in strides, so that each result sees one position.
        is_shared = dilation > 1 or (stride > 1 and made > 1) or made == size
        multiplied *= size if made == 1 else 1 if is_shared else min(size, there)
    return 2 * math.prod(out) * multiplied


def _sizes(shape: str) -> list[int]:
    match = hlo.ARRAY.search(shape)
    return [int(n) for n in match[2].split(",") if n] if match else []


def _of_window(i: Instruction, name: str, count: int) -> list[int]:
    match = re.search(rf"window=\{{[^}}]*\b{name}=([\dx]+)", i.rest)
    return [int(n) for n in match[1].split("x")] if match else [1] * count
