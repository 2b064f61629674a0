"""Dropout whose mask is a function of (seed, step, layer, site) and an element's global position.

The random bits come from a short integer hash of counters, not from a generator with state and not
from threefry: they fuse into the multiplication they gate, the backward pass computes them again
instead of storing them (but for attention, whose stored numbers have the mask in their signs), and
they are the same on every mesh, since an element is known by its row in the *global* batch and its
index in that row. Row and index are separate 32-bit words, so nothing repeats when a tensor has
more than 2^32 elements.

The mixing steps are those of Wellons' `lowbias32` (https://nullprogram.com/blog/2018/07/31/) with a
second key word between its two multiplications. tests/model/test_dropout.py tests it as a
generator: mean, variance and correlation between neighbours, rows, layers, sites and steps. It is
good enough for dropout and for nothing else.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp

from bert_jax.model.sharding import spec_of

_MULTIPLIER_1, _MULTIPLIER_2 = 0x7FEB352D, 0x846CA68B
_GOLDEN = 0x9E3779B9  # 2^32 over the golden ratio: moves small counters far apart


def _mix(x: jax.Array) -> jax.Array:
    """Applies a bijection of uint32 in which every input bit moves about half of the output
    bits.
    """
    x = (x ^ (x >> 16)) * jnp.uint32(_MULTIPLIER_1)
    x = (x ^ (x >> 15)) * jnp.uint32(_MULTIPLIER_2)
    return x ^ (x >> 16)


class DropoutKey(NamedTuple):
    """Two key words (uint32 scalars) and the global row number (uint32 `[B]`) of each row."""

    word_1: jax.Array
    word_2: jax.Array
    rows_B: jax.Array

    @classmethod
    def create(cls, *, seed: int, step: jax.Array, rows_B: jax.Array) -> Self:
        """Returns the key of one training step.

        `rows_B` numbers the rows within the global batch.
        """
        word_1 = _mix(jnp.uint32(seed & 0xFFFFFFFF))
        word_2 = _mix(jnp.uint32((seed >> 32) & 0xFFFFFFFF) ^ jnp.uint32(_GOLDEN))
        return cls(word_1, word_2, rows_B.astype(jnp.uint32)).fold(step)

    def fold(self, number: int | jax.Array) -> Self:
        """Returns an independent key for a numbered part: a step, a layer, a site."""
        number = jnp.asarray(number, jnp.uint32)
        return self._replace(
            word_1=_mix(self.word_1 ^ _mix(number + jnp.uint32(_GOLDEN))),
            word_2=_mix(self.word_2 + _mix(number ^ jnp.uint32(_MULTIPLIER_2))),
        )


def random_bits(key: DropoutKey, shape: tuple[int, ...], cuts: Sequence = ()) -> jax.Array:
    """Returns uint32 of `shape`, whose first dim is the rows of `key`; laid out over the mesh like
    them.

    `cuts` are the mesh axes that cut each dim, the first included; none by default. They decide
    where bits are computed, never which.
    """
    rows = key.rows_B.reshape(key.rows_B.shape + (1,) * (len(shape) - 1))
    row_1 = _mix(rows ^ key.word_1)
    row_2 = _mix(rows + key.word_2)
    # An index in a row is below 2^32 for any tensor that fits in memory.
    assert math.prod(shape[1:]) < 2**32
    index = jnp.zeros((1,) * len(shape), jnp.uint32)
    stride = 1
    for dim in reversed(range(1, len(shape))):
        counter_shape = tuple(n if i == dim else 1 for i, n in enumerate(shape))
        # Counted over the whole dim, also where the mesh cuts it.
        cut = cuts[dim] if cuts else None
        layout = jax.P(*(None,) * dim, cut) if cut else None
        counter = jax.lax.broadcasted_iota(jnp.uint32, counter_shape, dim, out_sharding=layout)
        index = index + counter * jnp.uint32(stride)
        stride *= shape[dim]
    return hashed(index + row_1, row_2)


def hashed(x: jax.Array, key: jax.Array) -> jax.Array:
    """Returns the hash of each uint32 of `x`, with a key word between the multiplications."""
    x = (x ^ (x >> 16)) * jnp.uint32(_MULTIPLIER_1)
    x = (x ^ (x >> 15) ^ key) * jnp.uint32(_MULTIPLIER_2)
    return x ^ (x >> 16)


def keep_mask(key: DropoutKey, x: jax.Array, *, rate: float) -> jax.Array:
    """Returns true with probability 1 - `rate` for each element of `x`, laid out like it."""
    return random_bits(key, x.shape, spec_of(x)) >= jnp.uint32(round(rate * 2**32))


def dropout(x: jax.Array, key: DropoutKey | None, *, rate: float) -> jax.Array:
    """Zeroes elements with probability `rate` and scales the rest by 1 / (1 - rate).

    `key=None` means evaluation and returns `x`. The first dim of `x` is the rows of `key`.
    """
    if key is None or rate == 0:
        return x
    keep = keep_mask(key, x, rate=rate)
    return jnp.where(keep, x * jnp.asarray(1 / (1 - rate), x.dtype), jnp.zeros((), x.dtype))
