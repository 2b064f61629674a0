"""Finding near duplicates among many documents: processor seconds and memory.

    python benchmarks/near_duplicates.py [--documents 1000000] [--words 100] [--similarity 0.8]

Made text: of 20 documents, one is a copy of the one before it in which a stretch of 5 % is other
words (a Jaccard similarity of about 0.9), and one a copy with other words in 30 % (about 0.5). The
texts are made anew for either reading, which is not counted.
"""

import argparse
import itertools
import resource
import time
from collections.abc import Iterable, Iterator

import numpy as np

from bert_jax.data.matching.near_duplicates import NearDuplicates

_VOCABULARY, _EVERY, _TOGETHER = 20_000, 20, 1000


def _texts(count: int, length: int) -> Iterator[tuple[int, bytes]]:
    vocabulary = np.array([f"w{number}" for number in range(_VOCABULARY)])
    draw = np.random.default_rng(0)
    for start in range(0, count, _TOGETHER):
        # Frequencies as of words: many of few.
        ids = (_VOCABULARY * draw.random((_TOGETHER, length)) ** 3).astype(int)
        for row, share in ((1, 0.05), (11, 0.3)):
            kept = round(length * (1 - share))
            ids[row::_EVERY, :kept] = ids[row - 1 :: _EVERY, :kept]
        for number, row in enumerate(ids[: count - start], start):
            yield number, " ".join(vocabulary[row]).encode()


def _timed(texts: Iterable[tuple[int, bytes]], seconds: list[float]) -> Iterator[tuple[int, bytes]]:
    """Yields the texts; `seconds` is what making them takes, of the processor."""
    texts = iter(texts)
    while True:
        began = time.process_time()
        block = list(itertools.islice(texts, _TOGETHER))
        seconds[0] += time.process_time() - began
        if not block:
            return
        yield from block


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--words", type=int, default=100)
    parser.add_argument("--similarity", type=float, default=0.8)
    options = parser.parse_args()
    near = NearDuplicates(options.similarity)
    print("| | CPU s | peak MB |\n|---|---|---|", flush=True)
    for name in ("sign", "compare"):
        making, began = [0.0], time.process_time()
        texts = _timed(_texts(options.documents, options.words), making)
        if name == "sign":
            for number, text in texts:
                near.add(number, text)
        else:
            dropped = {found.number for found in near.find(texts)}
        seconds = time.process_time() - began - making[0]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"| {name} | {seconds:.1f} | {peak:,.0f} |", flush=True)
    planted = set(range(1, options.documents, _EVERY))
    print(f"dropped {len(dropped):,}, of {len(planted):,} planted {len(dropped & planted):,}")


if __name__ == "__main__":
    main()
