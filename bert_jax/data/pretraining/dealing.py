"""Which rows of a batch are of which source, as a function of the step alone.

The rows of a batch are cut into runs, one for each source. A source with a share of 3.2 rows of a
batch has 3 or 4 rows in each, and in all batches up to any step it has its share of their rows,
give or take less than one. (No order of three or more sources keeps within one row of the shares
in *every* run of batches; Tijdeman 1980, "The chairman assignment problem".)

All rows of a batch of pairs come from one source, because a model that looks for the own document
of a query learns to tell sources apart in a mixed batch (Nussbaum et al. 2024, arXiv:2402.01613).
Whole batches are then dealt in the same way: a source has its share of the batches up to any step,
give or take less than one.

Which source has one row more is a scheduling problem: tasks that need 0.2, 0.7, 0.1, ... of the
time are given processors step by step. PD2 solves it so that no task is ever a whole step ahead or
behind (Srinivasan and Anderson 2002, "Optimal rate-based scheduling on multiprocessors"). Shares
are taken as fractions, so that the solution repeats after a period, for which it is kept.
"""

from collections.abc import Sequence

import numpy as np

# Steps of the longest period. With 256 rows a share is rounded to a millionth of all rows then.
_LONGEST = 4096


class Dealing:
    """The rows of K sources in each batch of a phase."""

    def __init__(self, shares: Sequence[float], rows: int, *, one_source_per_batch: bool = False):
        """`shares` of the `rows` of a batch, in any unit; none is negative, and not all are 0."""
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
    """Returns in how many steps all sources have whole rows, or the longest period."""
    periods = np.arange(1, _LONGEST + 1)
    rows = periods[:, None] * portions
    (exact,) = np.nonzero((np.abs(rows - np.rint(rows)) < 1e-6).all(1))
    return int(periods[exact[0]]) if exact.size else _LONGEST


def _rounded(exact: np.ndarray) -> np.ndarray:
    """Returns whole numbers with the same sum, which is one: int64, less than 1 off each."""
    found = np.floor(exact).astype(np.int64)
    lacking = int(np.rint(exact.sum())) - int(found.sum())
    found[np.argsort(found - exact, kind="stable")[:lacking]] += 1
    return found


def _turns(part: np.ndarray, period: int) -> np.ndarray:
    """Returns how many turns each source has had before each step: int64 `[period + 1, K]`.

    Source i has `part[i]` turns in a period, at most one a step; all steps have as many turns. Its
    turn j must come from step floor(j * period / part) on, and before its deadline. Of those that
    may, the earliest deadlines come first. Of equal ones come first who may take the next turn
    in the step before the deadline, too; of these, who in such a row of turns has no freedom for
    longest.
    """
    turns = np.zeros((period + 1, part.size), np.int64)
    a_step = int(part.sum()) // period
    divisor, rest = np.maximum(part, 1), np.maximum(period - part, 1)
    never = period + 1
    for step in range(period if a_step else 0):
        next_turn = turns[step] + 1
        deadline = -(-next_turn * period // divisor)
        overlaps = next_turn * period % divisor != 0
        off = -(-deadline * rest // period)  # turns that it is off before the deadline
        free_again = -(-off * period // rest)
        free_again[2 * part < period] = 0
        is_due = (part > 0) & (turns[step] * period // divisor <= step)
        order = np.lexsort((-free_again, ~overlaps, np.where(is_due, deadline, never)))
        turns[step + 1] = turns[step]
        turns[step + 1, order[:a_step]] += 1
    return turns
