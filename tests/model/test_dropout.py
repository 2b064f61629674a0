"""The dropout mask as a random generator, and as a function of global position only."""

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model.dropout import DropoutKey, dropout, random_bits

pytestmark = pytest.mark.core

# A correlation of n independent pairs has a deviation of 1/sqrt(n). A few dozen are tested here;
# none should exceed five deviations (p < 1e-6 each).
_DEVIATIONS = 5


def _draw_as(kind: str, monkeypatch) -> None:
    monkeypatch.setattr("bert_jax.model.dropout.device_kind", lambda: kind)


# One chip per hash: `lowbias32` and `shift_add`.
@pytest.fixture(params=["cpu", "TPU v3"])
def key(request, monkeypatch):
    _draw_as(request.param, monkeypatch)

    def key(*, seed=7, step=3, rows=16) -> DropoutKey:
        return DropoutKey.create(seed=seed, step=jnp.int32(step), rows_B=jnp.arange(rows))

    return key


def uniform(key: DropoutKey, shape) -> np.ndarray:
    return np.asarray(random_bits(key, shape)).astype(np.float64) / 2**32


def assert_uncorrelated(a: np.ndarray, b: np.ndarray) -> None:
    correlation = np.corrcoef(a.ravel(), b.ravel())[0, 1]
    assert abs(correlation) < _DEVIATIONS / np.sqrt(a.size)


def test_bits_are_uniform(key):
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
def test_neighbours_are_uncorrelated(key, axis, distance):
    draws = uniform(key(), (16, 64, 256))
    near = np.take(draws, range(draws.shape[axis] - distance), axis=axis)
    far = np.take(draws, range(distance, draws.shape[axis]), axis=axis)
    assert_uncorrelated(near, far)


def test_steps_layers_sites_and_seeds_are_uncorrelated(key):
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


def test_no_row_repeats_another_shifted(key):
    """Two words identify a row, so no row has the shifted stream of another."""
    bits = np.asarray(random_bits(key(rows=256), (256, 2048)))
    assert len(np.unique(bits[:, 0])) == 256
    # Two shifted copies of one stream would share thousands of values; by chance half a million
    # draws from 2^32 share about 32.
    repeated = bits.size - len(np.unique(bits))
    expected = bits.size**2 / 2 / 2**32
    assert abs(repeated - expected) < _DEVIATIONS * np.sqrt(expected)


def test_rate_and_scale(key):
    x = jnp.ones((16, 128, 256))
    dropped = np.asarray(dropout(x, key(), rate=0.1))
    assert set(np.unique(dropped)) == {0.0, np.float32(1 / 0.9)}
    n = dropped.size
    assert abs((dropped == 0).mean() - 0.1) < _DEVIATIONS * np.sqrt(0.09 / n)
    assert dropout(x, None, rate=0.1) is x
    # 1 / 0.9 is between two numbers of bfloat16; the mean of many values is right.
    wide = jnp.linspace(1, 2, x.size).reshape(x.shape).astype(jnp.bfloat16)
    narrow = np.asarray(dropout(wide, key(), rate=0.1), np.float64)
    kept = narrow != 0
    expected = np.asarray(wide, np.float64)[kept].mean() / 0.9
    assert narrow[kept].mean() == pytest.approx(expected, rel=2e-4)
    assert dropout(x, key(), rate=0.0) is x


@pytest.mark.parametrize(
    ("kind", "bits"),
    [
        ("cpu", [[1344774003, 1189350158, 2172768409], [79922115, 2276886322, 2186138888]]),
        ("TPU v3", [[3988590145, 1102865151, 2504359540], [1306492956, 1421783307, 846669362]]),
    ],
)
def test_bits_do_not_change_between_versions(kind, bits, monkeypatch):
    """A changed bit would change every resumed run: these are the first bits of a known key."""
    _draw_as(kind, monkeypatch)
    key = DropoutKey.create(seed=1, step=jnp.int32(2), rows_B=jnp.arange(2)).fold(3).fold(1)
    assert random_bits(key, (2, 3)).tolist() == bits


def test_shift_add_is_the_formula_in_python(monkeypatch):
    """Elements of an array [B, H, L, S]; all numbers modulo 2^32."""
    _draw_as("TPU v3", monkeypatch)
    key = DropoutKey.create(seed=5, step=jnp.int32(9), rows_B=jnp.arange(3) + 11)
    bits = np.asarray(random_bits(key, (3, 4, 5, 6)))

    def mixed(x: int, word: int = 0) -> int:
        x = (x ^ x >> 16) * 0x7FEB352D % 2**32
        x = (x ^ x >> 15 ^ word) * 0x846CA68B % 2**32
        return x ^ x >> 16

    for b, h, i, j in ((0, 0, 0, 0), (2, 3, 4, 5), (1, 2, 0, 3)):
        row_1 = mixed(b + 11 ^ int(key.word_1))
        row_2 = mixed((b + 11 + int(key.word_2)) % 2**32)
        x = mixed((h * 5 + i + row_1) % 2**32, row_2)
        x += mixed(((j ^ 0x9E3779B9) + row_1) % 2**32, row_2 ^ 0x5BD1E995)
        for right, left in ((15, 7), (11, 9), (13, 5)):
            x %= 2**32
            x ^= x >> right
            x += x << left
        assert bits[b, h, i, j] == x % 2**32
