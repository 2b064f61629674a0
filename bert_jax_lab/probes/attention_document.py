"""The attention to one row as an object for JSON: in full, or as compact as a page needs it.

Both say the same numbers. Queries, keys and what positions add are stored once, exactly or in two
bytes a number, and all others are made of what is stored: here in NumPy, in the page by its script.
"""

import base64
import dataclasses
from typing import Any

import numpy as np

from bert_jax_lab.probes.attention import Attention, statistics

# Bytes up to which arrays are stored as float32, and beyond which in half of that: a page of
# BERT-Base has some 6 MB for 128 tokens, and would have 13.
_EXACT = 3_000_000
# What numbers are rounded to where they are written out.
_DECIMALS = 6
# The largest of the numbers of a vector, in two bytes.
_MOST = 32767


class AttentionDocument:
    """All that is known about a row. `attention` has the numbers as they are stored."""

    def __init__(self, attention: Attention, *, about: dict[str, Any]):
        """`about` is put at the beginning of both forms: plain values that say whose it is."""
        arrays = {"query": attention.query, "key": attention.key}
        if attention.position is not None:
            arrays["position"] = _once(attention.position)
        is_exact = sum(array.nbytes for array in arrays.values()) <= _EXACT
        self._arrays: dict[str, Any] = {}
        decoded = {}
        for name, array in arrays.items():
            self._arrays[name], decoded[name] = stored(array, exact=is_exact)
        self._seen = None
        # Else the ids say it, as in every model without a window.
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
        self.statistics = [dataclasses.asdict(head) for head in statistics(self.attention)]
        for head in self.statistics:
            head |= {name: round(value, _DECIMALS) for name, value in head.items()}
        self._head = about | {
            "stored_as": "float32" if is_exact else "int16",
            # By how much a weight is off for that, at most.
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
        """Returns what a page needs: stored arrays, the statistics of heads, and `seen` where a
        token does not see all of its sequence: `kinds` of masks, "1" for a key that is seen, and
        which of them each of the `layers` has.
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
        """Returns all numbers, rounded to six decimals; null is a score of a key that is not seen.

        For each head `query` and `key` `[L][K]`; `query_key`, q.k / sqrt(K); `position`, what
        positions add, or null; `scores`, the sum of the two; and `weights`, their softmax: each
        `[L][L]`, a row for each query. The elementwise product is a `query` times a `key`.
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
    """Returns what all layers add, once where it is the same in each: `[1, H, L, L]`."""
    is_shared = all(np.array_equal(position[0], layer) for layer in position[1:])
    return position[:1] if is_shared else position


def _rounded(x: Any) -> Any:
    return (np.round(np.asarray(x, np.float64), _DECIMALS) + 0.0).tolist()  # never -0.0


def stored(array: np.ndarray, *, exact: bool) -> tuple[dict[str, Any], np.ndarray]:
    """Returns an array float32 `[..., K]` as an object for JSON, and decoded again: numbers that
    are made of what comes back are those of the page.

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
