"""The scaling law of the loss in parameters N and tokens D: L(N, D) = E + A / N^alpha + B / D^beta.

The fit follows Hoffmann et al. 2022 ("Training Compute-Optimal Large Language Models", approach 3
and appendix D.2): a Huber loss of the error in log L, so that a single bad run does not bend the
law, minimized from several starting points. Intervals are percentiles of fits to resamples of the
runs, drawn with replacement. Each resample is also fitted from several points, since a search that
begins at E = 0 only finds laws with E = 0.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import least_squares

PARAMETERS = ("E", "A", "alpha", "B", "beta")
# The Huber loss is linear beyond this error of log L; the paper's value.
_DELTA = 1e-3
_RESAMPLES = 200
_LEVEL = 0.95
INTERVAL = "percentiles of fits to the runs drawn with replacement"
# Fits begin at the best points of a grid: exponents, and shares of the lowest loss.
_EXPONENTS = (0.1, 0.25, 0.5, 0.8, 1.2)
_FLOORS = (0.2, 0.8)
_SHARES = (0.03, 0.15, 0.5)
_STARTS = 8
# Bounds of the search: E, the logarithms of the two terms at the center of the runs, and their
# exponents. E is at most the lowest loss.
_LOWEST = np.array([0.0, -20.0, 0.01, -20.0, 0.01])
_HIGHEST = np.array([np.inf, 5.0, 5.0, 5.0, 5.0])
LEAST_RUNS = 6


@dataclass(frozen=True)
class Law:
    """A fitted law, with the fits to resampled runs."""

    # E, A, alpha, B, beta.
    values: np.ndarray
    # The values of each resample: [R, 5].
    samples: np.ndarray
    # The mean absolute error of log L over the runs.
    error: float

    def loss(self, parameters: Any, tokens: Any) -> Any:
        """Returns L in nats, at one point or at many."""
        return _loss(self.values, np.asarray(parameters, float), np.asarray(tokens, float))

    def intervals(self) -> dict[str, tuple[float, float]]:
        """Returns the 95 % interval of each of E, A, alpha, B and beta."""
        low, high = np.quantile(self.samples, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2], axis=0)
        bounds = zip(low.tolist(), high.tolist(), strict=True)
        return dict(zip(PARAMETERS, bounds, strict=True))

    def not_identified(self) -> list[str]:
        """Returns the parameters that the runs do not determine: E and the exponents with a value
        or an interval end at a bound of the search, and the factors of such exponents.
        """
        decides = {"E": "E", "A": "alpha", "alpha": "alpha", "B": "beta", "beta": "beta"}
        intervals = self.intervals()
        at_bound = {
            name: min(self.values[i], *intervals[name]) <= _LOWEST[i]
            or max(self.values[i], *intervals[name]) >= _HIGHEST[i]
            for i, name in enumerate(PARAMETERS)
        }
        return [name for name in PARAMETERS if at_bound[decides[name]]]

    def as_json(self) -> dict[str, Any]:
        """Returns the law as it is written to study.json."""
        return {
            "formula": "L(N, D) = E + A / N^alpha + B / D^beta",
            "values": dict(zip(PARAMETERS, self.values.tolist(), strict=True)),
            "intervals": {name: list(ends) for name, ends in self.intervals().items()},
            "level": _LEVEL,
            "resamples": len(self.samples),
            "interval": INTERVAL,
            "not_identified": self.not_identified(),
            "mean_error_of_log_loss": self.error,
        }


def fit(
    parameters: Sequence[float] | np.ndarray,
    tokens: Sequence[float] | np.ndarray,
    losses: Sequence[float] | np.ndarray,
    *,
    resamples: int = _RESAMPLES,
    seed: int = 0,
) -> Law:
    """Returns the law of some runs, each with N, D and its loss in nats.

    Raises ValueError for fewer than `LEAST_RUNS` runs, or if N or D is the same in all runs.
    """
    n, d, loss = (np.asarray(values, float) for values in (parameters, tokens, losses))
    if len(n) < LEAST_RUNS or len(set(n)) < 2 or len(set(d)) < 2:
        raise ValueError(
            f"a law needs {LEAST_RUNS} runs with different sizes and different numbers of tokens"
        )
    # Relative to the center of the runs, the two terms are shares of the loss.
    center = float(np.exp(np.mean(np.log(n)))), float(np.exp(np.mean(np.log(d))))
    logs = np.stack([np.log(n / center[0]), np.log(d / center[1]), np.log(loss)])
    grid = _ranked_grid(logs)
    best = _best_fit(grid[:_STARTS], logs)
    # Resamples begin at the fit, and at the best point of the grid for each share of E.
    starts = np.stack([best, *(grid[grid[:, 0] == e][0] for e in np.unique(grid[:, 0]))])
    draw = np.random.default_rng(seed)
    drawn = (logs[:, draw.integers(len(n), size=len(n))] for _ in range(resamples))
    samples = np.stack([_values(_best_fit(starts, each), center) for each in drawn])
    values = _values(best, center)
    error = float(np.mean(np.abs(np.log(_loss(values, n, d)) - logs[2])))
    return Law(values, samples, error)


def _loss(values: np.ndarray, n: Any, d: Any) -> Any:
    e, a, alpha, b, beta = values
    return e + a / n**alpha + b / d**beta


def _values(point: np.ndarray, center: tuple[float, float]) -> np.ndarray:
    """Returns E, A, alpha, B, beta of a point of the search."""
    e, a, alpha, b, beta = point
    with np.errstate(over="ignore"):
        factors = np.exp(a) * center[0] ** alpha, np.exp(b) * center[1] ** beta
    return np.array([e, factors[0], alpha, factors[1], beta])


def _errors(point: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """Returns the error of log L per run: `[n]`. `logs` are log N, log D and log L: `[3, n]`."""
    e, a, alpha, b, beta = point
    return np.log(e + np.exp(a - alpha * logs[0]) + np.exp(b - beta * logs[1])) - logs[2]


def _slopes(point: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """Returns the derivatives of the errors: `[n, 5]`."""
    e, a, alpha, b, beta = point
    by_n, by_d = np.exp(a - alpha * logs[0]), np.exp(b - beta * logs[1])
    slopes = [np.ones_like(by_n), by_n, -by_n * logs[0], by_d, -by_d * logs[1]]
    return np.stack(slopes, axis=1) / (e + by_n + by_d)[:, None]


def _ranked_grid(logs: np.ndarray) -> np.ndarray:
    """Returns starting points, `[G, 5]`, sorted by their Huber loss."""
    lowest = float(np.exp(logs[2].min()))
    grid = np.array(
        [
            (lowest * e, np.log(lowest * a), alpha, np.log(lowest * b), beta)
            for e, a, alpha, b, beta in itertools.product(
                _FLOORS, _SHARES, _EXPONENTS, _SHARES, _EXPONENTS
            )
        ]
    )
    errors = np.abs([_errors(point, logs) for point in grid])
    huber = np.where(errors <= _DELTA, errors**2 / (2 * _DELTA), errors - _DELTA / 2)
    return grid[np.argsort(huber.sum(axis=1), kind="stable")]


def _best_fit(starts: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """Returns the point with the lowest Huber loss that is found from some starting points."""
    highest = np.array([np.exp(logs[2].min()), *_HIGHEST[1:]])
    # A start must be strictly inside the bounds.
    inside = np.clip(starts, _LOWEST + 1e-6, highest - 1e-6)
    fits = [
        least_squares(
            _errors, start, jac=_slopes,  # pyright: ignore[reportArgumentType]
            bounds=(_LOWEST, highest), loss="huber", f_scale=_DELTA,
            method="dogbox", ftol=1e-10, xtol=1e-10, gtol=1e-10, max_nfev=1000, args=(logs,),
        )
        for start in inside
    ]  # fmt: skip
    return min(fits, key=lambda found: found.cost).x
