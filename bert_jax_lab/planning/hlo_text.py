"""The text of a compiled TPU program: its computations, and the instructions of each."""

import math
import re
from dataclasses import dataclass

import numpy as np

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


def computations_of(text: str) -> tuple[dict[str, list[Instruction]], str | None]:
    """Returns the instructions of each computation by its name, in the order of the schedule, and
    the name of the entry, None where the text has none.
    """
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


def attribute(i: Instruction, name: str) -> str:
    """Returns the computation, or the word, that an instruction has under a name, "" if none."""
    match = re.search(rf"\b{name}=%?([\w.\-]+)", i.rest)
    return match[1] if match else ""


def branches_of(i: Instruction) -> list[str]:
    """Returns the computations of a conditional, one of which runs."""
    if match := re.search(r"branch_computations=\{([^}]*)\}", i.rest):
        return [name.strip().lstrip("%") for name in match[1].split(",")]
    return [attribute(i, f"{side}_computation") for side in ("true", "false")]


def operands_of(i: Instruction) -> list[str]:
    """Returns the names of the instructions that one reads."""
    return re.findall(r"%([\w.\-]+)", i.rest[: _closing(i.rest, 1)])


def _closing(text: str, depth: int) -> int:
    """Returns where the parenthesis closes that is `depth` deep before the text."""
    for match in re.finditer(r"[()]", text):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    return len(text)
