"""The mask beside loops over queries and keys."""

import jax
import numpy as np
import pytest

from bert_jax.model.mask import Mask

pytestmark = pytest.mark.core

_IDS = np.array([[1] * 6 + [2] * 4 + [0] * 2], np.int32)
_POSITIONS = np.array([[*range(6), *range(4), 0, 0]], np.int32)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("window", [None, 0, 2, 3, 4, 100])
def test_a_query_sees_its_sequence_within_the_window(window, is_causal):
    mask = Mask.of_rows(_IDS, _POSITIONS, window=window, is_causal=is_causal)
    read = np.array([[7, 0, 5]], np.int32)
    found, of_read = mask.allowed()[0], jax.jit(lambda mask: mask.at(read).allowed())(mask)[0]
    for query in range(12):
        for key in range(12):
            distance = int(_POSITIONS[0, key]) - int(_POSITIONS[0, query])
            sees = _IDS[0, query] == _IDS[0, key]
            sees &= window is None or abs(distance) <= window // 2
            sees &= not is_causal or distance <= 0
            assert found[query, key] == sees, (query, key)
    np.testing.assert_array_equal(of_read, found[read[0]])
