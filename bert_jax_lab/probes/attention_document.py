"""The attention to one row as a JSON object: in full, or compact for a page.

Both have the same numbers. The compact form has queries, keys and the scores that positions add;
the script of the page computes the other numbers from them.
"""

import base64
from typing import Any

import numpy as np

from bert_jax_lab.probes.attention import Attention, statistics

# The decimals of numbers that are written as text.
_DECIMALS = 6


class AttentionDocument:
    """The attention to a row, and the statistics of its heads."""

    def __init__(self, attention: Attention, *, about: dict[str, Any]):
        """`about` is the beginning of both forms: plain values about the model and the texts."""
        self.attention = attention
        self.statistics = [
            {name: round(value, _DECIMALS) for name, value in head.items()}
            for head in statistics(attention)
        ]
        self._head = about | {
            "tokens": list(attention.tokens),
            "sequence_ids": attention.sequence_ids.tolist(),
            "position_ids": attention.position_ids.tolist(),
            "num_heads": attention.num_heads,
            "head_size": attention.head_size,
        }

    def compact(self) -> dict[str, Any]:
        """Returns the arrays in base64 and the statistics of heads. Layers with a window add
        `seen`: the `kinds` of masks, with "1" for a key that is attended to, and the kind of each
        of the `layers`.
        """
        found = self.attention
        position = None if found.position is None else _stored(_once(found.position))
        arrays = {"query": _stored(found.query), "key": _stored(found.key), "position": position}
        document = self._head | arrays
        document |= {"layers": list(found.layers), "statistics": self.statistics}
        # Without a window, the sequence ids determine the mask.
        ids = found.sequence_ids
        if (found.seen != (ids[:, None] == ids[None, :])).any():
            kinds, of_layers = np.unique(found.seen, axis=0, return_inverse=True)
            document["seen"] = {
                "kinds": [
                    ["".join("01"[int(seen)] for seen in row) for row in kind] for kind in kinds
                ],
                "layers": of_layers.ravel().tolist(),
            }
        return document

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


def _stored(array: np.ndarray) -> dict[str, Any]:
    """Returns the shape of an array, and the base64 of its numbers as little-endian float32."""
    data = base64.b64encode(array.astype("<f4").tobytes()).decode("ascii")
    return {"shape": list(array.shape), "data": data}
