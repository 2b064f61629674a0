"""`prepare` on one long JSONL record of 1, 2, 4, ... 64 MB: processor seconds and peak memory.

    python benchmarks/long_records.py [--megabytes 1 2 4 8 16 32 64] [--repeat 3] [--stops]

The record is one sentence without a full stop, which is the hardest to cut, or prose with --stops.
Each size is read, encoded and written in a fresh process, with a given vocabulary and one worker;
a file of short records beside it gives the split its documents. Seconds are the processor's, the
best of --repeat, less those that a record of a kilobyte takes.
"""

import argparse
import json
import multiprocessing
import random
import resource
import tempfile
import time
from pathlib import Path

_WORDS = 5000


def _words() -> list[str]:
    draw = random.Random(0)
    return ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(_WORDS)]


def _text(size: int, *, with_stops: bool) -> str:
    block = " ".join(random.Random(1).choices(_words(), k=200_000))
    if with_stops:
        block = ". ".join(block[at : at + 90].strip() for at in range(0, len(block), 90))
    return (block * (size // len(block) + 1))[:size]


def _prepare(folder: Path, size: int, with_stops: bool) -> tuple[float, int, int]:
    """Returns seconds, tokens and the peak of resident memory in KiB."""
    from bert_jax.data.corpus.prepare import prepare

    lines = [json.dumps({"text": _text(size, with_stops=with_stops)})]
    (folder / "long.jsonl").write_text("\n".join(lines) + "\n")
    short = [json.dumps({"text": f"A short text, number {i}."}) for i in range(40)]
    (folder / "short.jsonl").write_text("\n".join(short) + "\n")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."]
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = [*letters, *(f"##{letter}" for letter in letters), *_words()]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys([*special, *pieces])))
    began = time.process_time()
    corpus = prepare(
        [str(folder / "long.jsonl"), str(folder / "short.jsonl")],
        folder / "corpus",
        tokenizer=str(folder / "vocab.txt"),
        validation_fraction=0.2,
        workers=1,
    )
    seconds = time.process_time() - began
    tokens = corpus.manifest["counts"]["total"]["tokens"]
    return seconds, tokens, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _measure(size: int, with_stops: bool) -> tuple[float, int, int]:
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        with context.Pool(1) as pool:
            return pool.apply(_prepare, (Path(folder), size, with_stops))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--megabytes", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64], metavar="N"
    )
    parser.add_argument("--stops", action="store_true", help="prose, not one sentence")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="best of so many")
    arguments = parser.parse_args()

    def best(size: int) -> tuple[float, int, int]:
        return min(_measure(size, arguments.stops) for _ in range(arguments.repeat))

    base, _, _ = best(1000)
    print("| MB | seconds | seconds / MB | tokens | peak memory, MiB |")
    print("|---|---|---|---|---|")
    for megabytes in arguments.megabytes:
        seconds, tokens, memory = best(megabytes * 1_000_000)
        seconds -= base
        print(
            f"| {megabytes} | {seconds:.2f} | {seconds / megabytes:.3f} | {tokens:,} "
            f"| {memory / 1024:,.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
