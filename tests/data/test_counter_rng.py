"""The random numbers of batches: correct, uniform, and reproducible."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.data import counter_rng

# Tolerated standard deviations. At 4.5, one correct statistic in 150,000 would fail.
Z = 4.5


def chi_square_limit(freedom: int) -> float:
    """The value that chi-square exceeds as rarely as a normal exceeds Z (Wilson and Hilferty)."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + Z * math.sqrt(spread)) ** 3


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


def test_golden_values():
    """A change here changes every batch of every run: it needs a new corpus format version."""
    # The first outputs of SplitMix64 seeded with 0, as published by its authors.
    assert counter_rng.bits(0, np.arange(3)).tolist() == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]
    assert counter_rng.bits(12345, 7, np.array([0, 1, 2**40])).tolist() == [
        0xFF47FB0DBAC550BA,
        0x055D99B4D66DCC46,
        0x7FBAC5A9CEFE2769,
    ]
    assert counter_rng.derive(-1, 2, 3) == 0x12A9DFCC7AE54E86
    assert counter_rng.permute(np.arange(10), 10, 0).tolist() == [5, 4, 6, 0, 7, 2, 3, 9, 1, 8]
    assert counter_rng.permute(np.array([0, 1, 10**12 - 1]), 10**12, 42).tolist() == [
        628067682202,
        720787034982,
        44555556895,
    ]
    tosses = counter_rng.binomial_half(
        np.array([0, 1, 63, 64, 65, 1000]), counter_rng.bits(5, np.arange(6))
    )
    assert tosses.tolist() == [0, 0, 29, 28, 32, 508]
    assert counter_rng.randint(counter_rng.bits(3, np.arange(4)), 1000).tolist() == [
        113,
        700,
        612,
        72,
    ]


def test_bits_of_arrays_are_bits_of_their_elements():
    many = counter_rng.bits(counter_rng.bits(7, np.arange(4))[:, None], np.arange(5), 9)
    assert many.shape == (4, 5)
    assert many[2, 3] == counter_rng.derive(7, 2, 3, 9)
    assert np.unique(many).size == many.size


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32))
def test_below_is_the_high_word_of_the_product(value: int, bound: int):
    assert counter_rng.randint(np.array([value], np.uint64), bound)[0] == value * bound >> 64


def test_unit_is_uniform():
    values = counter_rng.uniform(counter_rng.bits(3, np.arange(100_000)))
    assert values.min() >= 0 and values.max() < 1
    counts = np.histogram(values, 100, (0, 1))[0]
    assert chi_square(counts) < chi_square_limit(99)
    assert counter_rng.uniform(np.array([2**64 - 1], np.uint64))[0] < 1


def test_heads_counts_the_coins_of_the_stream():
    count = np.array([0, 1, 2, 63, 64, 65, 127, 128, 129, 1000] * 20)
    keys = counter_rng.bits(4, np.arange(count.size))
    for n, key, total in zip(count, keys, counter_rng.binomial_half(count, keys), strict=True):
        coins = [counter_rng.derive(int(key), k // 64) >> (k % 64) & 1 for k in range(n)]
        assert total == sum(coins)


@pytest.mark.parametrize("size", [*range(1, 40), 99, 100, 101, 1023, 1024, 1025, 65537, 300_007])
def test_permutation_is_one_to_one(size: int):
    image = counter_rng.permute(np.arange(size), size, size)
    assert np.array_equal(np.sort(image), np.arange(size))


@given(st.integers(1, 2**40), st.integers(0, 2**64 - 1))
def test_permutation_stays_inside_and_apart(size: int, key: int):
    index = np.unique(np.linspace(0, size - 1, 50).astype(np.int64))
    image = counter_rng.permute(index, size, key)
    assert image.min() >= 0 and image.max() < size
    assert np.unique(image).size == index.size


@pytest.mark.parametrize("size", [5, 12, 30])
def test_permutation_is_uniform(size: int):
    keys = 300 * size
    images = np.array([counter_rng.permute(np.arange(size), size, key) for key in range(keys)])
    for index in range(size):
        counts = np.bincount(images[:, index], minlength=size)
        assert chi_square(counts) < chi_square_limit(size - 1)


def test_permutation_separates_neighbors():
    """The mean distance between the images of neighbors is that of any two images: a third."""
    size = 100_000
    image = counter_rng.permute(np.arange(size), size, 6)
    step = np.abs(np.diff(image)) / size
    # |x - y| of two uniform draws has mean 1/3 and variance 1/18; neighboring steps share a draw,
    # which at most triples the variance of their mean.
    assert abs(step.mean() - 1 / 3) < Z * math.sqrt(3 / 18 / size)
    assert abs(np.corrcoef(np.arange(size), image)[0, 1]) < Z / math.sqrt(size)
