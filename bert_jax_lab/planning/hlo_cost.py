"""Reads what a compiled TPU program says about itself: cycles, collectives, kernels, memory
traffic.

Read from the text of the scheduled program (`aot_compile.py` has it written), in which the compiler
has written its own estimate of cycles beside every fusion and copy. A loop's body counts as often
as it runs. Three things carry no estimate and are listed apart: collectives, custom kernels, and
copies between memories that run beside the computation.
"""

import re
from dataclasses import dataclass, field

from bert_jax_lab.planning.hlo_text import (
    ARRAY,
    Instruction,
    array_bytes,
    attribute,
    branches_of,
    computations_of,
    operands_of,
    parse_group,
)

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
CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')
UNKNOWN = 2**62  # the compiler's way to say that it has no estimate


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


def cost(text: str) -> Cost:
    """Returns the cost of one run of the program. Raises ValueError if the text has no entry."""
    computations, entry = computations_of(text)
    if entry is None:
        raise ValueError("no ENTRY computation in the compiled text")
    return ProgramReader(computations).cost(entry)


def moved_bytes(
    i: Instruction, shapes: dict[str, str], computations: dict[str, list[Instruction]]
) -> int:
    """Returns the bytes of large memory that an instruction reads and writes; of an array that it
    slices, or updates in place, those of the slice.

    `shapes` are those of its computation's instructions, by name.
    """
    inside = computations.get(attribute(i, "calls"), []) if i.op == "fusion" else []
    # An instruction alone is as a fusion of it.
    operands = operands_of(i)
    parameters = {
        int(match[1]): each.name
        for each in inside
        if each.op == "parameter" and (match := re.match(r"(\d+)\)", each.rest))
    } or dict(enumerate(operands))
    inside = inside or [i]
    known = shapes | {each.name: each.shape for each in inside}
    # What a collective beside it works on goes from fusion to fusion in place.
    is_beside = attribute(i, "calls").startswith("async_collective_fusion")
    in_place = re.findall(r"\{(\d+)\}: \((\d+),", i.rest) if is_beside else []
    total = 0
    for number, operand in enumerate(operands):
        is_its_own = str(number) in (given for _, given in in_place)
        whole = 0 if is_its_own else array_bytes(shapes.get(operand, ""), large_memory_only=True)
        part = _part_read(parameters.get(number, ""), inside, known) if whole else None
        total += whole if part is None else min(part, whole)
    by_name, root = {each.name: each for each in inside}, inside[-1]
    results = operands_of(root) if root.op == "tuple" else [root.name]
    arrays = [match[0] for match in ARRAY.finditer(i.shape)]
    for number, array in enumerate(arrays):
        made = by_name.get(results[number]) if len(results) == len(arrays) else None
        is_its_own = str(number) in (given_back for given_back, _ in in_place)
        whole = 0 if is_its_own else array_bytes(array, large_memory_only=True)
        while made is not None and made.op == "bitcast":
            made = by_name.get(operands_of(made)[0])
        if made is not None and made.op == "dynamic-update-slice":
            total += min(whole, array_bytes(known.get(operands_of(made)[1], "")))
        else:
            total += whole
    return total


def _part_read(name: str, inside: list[Instruction], shapes: dict[str, str]) -> int | None:
    """Returns the bytes that are read of an array which is only sliced, or updated in place; None
    where all of it is read.
    """
    total = 0
    for use in inside:
        if name not in (operands := operands_of(use)):
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


class ProgramReader:
    """Sums up the computations of a program, each once."""

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
                total.add(self.cost(attribute(i, "body")), self.trips(i))
            elif i.op == "conditional":
                branches = [self.cost(b) for b in branches_of(i)]
                total.add(max(branches, key=lambda c: c.cycles, default=Cost()))
            elif i.op == "call":
                total.add(self.cost(attribute(i, "to_apply")))
            elif i.op == "async-start" and "calls=" in i.rest:
                total.add(self.cost(attribute(i, "calls")))
            elif i.op == "custom-call":
                self._custom_call(i, shapes, total)
            elif i.op == "copy-start":  # between the memories, beside the computation
                total.traffic += array_bytes(i.shape, large_memory_only=True)
            if estimate := CYCLES.search(i.rest):
                self._estimated(i, int(estimate[1]), shapes, total)
            for key, collective in self.collectives(i, shapes):
                if key not in seen:
                    seen.add(key)
                    total.add(Cost(collectives={collective: 1}))
        return total

    def _estimated(self, i: Instruction, cycles: int, shapes: dict, total: Cost) -> None:
        if cycles >= UNKNOWN:
            touched = [i.shape, *(shapes.get(name, "") for name in operands_of(i))]
            size = sum(array_bytes(shape) for shape in touched)
            total.add(Cost(kernels={Kernel(_operation(i), None, size): 1}))
            return
        traffic = moved_bytes(i, shapes, self._computations)
        total.add(Cost(cycles, traffic, by_operation={_operation(i): cycles}))

    def collectives(
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
            operands = sum(array_bytes(shapes.get(o, "")) for o in operands_of(i))
            if i.op.endswith("-start") and kind != "all-reduce" and i.shape.startswith("("):
                size -= operands  # the shape of a start holds operands and results
            if kind == "reduce-scatter":
                size = operands
            # One that runs beside the computation stands in several fusions, with one channel; each
            # other one is its own, though all of a `shard_map` have the same channel.
            known = channel[0] if channel and is_fused else i.name
            return [(f"{kind} {known} {size}", Collective(kind, size, parse_group(i.rest)))]
        if i.op == "fusion":
            return self._fused(attribute(i, "calls"))
        return []

    def _fused(self, name: str) -> list[tuple[str, Collective]]:
        if name not in self._inside:
            instructions = self._computations.get(name, [])
            shapes = {i.name: i.shape for i in instructions}
            found = [
                pair for i in instructions for pair in self.collectives(i, shapes, is_fused=True)
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
        size = array_bytes(i.shape) + sum(array_bytes(shapes.get(o, "")) for o in operands_of(i))
        flops = re.search(r'"cost_estimate":\{"flops":"?(\d+)', i.rest)
        moved = re.search(r'"cost_estimate":\{[^}]*"bytes_accessed":"?(\d+)', i.rest)
        op_name = re.search(r'op_name="([^"]*)"', i.rest)
        kernel = Kernel(
            op_name[1] if op_name else target[1],
            float(flops[1]) if flops else None,
            int(moved[1]) if moved else size,
        )
        total.add(Cost(kernels={kernel: 1}))

    def trips(self, i: Instruction) -> int:
        """Returns how often the body of a loop runs."""
        if match := re.search(r"known_trip_count[^0-9]*(\d+)", i.rest):
            return int(match[1])
        # The condition compares the counter with a constant.
        condition = self._computations.get(attribute(i, "condition"), [])
        bounds = [re.match(r"(\d+)\)", c.rest) for c in condition if c.op == "constant"]
        return max((int(b[1]) for b in bounds if b), default=1)


def _operation(i: Instruction) -> str:
    """Returns the last part of the name that jax gave the operation, or the compiler's own word for
    it.
    """
    match = re.search(r'op_name="(?:[^"]*/)?([^"/]+)"', i.rest)
    return re.sub(r"\.\d+$", "", match[1]) if match else i.op
