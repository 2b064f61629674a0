"""The loss as a law of parameters N and tokens D: L(N, D) = E + A / N^alpha + B / D^beta.

Fitted as in Hoffmann et al. 2022 ("Training Compute-Optimal Large Language Models", approach 3 and
appendix D.2): a Huber loss of the error in log L, so that one bad run does not bend the law,
minimised from many starting points. Intervals come from fits to runs drawn with replacement
(scipy.stats.bootstrap, percentiles), each from several points as well: one that begins where E is 0
finds only the laws without an E. docs/studies.md has how often they hold the truth.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

PARAMETERS = ("E", "A", "alpha", "B", "beta")
# Errors of log L beyond it count by their size and no longer by their square; the paper's.
_DELTA = 1e-3
_RESAMPLES = 200
_LEVEL = 0.95
INTERVAL = "percentiles of fits to the runs drawn with replacement"
# Fits are begun from the best of a grid: exponents, and shares of the lowest loss.
_EXPONENTS = (0.1, 0.25, 0.5, 0.8, 1.2)
_FLOORS = (0.2, 0.5, 0.8, 0.95)
_SHARES = (0.03, 0.15, 0.5)
_STARTS = 8
_ITERATIONS = 300
# E, the logarithms of the other two terms at the centre of the runs, and their exponents; E is at
# most the lowest loss.
_LOWEST = np.array([0.0, -20.0, 0.01, -20.0, 0.01])
_HIGHEST = np.array([np.inf, 5.0, 5.0, 5.0, 5.0])
# Steps are longer than Newton's: where errors count by their size, its own are too short.
_RELAXATION = 1.6
# FLOPs for each parameter and token (Kaplan et al. 2020, section 2.1).
_FLOPS = 6.0
LEAST_RUNS = 6


@dataclass(frozen=True)
class Law:
    """A fitted law, with the fits to resampled runs."""

    # E, A, alpha, B, beta.
    values: np.ndarray
    # The same of each resample: [R, 5].
    samples: np.ndarray
    # The mean absolute error of log L over the runs.
    error: float

    def loss(self, parameters: Any, tokens: Any) -> Any:
        """Returns L at one point or many, in nats."""
        return _loss(self.values, np.asarray(parameters, float), np.asarray(tokens, float))

    def interval(self, parameters: float, tokens: float) -> tuple[float, float]:
        """Returns where L lies at a point in 95 of 100 resamples."""
        found = [_loss(sample, parameters, tokens) for sample in self.samples]
        low, high = np.quantile(found, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
        return float(low), float(high)

    def intervals(self) -> dict[str, tuple[float, float]]:
        """Returns the interval of each of E, A, alpha, B and beta."""
        low, high = np.quantile(self.samples, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2], axis=0)
        bounds = zip(low.tolist(), high.tolist(), strict=True)
        return dict(zip(PARAMETERS, bounds, strict=True))

    def not_identified(self) -> list[str]:
        """Returns the parameters that the runs do not tell: those whose value, or whose interval's
        end, is a bound of the search, and the factor of such an exponent.
        """
        of = {"E": "E", "A": "alpha", "alpha": "alpha", "B": "beta", "beta": "beta"}
        found = {}
        for i, (name, ends) in enumerate(self.intervals().items()):
            least, most = min(self.values[i], *ends), max(self.values[i], *ends)
            found[name] = of[name] == name and (least <= _LOWEST[i] or most >= _HIGHEST[i])
        return [name for name in PARAMETERS if found[of[name]]]

    def optimal(self, flops: Any) -> tuple[np.ndarray, np.ndarray] | None:
        """Returns the parameters and tokens with the lowest loss for so many FLOPs, 6 N D
        (Hoffmann et al. 2022, equation 4); None where the one or the other hardly counts, so that
        the best number of it is beyond any.
        """
        _, a, alpha, b, beta = self.values
        product = np.asarray(flops, float) / _FLOPS
        with np.errstate(all="ignore"):
            scale = (alpha * a / (beta * b)) ** (1 / (alpha + beta))
            best = (
                scale * product ** (beta / (alpha + beta)),
                product ** (alpha / (alpha + beta)) / scale,
            )
        # Fewer than one is none.
        return best if all((each >= 1).all() and np.isfinite(each).all() for each in best) else None

    def as_json(self) -> dict[str, Any]:
        """Returns the law as study.json has it."""
        bounds = self.intervals()
        return {
            "formula": "L(N, D) = E + A / N^alpha + B / D^beta",
            "values": dict(zip(PARAMETERS, self.values.tolist(), strict=True)),
            "intervals": {name: list(bounds[name]) for name in PARAMETERS},
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
    resamples: int | None = None,
    seed: int = 0,
) -> Law:
    """Returns the law of some runs, `LEAST_RUNS` at least: each with N, D, and its loss in nats.

    Raises ValueError for fewer runs, or where N or D is the same in all.
    """
    n, d, loss = (np.asarray(values, float) for values in (parameters, tokens, losses))
    if len(n) < LEAST_RUNS or len(set(n)) < 2 or len(set(d)) < 2:
        raise ValueError(
            f"a law needs {LEAST_RUNS} runs with different sizes and different numbers of tokens"
        )
    # Centred, the two terms have the size of their share of the loss.
    centre = float(np.exp(np.mean(np.log(n)))), float(np.exp(np.mean(np.log(d))))
    logs = np.log(n / centre[0]), np.log(d / centre[1]), np.log(loss)
    grid = _grid(float(loss.min()))
    best = _fit(_best_of(grid, logs, count=_STARTS), *(each[None] for each in logs))
    # The fit, and the best of the grid for each share of E.
    several = [_best_of(grid[grid[:, 0] == e], logs, count=1) for e in np.unique(grid[:, 0])]
    starts = np.concatenate([best, *several])

    def statistic(*resampled: np.ndarray, axis: int) -> np.ndarray:
        assert axis == -1
        return _fit(starts, *resampled).T

    found = stats.bootstrap(
        logs,
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=_RESAMPLES if resamples is None else resamples,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    samples = _values(found.bootstrap_distribution.T, centre)
    values = _values(best, centre)[0]
    error = float(np.mean(np.abs(np.log(_loss(values, n, d)) - np.log(loss))))
    return Law(values, samples, error)


def _loss(values: np.ndarray, n: Any, d: Any) -> Any:
    e, a, alpha, b, beta = values
    return e + a / n**alpha + b / d**beta


def _values(points: np.ndarray, centre: tuple[float, float]) -> np.ndarray:
    """Returns E, A, alpha, B, beta of points of the search, `[R, 5]`."""
    e, a, alpha, b, beta = points.T
    with np.errstate(over="ignore"):
        terms = np.exp(a) * centre[0] ** alpha, np.exp(b) * centre[1] ** beta
    return np.stack([e, terms[0], alpha, terms[1], beta], axis=1)


def _grid(lowest: float) -> np.ndarray:
    """Returns points to begin from, `[G, 5]`."""
    return np.array(
        [
            (lowest * e, np.log(lowest * a), alpha, np.log(lowest * b), beta)
            for e, a, alpha, b, beta in itertools.product(
                _FLOORS, _SHARES, _EXPONENTS, _SHARES, _EXPONENTS
            )
        ]
    )


def _best_of(points: np.ndarray, logs: Sequence[np.ndarray], *, count: int) -> np.ndarray:
    """Returns the points with the lowest objective."""
    values = _evaluate(points, *(each[None] for each in logs))[0]
    return points[np.argsort(values, kind="stable")[:count]]


def _fit(
    starts: np.ndarray, log_n: np.ndarray, log_d: np.ndarray, log_loss: np.ndarray
) -> np.ndarray:
    """Returns the best fit to each of R sets of runs, `[R, 5]`; the runs are `[R, n]`.

    All sets from all starts at once, by damped Newton steps within the bounds (Levenberg and
    Marquardt) with weights for the Huber loss (iteratively reweighted least squares).
    """
    sets, count = log_loss.shape[0], len(starts)
    runs = [np.repeat(each, count, axis=0) for each in (log_n, log_d, log_loss)]
    highest = np.tile(_HIGHEST, (sets * count, 1))
    highest[:, 0] = np.exp(runs[2].min(axis=1))
    x = np.clip(np.tile(starts, (sets, 1)), _LOWEST, highest)
    damping = np.full(len(x), 1e-2)
    value, error, slopes = _evaluate(x, *runs)
    for _ in range(_ITERATIONS):
        weighted = (slopes / np.maximum(np.abs(error), _DELTA)[..., None]).swapaxes(1, 2)
        gradient = (weighted @ error[..., None])[..., 0]
        curvature = weighted @ slopes
        # What a bound holds does not move, and the others do not count on it.
        held = ((x <= _LOWEST) & (gradient > 0)) | ((x >= highest) & (gradient < 0))
        gradient[held] = 0
        curvature[held[:, :, None] | held[:, None, :]] = 0
        diagonal = np.einsum("pkk->pk", curvature)
        extra = damping[:, None] * diagonal + np.where(held, 1, 1e-9)
        curvature = curvature + np.eye(x.shape[1]) * extra[:, None, :]
        step = np.linalg.solve(curvature, gradient[..., None])[..., 0]
        moved = np.clip(x - _RELAXATION * step, _LOWEST, highest)
        new_value, new_error, new_slopes = _evaluate(moved, *runs)
        better = new_value < value
        x[better], value[better] = moved[better], new_value[better]
        error[better], slopes[better] = new_error[better], new_slopes[better]
        damping = np.clip(np.where(better, damping / 3, damping * 4), 1e-9, 1e9)
    best = np.argmin(value.reshape(sets, count), axis=1)
    return x.reshape(sets, count, -1)[np.arange(sets), best]


def _evaluate(
    points: np.ndarray, log_n: np.ndarray, log_d: np.ndarray, log_loss: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns of each point the sum of the Huber losses over its delta `[P]`, the errors of log L
    `[P, n]`, and their slopes `[P, n, 5]`.
    """
    e, a, alpha, b, beta = (each[:, None] for each in points.T)
    of_n, of_d = np.exp(a - alpha * log_n), np.exp(b - beta * log_d)
    predicted = e + of_n + of_d
    error = np.log(predicted) - log_loss
    size = np.abs(error)
    huber = np.where(size <= _DELTA, error**2 / (2 * _DELTA), size - _DELTA / 2)
    slopes = [np.ones_like(of_n), of_n, -of_n * log_n, of_d, -of_d * log_d]
    return huber.sum(axis=1) / _DELTA, error, np.stack(slopes, axis=-1) / predicted[..., None]
