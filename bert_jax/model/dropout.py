"""Dropout with a mask that is a function of (seed, step, layer, site) and an element's global
position.

The random bits are a short integer hash of counters, not the output of a generator with state: the
hash fuses into the multiplication that it gates, the backward pass computes it again instead of
storing it, and the bits are the same on every mesh, because an element is identified by its row in
the *global* batch and its index in that row. Row and index are separate 32-bit words, so nothing
repeats when a tensor has more than 2^32 elements. Only attention stores its mask, in the signs of
numbers that it stores anyway.

The kind of chip determines the hash, and with it the elements that are dropped:

- `lowbias32`, on most chips: the mixing steps of Wellons' `lowbias32`
  (https://nullprogram.com/blog/2018/07/31/) with a second key word between its two multiplications.
- `shift_add`, on chips without an integer multiplication (`_SHIFT_ADD_ON`): adds the `lowbias32` of
  an element's index in all dims except the last to the `lowbias32` of its index in the last dim,
  and mixes the sum by eleven shifts, additions and exclusive ors.

tests/model/test_dropout.py tests both as generators: mean, variance and correlation between
neighbors, rows, columns, layers, sites and steps. They are good enough for dropout only.
"""

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import Self

import jax
import jax.numpy as jnp

from bert_jax.model.sharding import device_kind, spec_of

_MULTIPLIER_1, _MULTIPLIER_2 = 0x7FEB352D, 0x846CA68B
_OTHER = 0x5BD1E995  # any odd number: separates the hash of a row from the hash of a column
_GOLDEN = 0x9E3779B9  # 2^32 over the golden ratio: moves small counters far apart
# An integer multiplication is 24 operations on a v3.
_SHIFT_ADD_ON = ("TPU v2", "TPU v3", "TPU v4")


def hashed(x: jax.Array, key: jax.Array | int = 0) -> jax.Array:
    """Returns the `lowbias32` of each uint32 of `x`, with a key word between the multiplications.

    For one key word it is a bijection: every input bit changes about half of the output bits.
    """
    x = (x ^ (x >> 16)) * jnp.uint32(_MULTIPLIER_1)
    x = (x ^ (x >> 15) ^ key) * jnp.uint32(_MULTIPLIER_2)
    return x ^ (x >> 16)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["word_1", "word_2", "rows_B"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class DropoutKey:
    """Two key words (uint32 scalars) and the global number of each row (uint32 `[B]`)."""

    word_1: jax.Array
    word_2: jax.Array
    rows_B: jax.Array

    @classmethod
    def create(cls, *, seed: int, step: jax.Array, rows_B: jax.Array) -> Self:
        """Returns the key of one training step. `rows_B` numbers the rows of the global batch."""
        word_1 = hashed(jnp.uint32(seed & 0xFFFFFFFF))
        word_2 = hashed(jnp.uint32((seed >> 32) & 0xFFFFFFFF) ^ jnp.uint32(_GOLDEN))
        return cls(word_1, word_2, rows_B.astype(jnp.uint32)).fold(step)

    def fold(self, number: int | jax.Array) -> Self:
        """Returns an independent key for a numbered part: a step, a layer, a site."""
        number = jnp.asarray(number, jnp.uint32)
        return dataclasses.replace(
            self,
            word_1=hashed(self.word_1 ^ hashed(number + jnp.uint32(_GOLDEN))),
            word_2=hashed(self.word_2 + hashed(number ^ jnp.uint32(_MULTIPLIER_2))),
        )


def random_bits(key: DropoutKey, shape: tuple[int, ...], cuts: Sequence = ()) -> jax.Array:
    """Returns uint32 of `shape`; the first dim is the rows of `key`, sharded like them.

    `cuts` are the mesh axes that cut each dim, the first included; none by default. They determine
    where bits are computed, not the bits.
    """
    # The index within a row is below 2^32 for any tensor that fits in memory.
    assert math.prod(shape[1:]) < 2**32
    row_1, row_2 = (
        # A reshape would lose the sharding of a batch of one row.
        jnp.expand_dims(word_B, range(1, len(shape)))
        for word_B in key_words(key)
    )
    last = len(shape) - 1
    if device_kind() not in _SHIFT_ADD_ON:
        return hashed(_index(shape, cuts, range(1, last + 1)) + row_1, row_2)
    of_columns = hashed(_index(shape, cuts, range(1, last)) + row_1, row_2)
    place = _index(shape, cuts, [last]) ^ jnp.uint32(_GOLDEN)
    of_rows = hashed(place + row_1, row_2 ^ jnp.uint32(_OTHER))
    # Without the barrier XLA would compute both for every element.
    of_columns, of_rows = jax.lax.optimization_barrier((of_columns, of_rows))
    return _mix_by_shifts(of_columns + of_rows)


def key_words(key: DropoutKey) -> tuple[jax.Array, jax.Array]:
    """Returns the two key words of each row, uint32 `[B]`."""
    return hashed(key.rows_B ^ key.word_1), hashed(key.rows_B + key.word_2)


def _index(shape: tuple[int, ...], cuts: Sequence, dims: Sequence[int]) -> jax.Array:
    """Returns the row-major index of each element in the given dims; other dims have size 1."""
    index = jnp.zeros((1,) * len(shape), jnp.uint32)
    stride = 1
    for dim in reversed(dims):
        counter_shape = tuple(n if i == dim else 1 for i, n in enumerate(shape))
        # Counts over the whole dim, even if the mesh shards it.
        cut = cuts[dim] if cuts else None
        layout = jax.P(*(None,) * dim, cut) if cut else None
        counter = jax.lax.broadcasted_iota(jnp.uint32, counter_shape, dim, out_sharding=layout)
        index = index + counter * jnp.uint32(stride)
        stride *= shape[dim]
    return index


def _mix_by_shifts(x: jax.Array) -> jax.Array:
    x ^= x >> 15
    x += x << 7
    x ^= x >> 11
    x += x << 9
    x ^= x >> 13
    return x + (x << 5)


def keep_mask(key: DropoutKey, x: jax.Array, *, rate: float) -> jax.Array:
    """Returns true with probability 1 - `rate` for each element of `x`, sharded like `x`."""
    return random_bits(key, x.shape, spec_of(x)) >= threshold(rate)


def threshold(rate: float) -> jax.Array:
    """Returns the lowest uint32 that keeps an element."""
    return jnp.uint32(round(rate * 2**32))


def dropout(x: jax.Array, key: DropoutKey | None, *, rate: float) -> jax.Array:
    """Zeroes elements with probability `rate` and scales the rest by 1 / (1 - rate).

    `key=None` means evaluation and returns `x`. The first dim of `x` is the rows of `key`.
    """
    if key is None or rate == 0:
        return x
    keep = keep_mask(key, x, rate=rate)
    # In float32: 1 / 0.9 in bfloat16 would be 0.16 % too small for every kept element.
    scaled = (x.astype(jnp.float32) * (1 / (1 - rate))).astype(x.dtype)
    return jnp.where(keep, scaled, jnp.zeros((), x.dtype))
