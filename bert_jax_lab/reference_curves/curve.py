"""Loss curves, the band that several curves span, and the forecast of a curve from its past."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# The steps at which seeds leave the plateau of the unigram entropy differ by a fifth or more: a
# band contains the losses of its curves from step / SHIFT to step * SHIFT.
SHIFT = 1.25
# In addition, seeds differ by this many nats, because they draw the same documents differently.
MARGIN = 0.15
# The factor of the margin for a single curve.
_SINGLE_CURVE = 2.0
# A mean over fewer rows is too noisy, since each row has the loss of one batch.
_LEAST_ROWS = 5
# The fewest points for a forecast.
LEAST_POINTS = 5
# The error of a forecast, in standard deviations of its fit; at least MARGIN.
_ERRORS = 4.0
_BETAS = np.geomspace(0.05, 2.0, 40)

Point = tuple[int, float, float]


@dataclass(frozen=True)
class Curve:
    """Losses in nats at increasing steps."""

    steps: tuple[int, ...]
    losses: tuple[float, ...]


def window(total_steps: int) -> int:
    """Returns the number of steps over which a training loss is averaged: a fiftieth of the run."""
    return max(20, total_steps // 50)


def validation(rows: Iterable[Mapping[str, Any]]) -> Curve:
    """Returns the validation curve in the rows of a metrics.jsonl, without step 0."""
    found = [
        (row["step"], row["mlm_loss"])
        for row in rows
        if row.get("split") == "validation" and row.get("mlm_loss") is not None and row["step"]
    ]
    return Curve(tuple(step for step, _ in found), tuple(loss for _, loss in found))


def training(rows: Iterable[Mapping[str, Any]], total_steps: int) -> Curve:
    """Returns the training curve in the rows of a metrics.jsonl: the mean over the window that ends
    at each point. Points with too few rows in the window are omitted.
    """
    found = [
        (row["step"], row["mlm_loss"])
        for row in rows
        if row.get("split") is None and row.get("mlm_loss") is not None
    ]
    size = window(total_steps)
    every = max(1, total_steps // 100)
    steps, losses = np.array([s for s, _ in found]), np.array([loss for _, loss in found])
    points = []
    for step in range(size, total_steps + 1, every):
        within = losses[(steps > step - size) & (steps <= step)] if len(steps) else losses
        if len(within) >= _LEAST_ROWS:
            points.append((step, float(np.mean(within))))
    return Curve(tuple(step for step, _ in points), tuple(loss for _, loss in points))


def band(
    curves: Sequence[Curve], steps: Sequence[int], *, shift: float = SHIFT, above: float = MARGIN
) -> list[Point]:
    """Returns the expected range of the loss at each of the steps, as `(step, low, high)`; omits
    steps outside all curves.

    A run may be faster or slower than the curves by a factor of `shift`, and `above` nats higher.
    """
    found = []
    room = _SINGLE_CURVE if len(curves) == 1 else 1.0
    for step in steps:
        values = [value for curve in curves for value in _around(curve, step, shift)]
        if values:
            found.append((step, min(values) - room * MARGIN, max(values) + room * above))
    return found


def _around(curve: Curve, step: int, shift: float) -> list[float]:
    """Returns the losses of a curve from step / shift to step * shift, inclusive."""
    # A larger shift needs points that are earlier by the same factor.
    first = step * SHIFT / shift
    if not curve.steps or first < curve.steps[0] or step > curve.steps[-1]:
        return []
    ends = (step / shift, step * shift)
    within = [
        loss for at, loss in zip(curve.steps, curve.losses, strict=True) if ends[0] <= at <= ends[1]
    ]
    return [*np.interp(ends, curve.steps, curve.losses).tolist(), *within]


def highest_expected(curve: Curve, step: int) -> float:
    """Returns the highest loss to expect at a step after a curve, by the scaling law L(s) = E + B
    s^-beta fitted to its past; infinity for a curve with fewer than `LEAST_POINTS` points.

    Losses have this form as a function of tokens for a fixed model size (Hoffmann et al. 2022,
    section 3). E and B are fitted by least squares for each of a grid of exponents, and are at
    least zero. A schedule that lowers the learning rate makes a run better than the forecast, so
    that only losses above it are unexpected.
    """
    if len(curve.steps) < LEAST_POINTS:
        return float("inf")
    at, losses = np.array(curve.steps, float), np.array(curve.losses)
    # The past is convex except for a plateau or a warm-up at its beginning: fit the latter half.
    half = slice(max(0, len(at) - max(LEAST_POINTS, len(at) // 2)), None)
    at, losses = at[half], losses[half]
    fits = []
    for beta in _BETAS:
        falling = at**-beta
        slope = max(float(np.cov(falling, losses, bias=True)[0, 1] / np.var(falling)), 0.0)
        floor = max(float(np.mean(losses) - slope * np.mean(falling)), 0.0)
        error = float(np.sqrt(np.mean((floor + slope * falling - losses) ** 2)))
        fits.append((error, floor + slope * float(step) ** -beta))
    error, expected = min(fits)
    # A loss that stops falling is not unexpected.
    return max(expected, float(losses[-1])) + max(MARGIN, _ERRORS * error)
