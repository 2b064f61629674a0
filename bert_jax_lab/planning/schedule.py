"""Cycles of a compiled TPU program by its final schedule: one bundle of instructions is one cycle.

The compiler writes the schedule of each fusion and each kernel (`schedule_files.py`), for one of
the two cores of a chip where these share the tiles of a fusion (v4, v5p). That it waits for memory
is not in it: what an instruction takes is the largest of its bundles, of its bytes over the
bandwidth and of its products over the peak rate. A collective runs beside what stands between its
beginning and its end, one at a time over the links; for the rest of it the core waits. The
compiler's own estimates, by which it chooses tiles, are made before the schedule, and kernels have
none. Not seen are the latency of memory, what a kernel fetches itself, and what has no schedule of
its own.
"""

import collections
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from bert_jax_lab.planning import hlo_cost, hlo_text, schedule_files
from bert_jax_lab.planning.hlo_text import Instruction, attribute, operands_of
from bert_jax_lab.planning.topologies import Chip

_ARRAY = re.compile(r"\b[a-z]\w*\[([\d,]*)\]")
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_LINE = re.compile(r"^\s*(?:0x)?[0-9a-f]+\s+(LB|LH|LE|PB|PF|CT)?\s*:\s*((?:>\s*)*)\{")
_TILES = re.compile(r'"iteration_bounds":\[([^\]]*)\]')
# A chip of two cores that one program uses together: over which of the tiles' dims they share.
_SHARED = re.compile(r'"megacore_split_dim":"(\d+)"')
_EXIT = re.compile(r"scmp\.\w+\.[us]32\.totalorder \S+, (\d+) /\* loop exit test")


class Line(NamedTuple):
    """A bundle: how many loops it is in, whether one begins there, and the trips it tests."""

    depth: int
    begins: bool
    trips: int | None


class Sum(NamedTuple):
    """Cycles of a program or of a part of it."""

    estimated: float = 0.0
    bundles: float = 0.0
    by_memory: float = 0.0
    by_products: float = 0.0
    # The largest of the last three, instruction by instruction.
    real: float = 0.0
    waiting: float = 0.0  # for collectives, beside which nothing is left to do

    def plus(self, other: "Sum", times: float = 1) -> "Sum":
        return Sum(*(a + times * b for a, b in zip(self, other, strict=True)))


def cycles(
    text: str, chip: Chip, seconds: Callable[[hlo_cost.Collective], float] = lambda _: 0.0
) -> Sum | None:
    """Returns the sums of a program's text, the last one that was compiled; loops count as often as
    they run. None where the compiler has written no schedules.

    A collective takes `seconds` over the links.
    """
    computations, entry = hlo_text.computations_of(text)
    assert entry is not None, "a program has one"
    reader, bundles = hlo_cost.ProgramReader(computations), _of_instructions(text)
    if not bundles:
        return None
    bandwidth = chip.memory_bandwidth / chip.clock_hz

    def of(name: str) -> Sum:
        instructions = computations.get(name, [])
        total, shapes = Sum(), {i.name: i.shape for i in instructions}
        begin, ends = _collectives(instructions, shapes, reader), dict[int, float]()
        free = {False: 0.0, True: 0.0}  # since when the links are, and the network over slices

        def start(collective: hlo_cost.Collective, end: int) -> None:
            began = max(free[collective.over_slices], total.real + total.waiting)
            free[collective.over_slices] = began + seconds(collective) * chip.clock_hz
            ends[end] = max(ends.get(end, 0.0), free[collective.over_slices])

        for place, i in enumerate(instructions):
            for collective, end in begin[place]:
                if end > place:
                    start(collective, end)
            if i.op == "while":
                total = total.plus(of(hlo_text.attribute(i, "body")), reader.trips(i))
            elif i.op == "conditional":
                branches = map(of, hlo_text.branches_of(i))
                total = total.plus(max(branches, key=lambda each: each.real, default=Sum()))
            elif i.op == "call":
                total = total.plus(of(hlo_text.attribute(i, "to_apply")))
            else:
                total = total.plus(of_one(i, shapes))
            for collective, end in begin[place]:
                if end == place:  # nothing runs beside it
                    start(collective, end)
            wait = ends.pop(place, 0.0) - total.real - total.waiting
            total = total._replace(waiting=total.waiting + max(0.0, wait))
        return total

    def of_one(i: hlo_text.Instruction, shapes: dict[str, str]) -> Sum:
        found = hlo_cost.CYCLES.search(i.rest)
        if not found and i.name not in bundles:
            return Sum()
        estimated = int(found[1]) if found else 0
        moved = hlo_cost.moved_bytes(i, shapes, computations)
        products = flops(i, computations) / chip.peak_flops * chip.clock_hz
        parts = (bundles.get(i.name, 0), moved / bandwidth, products)
        return Sum(0 if estimated >= hlo_cost.UNKNOWN else estimated, *parts, max(parts))

    return of(entry)


def _collectives(
    instructions: list[hlo_text.Instruction], shapes: dict[str, str], reader: hlo_cost.ProgramReader
) -> dict[int, list[tuple[hlo_cost.Collective, int]]]:
    """Returns which collectives begin at each place of a computation, and where each ends: at its
    "done", at the last of the fusions that it runs inside of, or where it is received.
    """
    began: dict[str, tuple[int, hlo_cost.Collective]] = {}
    ends: dict[str, int] = {}
    of: dict[str, list[str]] = {}
    for place, i in enumerate(instructions):
        keys = of[i.name] = []
        for key, collective in reader.collectives(i, shapes):
            began.setdefault(key, (place, collective))
            keys.append(key)
        if i.op.endswith("-done"):
            keys += [key for operand in hlo_text.operands_of(i) for key in of.get(operand, [])]
        elif i.op == "recv" and (known := re.search(r'host_transfer_rendezvous="([^"]+)"', i.rest)):
            keys.append(known[1])
        ends |= dict.fromkeys(keys, place)
    found: dict[int, list[tuple[hlo_cost.Collective, int]]] = collections.defaultdict(list)
    for key, (place, collective) in began.items():
        found[place].append((collective, ends[key]))
    return found


def _of_instructions(text: str) -> dict[str, int]:
    """Returns the bundles of each instruction that has a schedule, or the same shape, tiles and
    estimate as one that has: equal fusions are written once.
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
    """Returns how many tiles of a fusion the core computes that has more of them."""
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
    """Returns the bundles that are executed: the outermost loop runs `trips` times, over the tiles
    of a fusion, and a loop without them as often as the constant of its exit test says.
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
    """Returns the same of a kernel, which is one loop over its grid, with a turn more before and
    one after; some lines of it lack the mark, and it has no loops inside that are not unrolled.
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
    """Returns 2 for each multiplication and addition of the products in a fusion, and in those that
    it calls; 0 where it has none.

    The compiler writes a product as a convolution, and the dims that both sides share (rows of a
    batch, heads) as spatial dims of its window.
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
        # A dim that is shared goes through the window in steps, so that each result sees one place.
        is_shared = dilation > 1 or (stride > 1 and made > 1) or made == size
        multiplied *= size if made == 1 else 1 if is_shared else min(size, there)
    return 2 * math.prod(out) * multiplied


def _sizes(shape: str) -> list[int]:
    match = _ARRAY.search(shape)
    return [int(n) for n in match[1].split(",") if n] if match else []


def _of_window(i: Instruction, name: str, count: int) -> list[int]:
    match = re.search(rf"window=\{{[^}}]*\b{name}=([\dx]+)", i.rest)
    return [int(n) for n in match[1].split("x")] if match else [1] * count
