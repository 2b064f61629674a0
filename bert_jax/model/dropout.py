"""Dropout whose mask is a function of (seed, step, layer, site) and an element's global position.

The random bits come from a short integer hash of counters, not from a generator with state and not
from threefry: they fuse into the multiplication they gate, the backward pass computes them again
instead of storing them, and they are the same on every mesh, since an element is known by its row
in the *global* batch and its index in that row. Row and index are separate 32-bit words, so nothing
repeats when a tensor has more than 2^32 elements. Stored is the mask of attention, in the signs of
numbers that are stored, and on TPUs up to v4 each mask that `lowbias32` draws.

Which hash it is, the config says (`dropout_hash`), since it decides what is dropped:

- `lowbias32`: the mixing steps are those of Wellons' `lowbias32`
  (https://nullprogram.com/blog/2018/07/31/) with a second key word between its two multiplications.
  TPUs up to v4 add shifted numbers up in place of these; the bits are the same.
- `shift_add`: an element adds such a hash of its place in all dims but the last to one of its place
  in the last, a column and a row of hashes, and mixes the sum by shifts, additions and exclusive
  ors, eleven in all.

tests/model/test_dropout.py tests them as generators: mean, variance and correlation between
neighbours, rows, columns, layers, sites and steps. They are good enough for dropout alone.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Self

import jax
import jax.numpy as jnp

from bert_jax.model.sharding import device_kind, spec_of

_MULTIPLIER_1, _MULTIPLIER_2 = 0x7FEB352D, 0x846CA68B
_OTHER = 0x5BD1E995  # any odd number: tells the hash of a row from that of a column
_GOLDEN = 0x9E3779B9  # 2^32 over the golden ratio: moves small counters far apart


def _mix(x: jax.Array) -> jax.Array:
    """Applies a bijection of uint32 in which every input bit moves about half of the output
    bits.
    """
    x = (x ^ (x >> 16)) * jnp.uint32(_MULTIPLIER_1)
    x = (x ^ (x >> 15)) * jnp.uint32(_MULTIPLIER_2)
    return x ^ (x >> 16)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["word_1", "word_2", "rows_B"],
    meta_fields=["hash_name"],
)
@dataclasses.dataclass(frozen=True)
class DropoutKey:
    """Two key words (uint32 scalars), the global row number (uint32 `[B]`) of each row, and which
    of `HASHES` draws.
    """

    word_1: jax.Array
    word_2: jax.Array
    rows_B: jax.Array
    hash_name: str

    @classmethod
    def create(
        cls, *, seed: int, step: jax.Array, rows_B: jax.Array, hash_name: str = "lowbias32"
    ) -> Self:
        """Returns the key of one training step.

        `rows_B` numbers the rows within the global batch.
        """
        word_1 = _mix(jnp.uint32(seed & 0xFFFFFFFF))
        word_2 = _mix(jnp.uint32((seed >> 32) & 0xFFFFFFFF) ^ jnp.uint32(_GOLDEN))
        return cls(word_1, word_2, rows_B.astype(jnp.uint32), hash_name).fold(step)

    def fold(self, number: int | jax.Array) -> Self:
        """Returns an independent key for a numbered part: a step, a layer, a site."""
        number = jnp.asarray(number, jnp.uint32)
        return dataclasses.replace(
            self,
            word_1=_mix(self.word_1 ^ _mix(number + jnp.uint32(_GOLDEN))),
            word_2=_mix(self.word_2 + _mix(number ^ jnp.uint32(_MULTIPLIER_2))),
        )


def random_bits(key: DropoutKey, shape: tuple[int, ...], cuts: Sequence = ()) -> jax.Array:
    """Returns uint32 of `shape`, whose first dim is the rows of `key`; laid out over the mesh like
    them.

    `cuts` are the mesh axes that cut each dim, the first included; none by default. They decide
    where bits are computed, never which.
    """
    return HASHES[key.hash_name].last_step(_mixed(key, shape, cuts))


def _mixed(key: DropoutKey, shape: tuple[int, ...], cuts: Sequence) -> jax.Array:
    """Returns the bits before the last step of the hash."""
    # An index in a row is below 2^32 for any tensor that fits in memory.
    assert math.prod(shape[1:]) < 2**32
    row_1, row_2 = (
        word_B.reshape(word_B.shape + (1,) * (len(shape) - 1)) for word_B in key_words(key)
    )
    return HASHES[key.hash_name].steps(row_1, row_2, shape, cuts)


def key_words(key: DropoutKey) -> tuple[jax.Array, jax.Array]:
    """Returns the two key words of each row, uint32 `[B]`."""
    return _mix(key.rows_B ^ key.word_1), _mix(key.rows_B + key.word_2)


def bits_at(
    hash_name: str,
    row_1: jax.Array,
    row_2: jax.Array,
    outer: jax.Array,
    inner: jax.Array,
    *,
    size: int,
) -> jax.Array:
    """Returns the bits that `random_bits` draws, for a kernel, which knows where its elements are:
    their places in the dims between the first and the last one, counted row by row, and in the
    last, which has `size`. All uint32; `row_1` and `row_2` are the row's key words.
    """
    if hash_name == "lowbias32":
        return hashed(outer * jnp.uint32(size) + inner + row_1, row_2)
    of_columns = hashed(outer + row_1, row_2)
    of_rows = hashed((inner ^ jnp.uint32(_GOLDEN)) + row_1, row_2 ^ jnp.uint32(_OTHER))
    return _mix_by_shifts(of_columns + of_rows)


def _index(shape: tuple[int, ...], cuts: Sequence, dims: Sequence[int]) -> jax.Array:
    """Returns the place of each element in the dims of that number, which are counted row by row;
    the others are of size 1.
    """
    index = jnp.zeros((1,) * len(shape), jnp.uint32)
    stride = 1
    for dim in reversed(dims):
        counter_shape = tuple(n if i == dim else 1 for i, n in enumerate(shape))
        # Counted over the whole dim, also where the mesh cuts it.
        cut = cuts[dim] if cuts else None
        layout = jax.P(*(None,) * dim, cut) if cut else None
        counter = jax.lax.broadcasted_iota(jnp.uint32, counter_shape, dim, out_sharding=layout)
        index = index + counter * jnp.uint32(stride)
        stride *= shape[dim]
    return index


def _lowbias32(
    row_1: jax.Array, row_2: jax.Array, shape: tuple[int, ...], cuts: Sequence
) -> jax.Array:
    return _but_the_last_step(_index(shape, cuts, range(1, len(shape))) + row_1, row_2)


def _shift_add(
    row_1: jax.Array, row_2: jax.Array, shape: tuple[int, ...], cuts: Sequence
) -> jax.Array:
    last = len(shape) - 1
    of_columns = hashed(_index(shape, cuts, range(1, last)) + row_1, row_2)
    place = _index(shape, cuts, [last]) ^ jnp.uint32(_GOLDEN)
    of_rows = hashed(place + row_1, row_2 ^ jnp.uint32(_OTHER))
    # Without the barrier XLA would compute both for every element.
    of_columns, of_rows = jax.lax.optimization_barrier((of_columns, of_rows))
    return _mix_by_shifts(of_columns + of_rows)


def _mix_by_shifts(x: jax.Array) -> jax.Array:
    x ^= x >> 15
    x += x << 7
    x ^= x >> 11
    x += x << 9
    x ^= x >> 13
    return x + (x << 5)


@dataclasses.dataclass(frozen=True)
class Hash:
    """A hash as functions: `steps` takes the key words of the rows, a shape and its cuts,
    `last_step` makes bits of what they return, and `at_least` tells from the latter whether those
    bits are at least a number. Where it `multiplies`, it does so for each element.
    """

    steps: Callable[[jax.Array, jax.Array, tuple[int, ...], Sequence], jax.Array]
    last_step: Callable[[jax.Array], jax.Array]
    at_least: Callable[[jax.Array, jax.Array], jax.Array]
    multiplies: bool


def _fold_in_half(x: jax.Array) -> jax.Array:
    return x ^ (x >> 16)


def _folded_at_least(x: jax.Array, lowest: jax.Array) -> jax.Array:
    # The upper half stays as it is. The lower one decides where the upper ones are equal, and there
    # that of `x` is that of `lowest`, a constant.
    return (x ^ (lowest >> 16)) >= lowest


HASHES: Mapping[str, Hash] = {
    "lowbias32": Hash(_lowbias32, _fold_in_half, _folded_at_least, multiplies=True),
    "shift_add": Hash(_shift_add, lambda x: x, lambda x, lowest: x >= lowest, multiplies=False),
}


# Where sums are faster: an integer multiplication is 24 operations on a v3, which has none.
_KINDS_THAT_ADD = ("TPU v2", "TPU v3", "TPU v4")


def hashed(x: jax.Array, key: jax.Array) -> jax.Array:
    """Returns the hash of each uint32 of `x`, with a key word between the multiplications."""
    return _fold_in_half(_but_the_last_step(x, key))


def _but_the_last_step(x: jax.Array, key: jax.Array) -> jax.Array:
    adds = device_kind() in _KINDS_THAT_ADD
    x ^= x >> 16
    x = times_multiplier_1(x) if adds else x * jnp.uint32(_MULTIPLIER_1)
    x ^= (x >> 15) ^ key
    return times_multiplier_2(x) if adds else x * jnp.uint32(_MULTIPLIER_2)


def times_multiplier_1(x: jax.Array) -> jax.Array:
    """Returns `x` times the first multiplier, modulo 2^32, by shifts and seven additions.

    The sums were found by a search: neither multiplier is a sum of four, nor this one of six in
    the forms that were tried.
    """
    a = x - (x << 20)
    a -= a << 10
    b = (x << 10) - x
    b += b << 3
    b = (b << 4) - x
    b += b << 2
    return b + (a << 1)


def times_multiplier_2(x: jax.Array) -> jax.Array:
    """Returns `x` times the second multiplier, modulo 2^32, by shifts and six additions."""
    a = (x << 11) - x
    a += x << 7
    b = a - (a << 10)
    b -= a << 4
    b += b << 16
    return b + (a << 2)


def keep_mask(key: DropoutKey, x: jax.Array, *, rate: float) -> jax.Array:
    """Returns true with probability 1 - `rate` for each element of `x`, laid out like it."""
    return HASHES[key.hash_name].at_least(_mixed(key, x.shape, spec_of(x)), threshold(rate))


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
    if HASHES[key.hash_name].multiplies and device_kind() in _KINDS_THAT_ADD:
        return _with_mask_kept(x, keep, rate)
    return _masked(x, keep, rate)


def _masked(x: jax.Array, keep: jax.Array, rate: float) -> jax.Array:
    # In float32: 1 / .9 in bfloat16 would be .16 % too small for all that is kept.
    scaled = (x.astype(jnp.float32) * (1 / (1 - rate))).astype(x.dtype)
    return jnp.where(keep, scaled, jnp.zeros((), x.dtype))


# Where bits cost most, the backward pass reads the mask, a byte an element. What the forward pass
# takes is before the barrier, so that the compiler writes the mask in passing.
@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _with_mask_kept(x: jax.Array, keep: jax.Array, rate: float) -> jax.Array:
    return _masked(x, keep, rate)


def _with_mask_kept_forward(x, keep, rate):
    return _masked(x, keep, rate), jax.lax.optimization_barrier(keep)


def _with_mask_kept_backward(rate, keep, gradient):
    return _masked(gradient, keep, rate), None


_with_mask_kept.defvjp(_with_mask_kept_forward, _with_mask_kept_backward)
