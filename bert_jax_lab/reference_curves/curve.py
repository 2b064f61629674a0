"""Curves of losses, the band in which several of them lie, and where one goes on to."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# Runs of one kind leave the plateau of word frequencies at moments that differ by a fifth and more:
# a band holds what its curves have from step / SHIFT to step * SHIFT.
SHIFT = 1.25
# And by so many nats they differ beside it: other draws of the same documents.
MARGIN = 0.15
# Times as many where there is one curve alone.
_SINGLE_CURVE = 2.0
# A mean over fewer rows of training says little: each is the loss of one batch.
_LEAST_ROWS = 5
# Fewer points decide nothing about how a curve goes on.
LEAST_POINTS = 5
# The forecast may be wrong by so many times what the fit left over, and by MARGIN in any case.
_ERRORS = 4.0
_BETAS = np.geomspace(0.05, 2.0, 40)

Point = tuple[int, float, float]


@dataclass(frozen=True)
class Curve:
    """Losses in nats over steps, which grow."""

    steps: tuple[int, ...]
    losses: tuple[float, ...]


def window(total_steps: int) -> int:
    """Returns over how many steps a loss of training is averaged: a fiftieth of the run."""
    return max(20, total_steps // 50)


def held_out(rows: Iterable[Mapping[str, Any]]) -> Curve:
    """Returns the held-out curve of the rows of a metrics.jsonl, without what a run begins with."""
    found = [
        (row["step"], row["mlm_loss"])
        for row in rows
        if row.get("split") == "validation" and row.get("mlm_loss") is not None and row["step"]
    ]
    return Curve(tuple(step for step, _ in found), tuple(loss for _, loss in found))


def training(rows: Iterable[Mapping[str, Any]], total_steps: int) -> Curve:
    """Returns the curve of training, a mean over the window before each point; it has no points
    where the rows of a metrics.jsonl are too far apart for a mean.
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
    """Returns the lowest and the highest loss that is expected at each of the steps, as
    `(step, low, high)`; steps at which no curve has points on both sides are left out.

    A run may be `shift` times as fast or as slow as the curves, and so many nats `above` them.
    """
    found = []
    # One run says nothing of how far others lie from it.
    room = _SINGLE_CURVE if len(curves) == 1 else 1.0
    for step in steps:
        values = [value for curve in curves for value in _around(curve, step, shift)]
        if values:
            found.append((step, min(values) - room * MARGIN, max(values) + room * above))
    return found


def _around(curve: Curve, step: int, shift: float) -> list[float]:
    """Returns the losses of a curve near a step, the ends of that stretch included."""
    # A shift beyond the usual one needs points that are as much earlier.
    first = step * SHIFT / shift
    if not curve.steps or first < curve.steps[0] or step > curve.steps[-1]:
        return []
    ends = (step / shift, step * shift)
    within = [
        loss for at, loss in zip(curve.steps, curve.losses, strict=True) if ends[0] <= at <= ends[1]
    ]
    return [*np.interp(ends, curve.steps, curve.losses).tolist(), *within]


def forecast(curve: Curve, steps: list[int]) -> list[tuple[int, float, float]]:
    """Returns `(step, low, high)` for steps after a curve, by the law of its own past,
    L(s) = E + B s^-beta; nothing for one of fewer than 5 points.

    The form in which losses fall with the number of tokens (Hoffmann et al. 2022, section 3), for
    one size of model. A schedule that lets the rate fall makes a run better than its forecast, so
    that only what lies above one says anything.

    For each of a grid of exponents, E and B are those of least squares; E and B are no less than
    zero.
    """
    if len(curve.steps) < LEAST_POINTS:
        return []
    at, losses = np.array(curve.steps, float), np.array(curve.losses)
    # The past is convex but for its beginning, a plateau or a warm-up: the latter half decides.
    half = slice(max(0, len(at) - max(LEAST_POINTS, len(at) // 2)), None)
    at, losses = at[half], losses[half]
    best: tuple[float, float, float, float] | None = None
    for beta in _BETAS:
        falling = at**-beta
        slope = np.cov(falling, losses, bias=True)[0, 1] / np.var(falling)
        slope = max(float(slope), 0.0)
        floor = max(float(np.mean(losses) - slope * np.mean(falling)), 0.0)
        error = float(np.sqrt(np.mean((floor + slope * falling - losses) ** 2)))
        if best is None or error < best[0]:
            best = (error, floor, slope, float(beta))
    assert best is not None
    error, floor, slope, beta = best
    room = max(MARGIN, _ERRORS * error)
    expected = [floor + slope * step**-beta for step in steps]
    # It gets better as it goes on, or stays as it is.
    last = float(losses[-1])
    return [
        (step, value - room, max(value, last) + room)
        for step, value in zip(steps, expected, strict=True)
    ]
