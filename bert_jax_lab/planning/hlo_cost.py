"""Reads what a compiled TPU program says about itself: cycles, collectives, kernels, memory
traffic.

Read from the text of the scheduled program (`aot_compile.py` has it written), in which the compiler
has written its own estimate of cycles beside every fusion and copy. A loop's body counts as often
as it runs. Three things carry no estimate and are listed apart: collectives, custom kernels, and
copies between memories that run beside the computation.
"""

import math
import re
from dataclasses import dataclass, field

import numpy as np

_COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
# Marks that the compiler leaves in its own program: they compute nothing.
_MARKS = {
    "AssumeGatherIndicesInBound",
    "AsyncCollectiveDone",
    "AsyncCollectiveStart",
    "ConcatBitcast",
    "GatherScatterIndicesBitpacked",
    "Sharding",
    "SliceId",
    "ZeroCrop",
}
_BYTES = (
    dict.fromkeys(("s4", "u4"), 0.5)
    | dict.fromkeys(("pred", "s8", "u8", "f8e4m3fn", "f8e5m2"), 1)
    | dict.fromkeys(("s16", "u16", "bf16", "f16"), 2)
    | dict.fromkeys(("s32", "u32", "f32"), 4)
    | dict.fromkeys(("s64", "u64", "f64"), 8)
)

_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\](\{[^{}]*\})?")
_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')
_UNKNOWN = 2**62  # the compiler's way to say that it has no estimate
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{\s*$")


@dataclass(frozen=True)
class Collective:
    """`bytes` of the whole array: what is gathered, reduced or scattered, on one device."""

    kind: str
    bytes: int
    group: tuple[int, ...]  # partitions of the first group; () where `over_slices`
    over_slices: bool = False


@dataclass(frozen=True)
class Kernel:
    """A call of a custom kernel, or of another operation that the compiler has no estimate for.

    `flops` is None where its author gave none.
    """

    name: str
    flops: float | None
    bytes: int


@dataclass
class Cost:
    """The cost of one run of a program, or of a part of it."""

    cycles: int = 0
    # Bytes read and written in the large memory, by instructions with an estimate and by copies
    # beside them. Of what a loop slices, or updates in place, the slice counts; what is gathered
    # from counts whole.
    traffic: int = 0
    collectives: dict[Collective, int] = field(default_factory=dict)  # -> how often
    kernels: dict[Kernel, int] = field(default_factory=dict)
    # Cycles by what the program's author called the operation: "dot_general", "reduce_sum", ...
    by_operation: dict[str, int] = field(default_factory=dict)

    def add(self, other: "Cost", times: int = 1) -> None:
        self.cycles += times * other.cycles
        self.traffic += times * other.traffic
        for mine, theirs in (
            (self.collectives, other.collectives),
            (self.kernels, other.kernels),
            (self.by_operation, other.by_operation),
        ):
            for key, count in theirs.items():  # type: ignore[assignment]
                mine[key] = mine.get(key, 0) + times * count  # type: ignore[index]


@dataclass(frozen=True)
class Instruction:
    name: str
    shape: str
    op: str
    rest: str  # from the operands on


def cost(text: str) -> Cost:
    """Returns the cost of one run of the program. Raises ValueError if the text has no entry."""
    computations, entry = _computations(text)
    if entry is None:
        raise ValueError("no ENTRY computation in the compiled text")
    return _Reader(computations).cost(entry)


def array_bytes(shape: str, *, large_memory_only: bool = False) -> int:
    """Returns the bytes of all arrays of a shape such as `(bf16[8,128]{1,0:T(8,128)}, u32[])`."""
    total = 0.0
    for dtype, dims, layout in _ARRAY.findall(shape):
        if dtype not in _BYTES or (large_memory_only and re.search(r"S\([1-9]", layout)):
            continue
        total += _BYTES[dtype] * math.prod(int(size) for size in dims.split(",") if size)
    return int(total)


def moved_bytes(
    i: Instruction, shapes: dict[str, str], computations: dict[str, list[Instruction]]
) -> int:
    """Returns the bytes of large memory that an instruction reads and writes; of an array that it
    slices, or updates in place, those of the slice.

    `shapes` are those of its computation's instructions, by name.
    """
    inside = computations.get(_attribute(i, "calls"), []) if i.op == "fusion" else []
    # An instruction alone is as a fusion of it.
    operands = _operands(i)
    parameters = {
        int(match[1]): each.name
        for each in inside
        if each.op == "parameter" and (match := re.match(r"(\d+)\)", each.rest))
    } or dict(enumerate(operands))
    inside = inside or [i]
    known = shapes | {each.name: each.shape for each in inside}
    total = 0
    for number, operand in enumerate(operands):
        whole = array_bytes(shapes.get(operand, ""), large_memory_only=True)
        part = _part_read(parameters.get(number, ""), inside, known) if whole else None
        total += whole if part is None else min(part, whole)
    by_name, root = {each.name: each for each in inside}, inside[-1]
    results = _operands(root) if root.op == "tuple" else [root.name]
    arrays = [match[0] for match in _ARRAY.finditer(i.shape)]
    for number, array in enumerate(arrays):
        made = by_name.get(results[number]) if len(results) == len(arrays) else None
        whole = array_bytes(array, large_memory_only=True)
        while made is not None and made.op == "bitcast":
            made = by_name.get(_operands(made)[0])
        if made is not None and made.op == "dynamic-update-slice":
            total += min(whole, array_bytes(known.get(_operands(made)[1], "")))
        else:
            total += whole
    return total


def _part_read(name: str, inside: list[Instruction], shapes: dict[str, str]) -> int | None:
    """Returns the bytes that are read of an array which is only sliced, or updated in place; None
    where all of it is read.
    """
    total = 0
    for use in inside:
        if name not in (operands := _operands(use)):
            continue
        is_first = operands.index(name) == 0
        # Elements that are moved, each for itself: a slice of them asks for its own alone.
        passes_on = use.op in ("bitcast", "copy", "convert") or (
            use.op == "fusion" and array_bytes(use.shape) == array_bytes(shapes[name])
        )
        if use.op == "dynamic-slice" and is_first:
            total += array_bytes(use.shape)
        elif passes_on and len(operands) == 1 and use is not inside[-1]:
            part = _part_read(use.name, inside, shapes)
            if part is None:
                return None
            total += part
        elif not (use.op == "dynamic-update-slice" and is_first):
            return None
    return total


def parse_group(attributes: str) -> tuple[int, ...]:
    """Returns the partitions of the first replica group, in any of the notations that XLA has.

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
        # `'a','b':(2)4`: the whole axis a, and of b the 4 that come after a part of 2.
        spanned = {
            name: (int(before or 1), int(size or sizes[name]))
            for name, before, size in re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", match[2])
        }
        # An axis in three: before, spanned, after. The first group is at 0 along the outer two.
        dims, first = [], []
        for name, size in sizes.items():
            before, part = spanned.get(name, (1, 1))
            dims += [before, part, size // (before * part)]
            first += [0, slice(None), 0]
        return tuple(np.arange(math.prod(dims)).reshape(dims)[tuple(first)].ravel().tolist())
    return ()


def _numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",")]


def _computations(text: str) -> tuple[dict[str, list[Instruction]], str | None]:
    found: dict[str, list[Instruction]] = {}
    current: list[Instruction] | None = None
    entry = None
    for line in text.splitlines():
        # A kernel's metadata has lines of its own, the last of which begins with two.
        if line.startswith("}") and not line.startswith("}}"):
            current = None
        elif current is not None:
            if instruction := _instruction(line):
                current.append(instruction)
        elif not line.startswith(" ") and (match := _HEADER.match(line)):
            current = found[match[2]] = []
            entry = match[2] if match[1] else entry
    return found, entry


def _instruction(line: str) -> Instruction | None:
    head, equals, rest = line.partition(" = ")
    if not equals:
        return None
    words = head.split()
    # A tuple's shape goes to the parenthesis that closes it.
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.find(" ")
    shape, rest = rest[:end], rest[end:].lstrip()
    op, _, rest = rest.partition("(")
    return Instruction(words[-1].lstrip("%"), shape, op, rest)


class _Reader:
    def __init__(self, computations: dict[str, list[Instruction]]):
        self._computations = computations
        self._costs: dict[str, Cost] = {}
        self._inside: dict[str, list[tuple[str, Collective]]] = {}

    def cost(self, name: str) -> Cost:
        if name not in self._costs:
            self._costs[name] = self._read(name)
        return self._costs[name]

    def _read(self, name: str) -> Cost:
        total = Cost()
        instructions = self._computations.get(name, [])
        shapes = {i.name: i.shape for i in instructions}
        seen: set[str] = set()  # an asynchronous collective stands in several fusions
        for i in instructions:
            if i.op == "while":
                total.add(self.cost(_attribute(i, "body")), self._trips(i))
            elif i.op == "conditional":
                branches = [self.cost(b) for b in _branches(i)]
                total.add(max(branches, key=lambda c: c.cycles, default=Cost()))
            elif i.op == "call":
                total.add(self.cost(_attribute(i, "to_apply")))
            elif i.op == "async-start" and "calls=" in i.rest:
                total.add(self.cost(_attribute(i, "calls")))
            elif i.op == "custom-call":
                self._custom_call(i, shapes, total)
            elif i.op == "copy-start":  # between the memories, beside the computation
                total.traffic += array_bytes(i.shape, large_memory_only=True)
            if estimate := _CYCLES.search(i.rest):
                self._estimated(i, int(estimate[1]), shapes, total)
            for key, collective in self._collectives(i, shapes):
                if key not in seen:
                    seen.add(key)
                    total.add(Cost(collectives={collective: 1}))
        return total

    def _estimated(self, i: Instruction, cycles: int, shapes: dict, total: Cost) -> None:
        if cycles >= _UNKNOWN:
            touched = [i.shape, *(shapes.get(name, "") for name in _operands(i))]
            size = sum(array_bytes(shape) for shape in touched)
            total.add(Cost(kernels={Kernel(_operation(i), None, size): 1}))
            return
        traffic = moved_bytes(i, shapes, self._computations)
        total.add(Cost(cycles, traffic, by_operation={_operation(i): cycles}))

    def _collectives(
        self, i: Instruction, shapes: dict, *, is_fused: bool = False
    ) -> list[tuple[str, Collective]]:
        """Returns the collectives of one instruction, each with what it is known by in its
        computation.
        """
        if i.op == "send" and "megascale_transfer_type" in i.rest:
            kind = re.search(r'megascale_transfer_type="(\w+)"', i.rest)
            known = re.search(r'host_transfer_rendezvous="([^"]+)"', i.rest)
            size = array_bytes(i.shape.rsplit(", u32[]", 1)[0])
            name = kind[1].lower().replace("_", "-") if kind else "send"
            return [(known[1] if known else i.name, Collective(name, size, (), True))]
        kind = i.op.removesuffix("-start")
        if kind in _COLLECTIVES:
            channel = re.search(r"channel_id=(\d+)", i.rest)
            size = array_bytes(i.shape)
            operands = sum(array_bytes(shapes.get(o, "")) for o in _operands(i))
            if i.op.endswith("-start") and kind != "all-reduce" and i.shape.startswith("("):
                size -= operands  # the shape of a start holds operands and results
            if kind == "reduce-scatter":
                size = operands
            # One that runs beside the computation stands in several fusions, with one channel; each
            # other one is its own, though all of a `shard_map` have the same channel.
            known = channel[0] if channel and is_fused else i.name
            return [(f"{kind} {known} {size}", Collective(kind, size, parse_group(i.rest)))]
        if i.op == "fusion":
            return self._fused(_attribute(i, "calls"))
        return []

    def _fused(self, name: str) -> list[tuple[str, Collective]]:
        if name not in self._inside:
            instructions = self._computations.get(name, [])
            shapes = {i.name: i.shape for i in instructions}
            found = [
                pair for i in instructions for pair in self._collectives(i, shapes, is_fused=True)
            ]
            if any(i.op == "dynamic-slice" for i in instructions):
                # An all-reduce of which each device keeps its part is sent as a reduce-scatter.
                found = [
                    (f"{key} {name}", Collective("reduce-scatter", c.bytes, c.group))
                    if c.kind == "all-reduce"
                    else (key, c)
                    for key, c in found
                ]
            self._inside[name] = found
        return self._inside[name]

    def _custom_call(self, i: Instruction, shapes: dict, total: Cost) -> None:
        if called := re.search(r"called_computations=\{%?([\w.\-]+)", i.rest):
            # Work for another core of the chip: collectives and scatters on v5p and newer.
            total.add(self.cost(called[1]))
            return
        target = re.search(r'custom_call_target="([^"]*)"', i.rest)
        if target is None or target[1] in _MARKS:
            return
        size = array_bytes(i.shape) + sum(array_bytes(shapes.get(o, "")) for o in _operands(i))
        flops = re.search(r'"cost_estimate":\{"flops":"?(\d+)', i.rest)
        moved = re.search(r'"cost_estimate":\{[^}]*"bytes_accessed":"?(\d+)', i.rest)
        op_name = re.search(r'op_name="([^"]*)"', i.rest)
        kernel = Kernel(
            op_name[1] if op_name else target[1],
            float(flops[1]) if flops else None,
            int(moved[1]) if moved else size,
        )
        total.add(Cost(kernels={kernel: 1}))

    def _trips(self, i: Instruction) -> int:
        if match := re.search(r"known_trip_count[^0-9]*(\d+)", i.rest):
            return int(match[1])
        # The condition compares the counter with a constant.
        condition = self._computations.get(_attribute(i, "condition"), [])
        bounds = [re.match(r"(\d+)\)", c.rest) for c in condition if c.op == "constant"]
        return max((int(b[1]) for b in bounds if b), default=1)


def _operation(i: Instruction) -> str:
    """Returns the last part of the name that jax gave the operation, or the compiler's own word for
    it.
    """
    match = re.search(r'op_name="(?:[^"]*/)?([^"/]+)"', i.rest)
    return re.sub(r"\.\d+$", "", match[1]) if match else i.op


def _attribute(i: Instruction, name: str) -> str:
    match = re.search(rf"\b{name}=%?([\w.\-]+)", i.rest)
    return match[1] if match else ""


def _branches(i: Instruction) -> list[str]:
    if match := re.search(r"branch_computations=\{([^}]*)\}", i.rest):
        return [name.strip().lstrip("%") for name in match[1].split(",")]
    return [_attribute(i, f"{side}_computation") for side in ("true", "false")]


def _operands(i: Instruction) -> list[str]:
    return re.findall(r"%([\w.\-]+)", i.rest[: _closing(i.rest, 1)])


def _closing(text: str, depth: int) -> int:
    """Returns where the parenthesis closes that is `depth` deep before the text."""
    for match in re.finditer(r"[()]", text):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    return len(text)
