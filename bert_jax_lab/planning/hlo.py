"""The text of a compiled TPU program: computations, their instructions, and the bytes they move."""

import math
import re
from dataclasses import dataclass

_BYTES = (
    dict.fromkeys(("s4", "u4"), 0.5)
    | dict.fromkeys(("pred", "s8", "u8", "f8e4m3fn", "f8e5m2"), 1)
    | dict.fromkeys(("s16", "u16", "bf16", "f16"), 2)
    | dict.fromkeys(("s32", "u32", "f32"), 4)
    | dict.fromkeys(("s64", "u64", "f64"), 8)
)

ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\](\{[^{}]*\})?")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{\s*$")


@dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    shape: str
    op: str
    rest: str  # from the operands on


def array_bytes(shape: str, *, large_memory_only: bool = False) -> int:
    """Returns the bytes of all arrays of a shape such as `(bf16[8,128]{1,0:T(8,128)}, u32[])`."""
    total = 0.0
    for dtype, dims, layout in ARRAY.findall(shape):
        if dtype not in _BYTES or (large_memory_only and re.search(r"S\([1-9]", layout)):
            continue
        total += _BYTES[dtype] * math.prod(int(size) for size in dims.split(",") if size)
    return int(total)


def computations_of(text: str) -> tuple[dict[str, list[Instruction]], str | None]:
    """Returns the instructions of each computation by its name, in the order of the schedule, and
    the name of the entry; None for a text without an entry.
    """
    found: dict[str, list[Instruction]] = {}
    current: list[Instruction] | None = None
    entry = None
    for line in text.splitlines():
        # The metadata of a kernel ends with a line that begins with two braces.
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
    # The shape of a tuple ends with its closing parenthesis.
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.find(" ")
    shape, rest = rest[:end], rest[end:].lstrip()
    op, _, rest = rest.partition("(")
    return Instruction(words[-1].lstrip("%"), shape, op, rest)


def attribute(i: Instruction, name: str) -> str:
    """Returns the value of an attribute of an instruction; "" without the attribute."""
    match = re.search(rf"\b{name}=%?([\w.\-]+)", i.rest)
    return match[1] if match else ""


def branches_of(i: Instruction) -> list[str]:
    """Returns the computations of the branches of a conditional."""
    if match := re.search(r"branch_computations=\{([^}]*)\}", i.rest):
        return [name.strip().lstrip("%") for name in match[1].split(",")]
    return [attribute(i, f"{side}_computation") for side in ("true", "false")]


def operands_of(i: Instruction) -> list[str]:
    """Returns the names of the operands of an instruction."""
    return re.findall(r"%([\w.\-]+)", i.rest[: _closing(i.rest, 1)])


def _closing(text: str, depth: int) -> int:
    """Returns the index of the parenthesis that closes `depth` open ones."""
    for match in re.finditer(r"[()]", text):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    return len(text)


def trips_of(i: Instruction, computations: dict[str, list[Instruction]]) -> int:
    """Returns how often the body of a loop runs."""
    if match := re.search(r"known_trip_count[^0-9]*(\d+)", i.rest):
        return int(match[1])
    # The condition compares the counter with a constant.
    condition = computations.get(attribute(i, "condition"), [])
    bounds = [re.match(r"(\d+)\)", c.rest) for c in condition if c.op == "constant"]
    return max((int(b[1]) for b in bounds if b), default=1)


def moved_bytes(
    i: Instruction, shapes: dict[str, str], computations: dict[str, list[Instruction]]
) -> int:
    """Returns the bytes of HBM that an instruction reads and writes. An array that is only sliced
    or updated in place counts with the bytes of the slice.

    `shapes` maps the names of the instructions in its computation to their shapes.
    """
    inside = computations.get(attribute(i, "calls"), []) if i.op == "fusion" else []
    # A single instruction is read like a fusion of it.
    operands = operands_of(i)
    parameters = {
        int(match[1]): each.name
        for each in inside
        if each.op == "parameter" and (match := re.match(r"(\d+)\)", each.rest))
    } or dict(enumerate(operands))
    inside = inside or [i]
    known = shapes | {each.name: each.shape for each in inside}
    # Fusions pass the array of an asynchronous collective through in place.
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
    """Returns the bytes that are read of an array that is only sliced or updated in place; None if
    the whole array is read.
    """
    total = 0
    for use in inside:
        if name not in (operands := operands_of(use)):
            continue
        is_first = operands.index(name) == 0
        # A slice of an elementwise copy reads only the slice.
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
