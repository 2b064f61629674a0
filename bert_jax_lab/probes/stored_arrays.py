"""Arrays of vectors as text, for a page that has to be light: exact, or in two bytes a number.

What is written down is what is shown: the decoded array comes back with it, so that numbers that
are made of it elsewhere are those of the page.
"""

import base64
from typing import Any

import numpy as np

# The largest of the numbers of a vector, in two bytes.
_MOST = 32767


def stored(array: np.ndarray, *, exact: bool) -> tuple[dict[str, Any], np.ndarray]:
    """Returns an array float32 `[..., K]` as an object for JSON, and decoded again.

    Exact, `data` is the base64 of its little-endian float32. Else each vector, the last dim, has a
    float32 in `scales`, and `data` is int16: a number is off by at most 1/65,534 of the largest one
    of its vector. `type` says which, `shape` the shape.
    """
    array = np.ascontiguousarray(array, np.float32)
    described: dict[str, Any] = {"shape": list(array.shape)}
    if exact:
        return described | {"type": "float32", "data": _text(array, "<f4")}, array
    scales = np.abs(array).max(axis=-1, keepdims=True) / np.float32(_MOST)
    rounded = np.rint(array / np.where(scales > 0, scales, 1)).astype(np.int16)
    described |= {"type": "int16", "scales": _text(scales, "<f4"), "data": _text(rounded, "<i2")}
    return described, rounded * scales


def _text(array: np.ndarray, dtype: str) -> str:
    return base64.b64encode(array.astype(dtype).tobytes()).decode("ascii")
