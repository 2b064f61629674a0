"""The dropout mask as a random generator, and as a function of global position alone."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import TrainConfig
from bert_jax.config.fields import choices_of, fields_of
from bert_jax.model import sharding
from bert_jax.model.dropout import (
    HASHES,
    DropoutKey,
    dropout,
    keep_mask,
    random_bits,
    threshold,
)

pytestmark = pytest.mark.core

# A correlation of n independent pairs has deviation 1/sqrt(n); of the few dozen tested here none
# should pass five deviations (p < 1e-6 each).
_DEVIATIONS = 5


@pytest.fixture(params=HASHES)
def key(request):
    def key(*, seed=7, step=3, rows=16) -> DropoutKey:
        return DropoutKey.create(
            seed=seed, step=jnp.int32(step), rows_B=jnp.arange(rows), hash_name=request.param
        )

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
    """Rows are told apart by two words, so one row's stream is not another's, moved."""
    bits = np.asarray(random_bits(key(rows=512), (512, 4096)))
    assert len(np.unique(bits[:, 0])) == 512
    # Were two rows the same stream at some shift, they would share thousands of values; by chance
    # 2 million draws of 2^32 share about 512.
    repeated = bits.size - len(np.unique(bits))
    expected = bits.size**2 / 2 / 2**32
    assert abs(repeated - expected) < _DEVIATIONS * np.sqrt(expected)


def test_mask_is_the_same_on_every_mesh(key):
    x = np.ones((16, 32, 64), np.float32)

    def masked(devices: int) -> np.ndarray:
        mesh = sharding.make_mesh(fsdp=devices, tensor=1, devices=jax.local_devices()[:devices])
        with jax.set_mesh(mesh):
            layout = sharding.batch_sharding(mesh)
            rows, values = jax.device_put((np.arange(16, dtype=np.uint32), x), layout)
            apply = jax.jit(
                lambda rows, x: dropout(
                    x, dataclasses.replace(key(seed=1, step=0), rows_B=rows), rate=0.1
                )
            )
            return np.asarray(apply(rows, values))

    single = masked(1)
    np.testing.assert_array_equal(single, masked(8))
    np.testing.assert_array_equal(single, masked(4))


def test_rate_and_scale(key):
    x = jnp.ones((16, 128, 256))
    dropped = np.asarray(dropout(x, key(), rate=0.1))
    assert set(np.unique(dropped)) == {0.0, np.float32(1 / 0.9)}
    n = dropped.size
    assert abs((dropped == 0).mean() - 0.1) < _DEVIATIONS * np.sqrt(0.09 / n)
    assert dropout(x, None, rate=0.1) is x
    # 1 / .9 is between two numbers of bfloat16; of many values it is right in the mean.
    wide = jnp.linspace(1, 2, x.size).reshape(x.shape).astype(jnp.bfloat16)
    narrow = np.asarray(dropout(wide, key(), rate=0.1), np.float64)
    kept = narrow != 0
    expected = np.asarray(wide, np.float64)[kept].mean() / 0.9
    assert narrow[kept].mean() == pytest.approx(expected, rel=2e-4)
    assert dropout(x, key(), rate=0.0) is x


def test_bits_do_not_change_between_versions(key):
    """A changed bit would change every resumed run: these are the first bits of a known key."""
    known = key(seed=1, step=2, rows=2).fold(3).fold(1)
    assert random_bits(known, (2, 3)).tolist() == GOLDEN_BITS[known.hash_name]


GOLDEN_BITS = {
    "lowbias32": [[1344774003, 1189350158, 2172768409], [79922115, 2276886322, 2186138888]],
    "shift_add": [[3988590145, 1102865151, 2504359540], [1306492956, 1421783307, 846669362]],
}


def test_shift_add_is_the_formula_in_python():
    """Elements of an array [B, H, L, S]; all numbers modulo 2^32."""
    key = DropoutKey.create(
        seed=5, step=jnp.int32(9), rows_B=jnp.arange(3) + 11, hash_name="shift_add"
    )
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


def test_rectangles_are_uncorrelated(key):
    """The corners of a rectangle: sums of a row's and a column's hash are alike there."""
    draws = uniform(key(), (16, 256, 256)) - 0.5
    for down, across in ((1, 1), (1, 128), (64, 3), (128, 128)):
        corners = draws[:, :-down, :-across] * draws[:, down:, :-across]
        corners = corners * draws[:, :-down, across:] * draws[:, down:, across:]
        deviation = (1 / 12) ** 2 / np.sqrt(corners.size)
        assert abs(corners.mean()) < _DEVIATIONS * deviation, (down, across)


def test_rows_and_columns_are_no_more_alike_than_chance_has_it(key):
    draws = uniform(key(), (16, 256, 256))
    for axis in (1, 2):
        z = (draws.mean(axis=axis) - 0.5) * np.sqrt(12 * 256)
        chi_square = np.sum(z**2)
        assert abs(chi_square - z.size) < _DEVIATIONS * np.sqrt(2 * z.size), axis


def test_the_config_knows_each_of_them():
    assert choices_of(fields_of(TrainConfig)["dropout_hash"].item) == (*HASHES,)


@pytest.mark.parametrize("kind", ["TPU v3", "TPU v5 lite"])
def test_a_chip_that_multiplies_no_integers_draws_the_same_bits(key, monkeypatch, kind):
    """A TPU v3 adds shifted numbers up where others multiply."""
    expected = np.asarray(random_bits(key(), (16, 5, 96)))
    monkeypatch.setattr("bert_jax.model.dropout.device_kind", lambda: kind)
    drawn = jax.jit(lambda: random_bits(key(), (16, 5, 96)))
    np.testing.assert_array_equal(drawn(), expected)
    # Only the key words, of which a row has two, are multiplied there.
    wide = [line for line in drawn.lower().as_text().splitlines() if "multiply" in line]
    assert any("16x5x96" in line for line in wide) == (
        kind != "TPU v3" and key().hash_name == "lowbias32"
    )


@pytest.mark.parametrize("rate", [0.1, 0.5, 2**-15, 0.999])
def test_a_mask_is_that_of_the_bits(key, rate):
    """Some of the 4,194,304 bits agree with the threshold in their upper half."""
    x = jnp.ones((16, 256, 1024))
    bits, mask = random_bits(key(), x.shape), keep_mask(key(), x, rate=rate)
    assert int((bits >> 16 == threshold(rate) >> 16).sum()) > 10
    np.testing.assert_array_equal(mask, bits >= threshold(rate))


@pytest.mark.parametrize("name", HASHES)
@pytest.mark.parametrize("lowest", [0, 1, 0x1999999A, 0x80000000, 0xFFFF0000, 2**32 - 1])
def test_the_last_step_of_a_hash_may_be_left_out_of_a_comparison(name, lowest):
    """All lower halves beside the upper one of the number, and beside those next to it."""
    upper = (lowest >> 16) + np.arange(-1, 2)[:, None]
    x = ((upper % 2**16) << 16 | np.arange(2**16)).astype(np.uint32)
    kind, lowest = HASHES[name], np.uint32(lowest)
    np.testing.assert_array_equal(kind.at_least(x, lowest), kind.last_step(x) >= lowest)


@pytest.mark.parametrize("kind", ["TPU v3", "TPU v5 lite"])
def test_a_mask_that_the_backward_pass_reads_is_the_one_that_it_would_draw(key, monkeypatch, kind):
    x = jax.random.normal(jax.random.key(0), (16, 5, 96)).astype(jnp.bfloat16)
    expected, derivative = jax.vjp(lambda x: dropout(x, key(), rate=0.1), x)
    monkeypatch.setattr("bert_jax.model.dropout.device_kind", lambda: kind)
    both = jax.jit(lambda x: jax.vjp(lambda x: dropout(x, key(), rate=0.1), x))
    found, other = both(x)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(jax.jit(other)(x)[0], derivative(x)[0])
    # It is kept, and not drawn again, where bits cost most.
    kept = re.search("optimization_barrier.*xi1>", both.lower(x).as_text())
    assert bool(kept) == (kind == "TPU v3" and key().hash_name == "lowbias32")
