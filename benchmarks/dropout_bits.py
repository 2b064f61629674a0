"""Dropout's hashes as random generators: 1e8 draws of each, a battery of tests.

    python benchmarks/dropout_bits.py [--draws 1e8] [--seed 0]

Draws arrays as attention with dropout has them, 4 rows x 16 heads x 512 x 512, of as many steps,
layers and sites as it takes. A test is a sum that is normal for a good generator, or chi-square
made normal (Wilson & Hilferty 1931); what is printed is the smallest p of a kind, times the number
of all tests (Bonferroni). One below 1e-4 fails. The last column is of the mask at a rate of .1: the
same tests where only dropped or not is known.
"""

import argparse
import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.model.dropout import HASHES, DropoutKey, random_bits

_SHAPE = (4, 16, 512, 512)
_RATE = 0.1
_LAGS = (1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 64, 127, 128, 256)
_AXES = ("neighbouring rows of the batch", "neighbouring heads", "lags down", "lags across")
_RECTANGLES = ((1, 1), (1, 2), (2, 1), (1, 128), (128, 1), (3, 64), (64, 64), (256, 256))


class Sums:
    """Adds up what each test needs, in float64, array by array: a sum and its variance."""

    def __init__(self) -> None:
        self.sums: dict[tuple[str, object], float] = {}
        self.variances: dict[tuple[str, object], float] = {}

    def add(self, kind: str, which: object, value: float, variance: float) -> None:
        key = (kind, which)
        self.sums[key] = self.sums.get(key, 0.0) + value
        self.variances[key] = self.variances.get(key, 0.0) + variance

    def p_values(self) -> dict[tuple[str, object], float]:
        """Two-sided, of a normal distribution."""
        return {
            key: math.erfc(abs(value) / math.sqrt(2 * self.variances[key]))
            for key, value in self.sums.items()
        }


def tests(x: np.ndarray, near: list[tuple[str, np.ndarray]], variance: float, fourth: float):
    """Yields (kind, which, sum, variance) of an array of mean 0; `fourth` is its fourth moment."""
    yield "mean", 0, float(x.sum()), variance * x.size
    squares = np.square(x, dtype=np.float64)
    yield "variance", 0, float(squares.sum() - variance * x.size), (fourth - variance**2) * x.size
    for axis, kind in enumerate(_AXES):
        for lag in _LAGS if axis > 1 else (1, 2):
            n = x.shape[axis]
            product = np.take(x, range(n - lag), axis) * np.take(x, range(lag, n), axis)
            yield kind, lag, float(product.sum(dtype=np.float64)), variance**2 * product.size
    for axis, kind in ((2, "sums of columns"), (3, "sums of rows"), (1, "sums over heads")):
        sums = x.sum(axis=axis, dtype=np.float64)
        n = x.shape[axis]
        # Of a squared sum of n: its mean, and the variance of that.
        spread = n * (fourth - 3 * variance**2) + 2 * (n * variance) ** 2
        yield kind, 0, float(np.square(sums).sum() - n * variance * sums.size), spread * sums.size
    for down, across in _RECTANGLES:
        corners = x[:, :, :-down, :-across] * x[:, :, down:, :-across]
        corners *= x[:, :, :-down, across:] * x[:, :, down:, across:]
        value = float(corners.sum(dtype=np.float64))
        yield "rectangles", (down, across), value, variance**4 * corners.size
    for kind, other in near:
        yield kind, 0, float((x * other).sum(dtype=np.float64)), variance**2 * x.size


def drawn(name: str, draws: int, seed: int) -> Iterator[tuple[np.ndarray, list]]:
    """Yields arrays of bits, each with those of the next step, layer and site."""
    at = jax.jit(
        lambda step, layer, site: random_bits(
            DropoutKey.create(
                seed=seed, step=step, rows_B=jnp.arange(_SHAPE[0]), hash_name=name
            ).fold(layer).fold(site),
            _SHAPE,
        )
    )  # fmt: skip
    for i in range(math.ceil(draws / math.prod(_SHAPE))):
        step, layer, site = 1000 * i, i % 24, i % 3
        others = [
            ("neighbouring steps", at(step + 1, layer, site)),
            ("neighbouring layers", at(step, layer + 1, site)),
            ("neighbouring sites", at(step, layer, site + 1)),
        ]
        yield np.asarray(at(step, layer, site)), [(k, np.asarray(o)) for k, o in others]


def battery(name: str, draws: int, seed: int) -> tuple[dict, dict]:
    """Returns p by test, of the numbers and of the mask."""
    numbers, mask = Sums(), Sums()
    kept = (1 - _RATE) * _RATE  # variance of a mask
    fourth = kept * (1 - 3 * kept)
    for bits, near in drawn(name, draws, seed):
        for sums, of, variance, moment in (
            (numbers, lambda b: b * np.float32(2.0**-32) - np.float32(0.5), 1 / 12, 1 / 80),
            (mask, lambda b: (b < _RATE * 2**32) - np.float32(_RATE), kept, fourth),
        ):
            for test in tests(of(bits), [(k, of(o)) for k, o in near], variance, moment):
                sums.add(*test)
        for bit in range(32):
            ones = int(np.count_nonzero(bits >> np.uint32(bit) & 1))
            numbers.add("each bit", bit, ones - bits.size / 2, bits.size / 4)
        counts = np.bincount((bits >> np.uint32(16)).ravel(), minlength=2**16)
        expected = bits.size / 2**16
        chi, n = float(np.square(counts - expected).sum() / expected), 2**16 - 1
        z = ((chi / n) ** (1 / 3) - (1 - 2 / (9 * n))) / math.sqrt(2 / (9 * n))
        numbers.add("upper sixteen bits", 0, z, 1)
    return numbers.p_values(), mask.p_values()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=float, default=1e8)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    found = {n: battery(n, int(arguments.draws), arguments.seed) for n in HASHES}
    count = sum(len(p) for both in found.values() for p in both)
    print(f"{arguments.draws:.0e} draws each, {count} tests in all; p times {count}\n")
    print("| test | " + " | ".join(f"{n} | its mask" for n in found) + " |")
    print("|---" * (1 + 2 * len(found)) + "|")
    for kind in dict.fromkeys(kind for kind, _ in found["lowbias32"][0]):
        cells = []
        for p_values in (p for both in found.values() for p in both):
            of_kind = [p for (k, _), p in p_values.items() if k == kind]
            cells.append(f"{min(1.0, min(of_kind) * count):.2g}" if of_kind else "")
        print(f"| {kind} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
