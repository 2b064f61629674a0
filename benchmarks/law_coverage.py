"""How often the 95 % intervals of a fitted law hold the truth, for laws that are known.

    python benchmarks/law_coverage.py [DRAWS] [--law with-E|without-E]

The runs are those of `bert-jax study scaling`: four sizes, three numbers of tokens, one run each.
Their losses are a law's, times normal noise of 1 %. A draw makes losses, fits a law with its
intervals (bert_jax_lab/studies/scaling_law.py), and asks of each parameter, and of the loss of the
largest run, whether the interval holds the truth. Half a second of CPU a draw.
"""

import argparse

import numpy as np

from bert_jax_lab.studies import scaling_law
from bert_jax_lab.studies.scaling_law import PARAMETERS

NOISE = 0.01
# Parameters of the blocks of 2 x 32, 2 x 64, 2 x 128 and 4 x 128; tokens.
SIZES, TOKENS = (25_472, 100_096, 396_800, 793_344), (1_536_000, 2_560_000, 4_096_000)
LARGEST = (1_779_840, 4_096_000)
# E, A, alpha, B, beta; the second one is what the study's runs are closest to.
LAWS = {
    "with-E": (2.0, 396.0, 0.6, 886.0, 0.4),
    "without-E": (0.0, 4201.0, 0.826, 63.72, 0.1811),
}


def loss_of(law: tuple[float, ...], n: np.ndarray, d: np.ndarray) -> np.ndarray:
    e, a, alpha, b, beta = law
    return e + a / n**alpha + b / d**beta


def held(law: tuple[float, ...], draw: int) -> list[bool]:
    """Returns of one draw whether the intervals hold each parameter, and the largest run's loss."""
    n, d = (x.ravel().astype(float) for x in np.meshgrid(SIZES, TOKENS, indexing="ij"))
    noise = np.random.default_rng(draw).normal(0, NOISE, len(n))
    found = scaling_law.fit(n, d, loss_of(law, n, d) * np.exp(noise), seed=draw)
    largest = np.array([LARGEST], float).T
    truths = [*law, float(loss_of(law, *largest)[0])]
    intervals = [*found.intervals().values(), found.interval(*map(float, LARGEST))]
    return [low <= truth <= high for truth, (low, high) in zip(truths, intervals, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("draws", type=int, nargs="?", default=100)
    parser.add_argument("--law", choices=LAWS, action="append")
    arguments = parser.parse_args()
    print("| law | " + " | ".join((*PARAMETERS, "largest run")) + " |")
    print("|---" * 7 + "|")
    for name in arguments.law or LAWS:
        shares = np.mean([held(LAWS[name], draw) for draw in range(arguments.draws)], axis=0)
        print(f"| {name} | " + " | ".join(f"{share:.0%}" for share in shares) + " |", flush=True)


if __name__ == "__main__":
    main()
