"""The dropout mask as a random generator, and as a function of global position alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model import sharding
from bert_jax.model.dropout import DropoutKey, dropout, random_bits

pytestmark = pytest.mark.core

# A correlation of n independent pairs has deviation 1/sqrt(n); of the few dozen tested here none
# should pass five deviations (p < 1e-6 each).
_DEVIATIONS = 5


def key(*, seed=7, step=3, rows=16) -> DropoutKey:
    return DropoutKey.create(seed=seed, step=jnp.int32(step), rows_B=jnp.arange(rows))


def uniform(key: DropoutKey, shape) -> np.ndarray:
    return np.asarray(random_bits(key, shape)).astype(np.float64) / 2**32


def assert_uncorrelated(a: np.ndarray, b: np.ndarray) -> None:
    correlation = np.corrcoef(a.ravel(), b.ravel())[0, 1]
    assert abs(correlation) < _DEVIATIONS / np.sqrt(a.size)


def test_bits_are_uniform():
    draws = uniform(key(), (16, 64, 256))
    n = draws.size
    assert abs(draws.mean() - 0.5) < _DEVIATIONS * np.sqrt(1 / 12 / n)
    # The variance of a squared deviation of a uniform variable is 1/180.
    assert abs(draws.var() - 1 / 12) < _DEVIATIONS * np.sqrt(1 / 180 / n)
    counts = np.histogram(draws, bins=1024, range=(0, 1))[0]
    chi_square = np.sum((counts - n / 1024) ** 2) / (n / 1024)
    assert abs(chi_square - 1023) < _DEVIATIONS * np.sqrt(2 * 1023)
    for bit in range(32):
        ones = (np.asarray(random_bits(key(), (16, 64, 256))) >> bit & 1).mean()
        assert abs(ones - 0.5) < _DEVIATIONS * 0.5 / np.sqrt(n), bit


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("distance", [1, 2, 8])
def test_neighbours_are_uncorrelated(axis, distance):
    draws = uniform(key(), (16, 64, 256))
    near = np.take(draws, range(draws.shape[axis] - distance), axis=axis)
    far = np.take(draws, range(distance, draws.shape[axis]), axis=axis)
    assert_uncorrelated(near, far)


def test_steps_layers_sites_and_seeds_are_uncorrelated():
    shape = (16, 64, 256)
    base = uniform(key().fold(0).fold(0), shape)
    others = [
        key(step=4).fold(0).fold(0),
        key(seed=8).fold(0).fold(0),
        key(seed=7 + 2**32).fold(0).fold(0),
        key().fold(1).fold(0),
        key().fold(0).fold(1),
        key().fold(2**31).fold(0),
    ]
    for other in others:
        assert_uncorrelated(base, uniform(other, shape))
    assert_uncorrelated(uniform(others[3], shape), uniform(others[4], shape))


def test_no_row_repeats_another_shifted():
    """Rows are told apart by two words, so one row's stream is not another's, moved."""
    bits = np.asarray(random_bits(key(rows=512), (512, 4096)))
    assert len(np.unique(bits[:, 0])) == 512
    # Were two rows the same stream at some shift, they would share thousands of values; by chance
    # 2 million draws of 2^32 share about 512.
    repeated = bits.size - len(np.unique(bits))
    expected = bits.size**2 / 2 / 2**32
    assert abs(repeated - expected) < _DEVIATIONS * np.sqrt(expected)


def test_mask_is_the_same_on_every_mesh():
    x = np.ones((16, 32, 64), np.float32)

    def masked(devices: int) -> np.ndarray:
        mesh = sharding.make_mesh(fsdp=devices, tensor=1, devices=jax.local_devices()[:devices])
        with jax.set_mesh(mesh):
            layout = sharding.batch_sharding(mesh)
            rows, values = jax.device_put((np.arange(16, dtype=np.uint32), x), layout)
            apply = jax.jit(
                lambda rows, x: dropout(
                    x, DropoutKey.create(seed=1, step=jnp.int32(0), rows_B=rows), rate=0.1
                )
            )
            return np.asarray(apply(rows, values))

    single = masked(1)
    np.testing.assert_array_equal(single, masked(8))
    np.testing.assert_array_equal(single, masked(4))


def test_rate_and_scale():
    x = jnp.ones((16, 128, 256))
    dropped = np.asarray(dropout(x, key(), rate=0.1))
    assert set(np.unique(dropped)) == {0.0, np.float32(1 / 0.9)}
    n = dropped.size
    assert abs((dropped == 0).mean() - 0.1) < _DEVIATIONS * np.sqrt(0.09 / n)
    assert dropout(x, None, rate=0.1) is x
    assert dropout(x, key(), rate=0.0) is x


def test_bits_do_not_change_between_versions():
    """A changed bit would change every resumed run: these are the first bits of a known key."""
    bits = np.asarray(random_bits(key(seed=1, step=2, rows=2).fold(3).fold(1), (2, 3)))
    assert bits.tolist() == GOLDEN_BITS


GOLDEN_BITS = [[1344774003, 1189350158, 2172768409], [79922115, 2276886322, 2186138888]]
