"""Where a curve goes on to, by the law of its own past: L(s) = E + B s^-beta.

The form in which losses fall with the number of tokens (Hoffmann et al. 2022, section 3), for one
size of model. A schedule that lets the rate fall makes a run better than its forecast, so that only
what lies above one says anything.
"""

import numpy as np

from bert_jax_lab.reference_curves.curve import Curve

# Fewer points decide nothing.
LEAST_POINTS = 5
# The forecast may be wrong by so many times what the fit left over, and by so much in any case.
_ERRORS, _MARGIN = 4.0, 0.15
_BETAS = np.geomspace(0.05, 2.0, 40)


def forecast(curve: Curve, steps: list[int]) -> list[tuple[int, float, float]]:
    """Returns `(step, low, high)` for steps after a curve; nothing for one of fewer than 5 points.

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
    room = max(_MARGIN, _ERRORS * error)
    expected = [floor + slope * step**-beta for step in steps]
    # It gets better as it goes on, or stays as it is.
    last = float(losses[-1])
    return [
        (step, value - room, max(value, last) + room)
        for step, value in zip(steps, expected, strict=True)
    ]
