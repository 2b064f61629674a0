"""Lazily read offsets, compared with the array that they represent."""

import numpy as np
import pytest

from bert_jax.data.offsets import Offsets

RNG = np.random.default_rng(0)
SHARDS = [
    np.concatenate([[0], np.cumsum(RNG.integers(1, 9, size))]).astype(kind)
    for size, kind in ((5, np.uint16), (1, np.uint32), (40, np.uint32), (3, np.uint16))
]


def whole(shift: int = 0) -> np.ndarray:
    found = [shift]
    for shard in SHARDS:
        found += (found[-1] + np.diff(shard.astype(np.int64)).cumsum()).tolist()
    return np.array(found)


@pytest.mark.parametrize("shift", [0, 1000])
def test_offsets_are_an_array_of_all_shards(shift):
    offsets, array = Offsets(SHARDS).shifted(shift), whole(shift)
    assert offsets.size == len(offsets) == array.size
    assert np.array_equal(np.asarray(offsets), array) and np.asarray(offsets).dtype == np.int64
    assert np.array_equal(np.diff(offsets), np.diff(array))
    for index in range(-array.size, array.size):
        assert offsets[index] == array[index] and type(offsets[index]) is int
    for start in range(-3, array.size + 2):
        for stop in (None, -1, start, start + 1, start + 7, array.size, 1000):
            assert np.array_equal(offsets[start:stop], array[start:stop])
    for index in (array.size, -array.size - 1):
        with pytest.raises(IndexError):
            offsets[index]


def test_a_search_finds_the_first_offset_that_is_not_less():
    for shift in (0, 50):
        offsets, array = Offsets(SHARDS, shift=shift), whole(shift)
        for value in range(shift - 2, int(array[-1]) + 3):
            assert offsets.searchsorted(value) == array.searchsorted(value)


def test_joined_offsets_are_those_of_an_array_and_others():
    array = whole()
    joined = Offsets.join([Offsets(SHARDS), array])
    assert np.array_equal(joined[:], np.concatenate([array, array[-1] + array[1:]]))
