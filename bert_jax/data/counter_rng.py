"""Stateless random numbers: the same key and counters always give the same bits.

All randomness in a batch comes from this module, so that any host can make example 10,000,000
without making the examples before it, in any order. NumPy's generators are not used: they are
sequential, and the streams behind `Generator` methods may change between NumPy versions.

The hash is the finalizer of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom
number generators", with Stafford's variant 13 constants), applied once for each counter. For a
fixed key it is a bijection of its last counter, so two positions of a row never tie.
"""

import functools
import math

import numpy as np

_GAMMA = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, odd: SplitMix64's increment
_WORD = 2**64 - 1
_ROUNDS = 6  # of the permutation; four are known to suffice, two are a margin


def bits(key: int | np.ndarray, *counters: int | np.ndarray) -> np.ndarray:
    """Returns 64 random bits for each element of the broadcast of `key` and `counters`, as uint64.

    `key` is an integer or an array of earlier `bits`; counters are integers or integer arrays. The
    result has at least one dimension.
    """
    state = key if isinstance(key, np.ndarray) else np.array([key & _WORD], np.uint64)
    for counter in counters:
        if isinstance(counter, np.ndarray):
            step = counter.astype(np.uint64)
            step *= np.uint64(_GAMMA)
            step += np.uint64(_GAMMA)
        else:
            step = np.array([(counter + 1) * _GAMMA & _WORD], np.uint64)
        state = _mix(state + step)
    return state


@functools.lru_cache(maxsize=4096)  # every batch uses the same few keys
def derive(key: int, *counters: int) -> int:
    """Returns a separate key for each tuple of counters."""
    return int(bits(key, *counters)[0])


def uniform(random_bits: np.ndarray) -> np.ndarray:
    """Returns uniform float64 in [0, 1), on a grid of 2**-53.

    `uniform(bits) < p` is true with probability p.
    """
    return (random_bits >> np.uint64(11)) * 2.0**-53


def randint(random_bits: np.ndarray, bound: int | np.ndarray) -> np.ndarray:
    """Returns uniform int64 in [0, bound), for `bound` up to 2**32; 0 where the bound is 0.

    The high word of the 128-bit product, so the bias of any value is at most bound / 2**64.
    """
    bound = np.asarray(bound).astype(np.uint64)
    high = (random_bits >> np.uint64(32)) * bound
    low = (random_bits & np.uint64(2**32 - 1)) * bound
    return ((high + (low >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)


def binomial_half(count: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Returns the number of heads of `count` fair coins, one draw per key: Binomial(count, 1/2).
    Coin k is bit k % 64 of word k // 64 of the key's stream.
    """
    kept = np.minimum(count, 64).astype(np.uint64)
    # A shift by 64 is undefined in C, so the empty mask is made separately.
    mask = np.where(kept > 0, np.uint64(_WORD) >> (np.uint64(64) - np.maximum(kept, 1)), 0)
    total = np.bitwise_count(bits(keys, 0) & mask.astype(np.uint64)).astype(np.int64)
    (long,) = np.nonzero(count > 64)
    if long.size:
        words = (count[long] - 1) // 64  # beyond the first
        which = np.repeat(np.arange(long.size), words)
        word = np.arange(which.size) - np.repeat(np.cumsum(words) - words, words) + 1
        kept = np.minimum(count[long][which] - 64 * word, 64).astype(np.uint64)
        stream = bits(keys[long][which], word) & (np.uint64(_WORD) >> (np.uint64(64) - kept))
        total[long] += np.bincount(which, np.bitwise_count(stream)).astype(np.int64)
    return total


def permute(index: np.ndarray, size: int, key: int) -> np.ndarray:
    """Returns the images of `index` (int64, in [0, size)) under the key's permutation of [0, size).

    A Feistel network over the two digits of the index in a mixed base rows x columns, where
    rows * columns exceeds `size` by less than `rows`. The few images beyond `size` are permuted
    again until they fall inside ("cycle walking"), so the mapping stays one-to-one.
    """
    rows = math.isqrt(size - 1) + 1
    columns = -(-size // rows)
    image = _feistel(index.astype(np.uint64), rows, columns, key)
    (outside,) = np.nonzero(image >= size)
    while outside.size:
        image[outside] = _feistel(image[outside], rows, columns, key)
        outside = outside[image[outside] >= size]
    return image.astype(np.int64)


def _feistel(index: np.ndarray, rows: int, columns: int, key: int) -> np.ndarray:
    row, column = np.divmod(index, np.uint64(columns))
    for turn in range(0, _ROUNDS, 2):
        # A quarter of the range, so that adding a digit below 2**32 cannot overflow.
        mixed = bits(key, column * np.uint64(_ROUNDS) + np.uint64(turn)) >> np.uint64(2)
        row = (row + mixed) % np.uint64(rows)
        mixed = bits(key, row * np.uint64(_ROUNDS) + np.uint64(turn + 1)) >> np.uint64(2)
        column = (column + mixed) % np.uint64(columns)
    return row * np.uint64(columns) + column


def _mix(state: np.ndarray) -> np.ndarray:
    """Applies SplitMix64's finalizer, in place."""
    shifted = state >> np.uint64(30)
    state ^= shifted
    state *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(state, np.uint64(27), out=shifted)
    state ^= shifted
    state *= np.uint64(0x94D049BB133111EB)
    np.right_shift(state, np.uint64(31), out=shifted)
    state ^= shifted
    return state
