"""The loss as a law of parameters N and tokens D: L(N, D) = E + A / N^alpha + B / D^beta.

Fitted as in Hoffmann et al. 2022 ("Training Compute-Optimal Large Language Models", approach 3 and
appendix D.2): a Huber loss of the error in log L, so that one bad run does not bend the law,
minimised from many starting points. Intervals come from fits to runs drawn with replacement
(scipy.stats.bootstrap, percentiles).
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize, special, stats

PARAMETERS = ("E", "A", "alpha", "B", "beta")
# Errors of log L beyond it count by their size and no longer by their square; the paper's.
_DELTA = 1e-3
_RESAMPLES = 200
_LEVEL = 0.95
# Fits are begun from the best of a grid: exponents, and shares of the lowest loss.
_EXPONENTS = (0.1, 0.25, 0.5, 0.8, 1.2)
_FLOORS = (0.2, 0.5, 0.8, 0.95)
_SHARES = (0.03, 0.15, 0.5)
_STARTS = 8
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

    def optimal(self, flops: Any) -> tuple[Any, Any]:
        """Returns the parameters and tokens with the lowest loss for so many FLOPs, 6 N D
        (Hoffmann et al. 2022, equation 4).
        """
        _, a, alpha, b, beta = self.values
        product = np.asarray(flops, float) / _FLOPS
        scale = (alpha * a / (beta * b)) ** (1 / (alpha + beta))
        return (
            scale * product ** (beta / (alpha + beta)),
            product ** (alpha / (alpha + beta)) / scale,
        )

    def as_json(self) -> dict[str, Any]:
        """Returns the law as study.json has it."""
        bounds = self.intervals()
        return {
            "formula": "L(N, D) = E + A / N^alpha + B / D^beta",
            "values": dict(zip(PARAMETERS, self.values.tolist(), strict=True)),
            "intervals": {name: list(bounds[name]) for name in PARAMETERS},
            "level": _LEVEL,
            "resamples": len(self.samples),
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
    best = _fit(n, d, loss, centre, _starts(n, d, loss, centre))

    def statistic(n: np.ndarray, d: np.ndarray, loss: np.ndarray) -> np.ndarray:
        return _fit(n, d, loss, centre, [best])

    found = stats.bootstrap(
        (n, d, loss),
        statistic,
        paired=True,
        vectorized=False,
        n_resamples=_RESAMPLES if resamples is None else resamples,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    samples = np.stack([_values(row, centre) for row in found.bootstrap_distribution.T])
    values = _values(best, centre)
    error = float(np.mean(np.abs(np.log(_loss(values, n, d)) - np.log(loss))))
    return Law(values, samples, error)


def _loss(values: np.ndarray, n: Any, d: Any) -> Any:
    e, a, alpha, b, beta = values
    return e + a / n**alpha + b / d**beta


def _values(point: np.ndarray, centre: tuple[float, float]) -> np.ndarray:
    """Returns E, A, alpha, B, beta of a point of the search: their logarithms at the centre."""
    e, a, alpha, b, beta = point
    with np.errstate(over="ignore"):
        return np.array(
            [np.exp(e), np.exp(a) * centre[0] ** alpha, alpha, np.exp(b) * centre[1] ** beta, beta]
        )


def _starts(n: Any, d: Any, loss: Any, centre: tuple[float, float]) -> list[np.ndarray]:
    lowest = np.log(loss.min())
    grid = [
        np.array([lowest + np.log(e), lowest + np.log(a), alpha, lowest + np.log(b), beta])
        for e, a, alpha, b, beta in itertools.product(
            _FLOORS, _SHARES, _EXPONENTS, _SHARES, _EXPONENTS
        )
    ]
    logs = np.log(n / centre[0]), np.log(d / centre[1]), np.log(loss)
    return sorted(grid, key=lambda point: _objective(point, *logs)[0])[:_STARTS]


def _fit(
    n: Any, d: Any, loss: Any, centre: tuple[float, float], starts: Sequence[np.ndarray]
) -> np.ndarray:
    logs = np.log(n / centre[0]), np.log(d / centre[1]), np.log(loss)
    most = float(np.log(loss.min()))
    bounds = [(-20.0, most), (-20.0, 5.0), (0.01, 5.0), (-20.0, 5.0), (0.01, 5.0)]
    found = [
        optimize.minimize(
            _objective, start, args=logs, jac=True, method="L-BFGS-B", bounds=bounds,
            options={"maxiter": 2000, "ftol": 1e-13, "gtol": 1e-9},
        )
        for start in starts
    ]  # fmt: skip
    return min(found, key=lambda result: result.fun).x


def _objective(
    point: np.ndarray, log_n: np.ndarray, log_d: np.ndarray, log_loss: np.ndarray
) -> tuple[float, np.ndarray]:
    """Returns the sum of the Huber losses over its delta, and its gradient."""
    e, a, alpha, b, beta = point
    terms = np.stack([np.full_like(log_n, e), a - alpha * log_n, b - beta * log_d])
    predicted = special.logsumexp(terms, axis=0)
    error = predicted - log_loss
    value = np.sum(special.huber(_DELTA, error)) / _DELTA
    slope = np.clip(error / _DELTA, -1, 1)
    share = np.exp(terms - predicted) * slope
    gradient = [
        share[0].sum(),
        share[1].sum(),
        -(share[1] * log_n).sum(),
        share[2].sum(),
        -(share[2] * log_d).sum(),
    ]
    return float(value), np.array(gradient)
