"""The rows of each source: within one row of its share, in each batch and in total."""

from fractions import Fraction

import numpy as np
import pytest

from bert_jax.data.pretraining import dealing
from bert_jax.data.pretraining.dealing import Dealing


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealing, "_LONGEST", 512)


def uneven(sources: int, seed: int) -> list[float]:
    return np.random.default_rng(seed).dirichlet(np.full(sources, 0.5)).tolist()


@pytest.mark.parametrize("rows", [1, 7, 256])
@pytest.mark.parametrize("sources", [2, 3, 5, 17, 200])
def test_each_batch_and_the_total_keep_the_shares(sources: int, rows: int):
    shares = uneven(sources, seed=rows)
    made = Dealing(shares, rows)
    steps = np.arange(1301)  # more than two periods
    before = made.before(steps)
    each = np.diff(before, axis=0)
    assert (each >= 0).all() and (each.sum(1) == rows).all() and not before[0].any()
    # Shares are rounded to a whole row in this many steps.
    period = rows * dealing._LONGEST
    rounded = made.before(np.array([dealing._LONGEST]))[0] / period
    assert np.abs(rounded - shares).max() < 1 / period
    exact = rounded * rows
    assert np.abs(each - exact).max() < 1
    assert np.abs(before - steps[:, None] * exact).max() < 1


@pytest.mark.parametrize("shares", [(7, 2, 1), (0.7, 0.2, 0.1), (1,) * 200, (3, 0, 1)])
def test_simple_shares_stay_exact(shares: tuple[float, ...]):
    made, rows = Dealing(shares, 256), 256
    for step in (1, 999, 10**6):
        found = made.before(np.array([step]))[0]
        for count, share in zip(found.tolist(), shares, strict=True):
            part = Fraction(str(share)) / sum(Fraction(str(each)) for each in shares)
            assert abs(count - step * rows * part) < 1


def test_a_step_does_not_need_earlier_steps():
    shares, steps = uneven(9, seed=4), np.array([7, 10**9, 3, 512, 511])
    whole = Dealing(shares, 32).before(steps)
    for step, expected in zip(steps, whole, strict=True):
        assert np.array_equal(Dealing(shares, 32).before(np.array([step]))[0], expected)
