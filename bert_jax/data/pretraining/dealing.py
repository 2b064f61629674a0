"""Assigns the rows of each batch to sources, as a function of the step only.

The rows of a batch are divided into runs, one for each source. A source with a share of 3.2 rows
per batch has 3 or 4 rows in each batch. Over all batches up to any step, its number of rows differs
from its share by less than one. (With three or more sources, no order stays within one row of the
shares in *every* run of batches; Tijdeman 1980, "The chairman assignment problem".)

All rows of a batch of pairs come from one source, because in a mixed batch a model learns to tell
sources apart (Nussbaum et al. 2024, arXiv:2402.01613). Whole batches are then assigned in the same
way: the number of batches of a source differs from its share by less than one.

Which sources get the extra rows is a scheduling problem: tasks that need 0.2, 0.7, 0.1, ... of the
time are assigned to processors step by step. The scheduler PD2 keeps every task less than one step
ahead or behind (Srinivasan and Anderson 2002, "Optimal rate-based scheduling on multiprocessors").
Shares are rounded to fractions, so that the assignment repeats after a period, which is cached.
"""

from collections.abc import Sequence

import numpy as np

# Steps of the longest period. With 256 rows, shares are rounded to a millionth of all rows.
_LONGEST = 4096


class Dealing:
    """The rows of K sources in each batch of a phase."""

    def __init__(self, shares: Sequence[float], rows: int, *, one_source_per_batch: bool = False):
        """`shares` of the `rows` of a batch, in any unit; non-negative, and not all 0."""
        self._at_once = rows if one_source_per_batch else 1
        portions = np.array(shares, np.float64) / sum(shares) * (rows // self._at_once)
        self._period = _period(portions)
        whole, part = np.divmod(_rounded(portions * self._period), self._period)
        steps = np.arange(self._period + 1)[:, None]
        self._before = steps * whole + _turns(part, self._period)

    def before(self, steps: np.ndarray) -> np.ndarray:
        """Returns how many rows each source has in the batches before each of the steps, which
        count from the beginning of the phase: int64 `[steps, K]`.
        """
        periods, steps = np.divmod(steps, self._period)
        return (periods[:, None] * self._before[-1] + self._before[steps]) * self._at_once


def _period(portions: np.ndarray) -> int:
    """Returns after how many steps all sources have whole rows, at most the longest period."""
    periods = np.arange(1, _LONGEST + 1)
    rows = periods[:, None] * portions
    (exact,) = np.nonzero((np.abs(rows - np.rint(rows)) < 1e-6).all(1))
    return int(periods[exact[0]]) if exact.size else _LONGEST


def _rounded(exact: np.ndarray) -> np.ndarray:
    """Rounds to int64 values with the same sum, an integer; each changes by less than 1."""
    found = np.floor(exact).astype(np.int64)
    lacking = int(np.rint(exact.sum())) - int(found.sum())
    found[np.argsort(found - exact, kind="stable")[:lacking]] += 1
    return found


def _turns(part: np.ndarray, period: int) -> np.ndarray:
    """Returns how many turns each source has had before each step: int64 `[period + 1, K]`.

    Source i has `part[i]` turns in a period, at most one per step; all steps have the same number
    of turns. Its turn j must be at step floor(j * period / part) or later, and before its deadline.
    Among the eligible sources the earliest deadline comes first. Ties are broken in favor of
    sources that may also take their next turn in the step before the deadline, and among these in
    favor of the source with the longest such sequence of turns without slack.
    """
    turns = np.zeros((period + 1, part.size), np.int64)
    a_step = int(part.sum()) // period
    divisor, rest = np.maximum(part, 1), np.maximum(period - part, 1)
    never = period + 1
    for step in range(period if a_step else 0):
        next_turn = turns[step] + 1
        deadline = -(-next_turn * period // divisor)
        overlaps = next_turn * period % divisor != 0
        off = -(-deadline * rest // period)  # turns that it skips before the deadline
        free_again = -(-off * period // rest)
        free_again[2 * part < period] = 0
        is_due = (part > 0) & (turns[step] * period // divisor <= step)
        order = np.lexsort((-free_again, ~overlaps, np.where(is_due, deadline, never)))
        turns[step + 1] = turns[step]
        turns[step + 1, order[:a_step]] += 1
    return turns
