"""FLOPs of the matrix products in an instruction of a compiled TPU program.

The TPU compiler writes a product as a convolution, and the dims that both sides share (rows of a
batch, heads) as spatial dims of its window.
"""

import math
import re

from bert_jax_lab.planning.hlo_text import Instruction, attribute, operands_of

_ARRAY = re.compile(r"\b[a-z]\w*\[([\d,]*)\]")
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")


def flops(i: Instruction, computations: dict[str, list[Instruction]]) -> int:
    """Returns 2 for each multiplication and addition of the products in a fusion, and in those that
    it calls; 0 where it has none.
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
