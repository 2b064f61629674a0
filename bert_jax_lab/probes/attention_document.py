"""The attention to one row as a JSON object: in full, or compact for a page.

Both have the same numbers. Queries, keys and the scores that positions add are stored once, exactly
or in two bytes per number. All other numbers are computed from the stored numbers, here in NumPy
and on the page by its script.
"""

import base64
import dataclasses
from typing import Any

import numpy as np

from bert_jax_lab.probes.attention import Attention, statistics

# Larger arrays, in bytes, are stored as int16: a page for BERT-Base with 128 tokens has 6 MB
# instead of 13 MB.
_EXACT = 3_000_000
# The decimals of numbers that are written as text.
_DECIMALS = 6
# The largest number of a vector in the two-byte format.
_MOST = 32767


class AttentionDocument:
    """The attention to a row; `attention` contains the numbers as they are stored."""

    def __init__(self, attention: Attention, *, about: dict[str, Any]):
        """`about` is the beginning of both forms: plain values about the model and the texts."""
        arrays = {"query": attention.query, "key": attention.key}
        if attention.position is not None:
            arrays["position"] = _once(attention.position)
        is_exact = sum(array.nbytes for array in arrays.values()) <= _EXACT
        self._arrays: dict[str, Any] = {}
        decoded = {}
        for name, array in arrays.items():
            self._arrays[name], decoded[name] = stored(array, exact=is_exact)
        self._seen = None
        # Without a window, the sequence ids determine the mask.
        ids = attention.sequence_ids
        if (attention.seen != (ids[:, None] == ids[None, :])).any():
            kinds = np.unique(attention.seen, axis=0)
            self._seen = {
                "kinds": [
                    ["".join("01"[int(seen)] for seen in row) for row in kind] for kind in kinds
                ],
                "layers": [
                    next(n for n, kind in enumerate(kinds) if np.array_equal(kind, layer))
                    for layer in attention.seen
                ],
            }
        if "position" in decoded:
            assert attention.position is not None
            decoded["position"] = np.broadcast_to(decoded["position"], attention.position.shape)
        self.attention = dataclasses.replace(attention, **decoded)
        self.statistics = [
            {name: round(value, _DECIMALS) for name, value in head.items()}
            for head in statistics(self.attention)
        ]
        self._head = about | {
            "stored_as": "float32" if is_exact else "int16",
            # The largest error of a weight.
            "weights_within": _rounded(
                max(
                    np.abs(attention.weights(layer) - self.attention.weights(layer)).max()
                    for layer in range(len(attention.layers))
                )
            ),
            "tokens": list(attention.tokens),
            "sequence_ids": attention.sequence_ids.tolist(),
            "position_ids": attention.position_ids.tolist(),
            "num_heads": attention.num_heads,
            "head_size": attention.head_size,
        }

    def compact(self) -> dict[str, Any]:
        """Returns the stored arrays, the statistics of heads and, for layers with a window, `seen`:
        the `kinds` of masks, with "1" for a key that is attended to, and the kind of each of the
        `layers`.
        """
        layers = list(self.attention.layers)
        position = self._arrays.get("position")
        return (
            self._head
            | {"layers": layers, "statistics": self.statistics}
            | self._arrays
            | {"position": position}
            | ({} if self._seen is None else {"seen": self._seen})
        )

    def in_full(self) -> dict[str, Any]:
        """Returns all numbers, rounded to six decimals; the score of a masked key is null.

        For each head: `query` and `key` `[L][K]`; `query_key`, q.k / sqrt(K); `position`, the
        scores that positions add, or null; `scores`, the sum of the two; and `weights`, their
        softmax. The last four are `[L][L]`, one row per query.
        """
        found, heads = self.attention, iter(self.statistics)
        layers = []
        for index, layer in enumerate(found.layers):
            products, scores = found.products(index), found.scores(index)
            weights, of_layer = found.weights(index), []
            for head in range(found.num_heads):
                position = None if found.position is None else found.position[index, head]
                of_layer.append(
                    next(heads)
                    | {
                        "query": _rounded(found.query[index, head]),
                        "key": _rounded(found.key[index, head]),
                        "query_key": _rounded(products[head]),
                        "position": None if position is None else _rounded(position),
                        "scores": [
                            [None if np.isneginf(x) else x for x in row]
                            for row in _rounded(scores[head])
                        ],
                        "weights": _rounded(weights[head]),
                    }
                )
            layers.append({"layer": layer, "heads": of_layer})
        return self._head | {"layers": layers}


def _once(position: np.ndarray) -> np.ndarray:
    """Returns the scores that positions add, `[1, H, L, L]` if they are equal in all layers."""
    is_shared = all(np.array_equal(position[0], layer) for layer in position[1:])
    return position[:1] if is_shared else position


def _rounded(x: Any) -> Any:
    return (np.round(np.asarray(x, np.float64), _DECIMALS) + 0.0).tolist()  # never -0.0


def stored(array: np.ndarray, *, exact: bool) -> tuple[dict[str, Any], np.ndarray]:
    """Returns an array float32 `[..., K]` as an object for JSON, and the decoded array.

    If `exact`, `data` is the base64 of little-endian float32. Otherwise each vector, the last dim,
    has a float32 in `scales`, and `data` is int16: the error of a number is at most 1/65,534 of the
    largest number of its vector. `type` and `shape` describe the array.
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
