"""Seconds of `prepare --append`, against a corpus of the new text alone.

    python benchmarks/append_time.py [--source FILE] [--tokenizer FILE] [--documents N] [--rounds 3]

The first N documents of the source are cut in ten files. Of nine of them, and of five, a corpus is
made, and the others are added to a copy of it; in turns with a corpus of these others alone, which
takes the same tokenizer. User and system time of this process, which encodes itself, too. Text and
vocabulary are by default those of $BERT_JAX_SHARED (else ../shared).
"""

import argparse
import itertools
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bert_jax.data.corpus.append import append
from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.sources.read import read_documents


def seconds(run: Callable[..., object], *arguments: Any, **options: Any) -> float:
    began = time.process_time()
    run(*arguments, **options)
    return time.process_time() - began


def main() -> None:
    shared = Path(os.environ.get("BERT_JAX_SHARED", "../shared"), "data")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", default=str(shared / "corpus/simplewiki.txt.gz"))
    parser.add_argument("--tokenizer", default=str(shared / "vocab/bert-base-uncased-vocab.txt"))
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chosen = itertools.islice(read_documents([arguments.source]), arguments.documents)
        texts = ["\n".join(document) for document in chosen]
        files = []
        for number in range(10):
            part = texts[number * len(texts) // 10 : (number + 1) * len(texts) // 10]
            files.append(str(folder / f"{number}.txt"))
            Path(files[-1]).write_text("\n\n".join(part) + "\n", encoding="utf-8")
        options: dict[str, Any] = {"tokenizer": arguments.tokenizer, "workers": 1}
        for old in (9, 5):
            prepare(files[:old], folder / f"{old}", **options)
            times: dict[str, list[float]] = {"added": [], "alone": []}
            for turn in range(arguments.rounds):
                grown, alone = folder / f"grown-{old}-{turn}", folder / f"alone-{old}-{turn}"
                shutil.copytree(folder / f"{old}", grown)
                times["added"].append(seconds(append, files[old:], grown, workers=1))
                times["alone"].append(seconds(prepare, files[old:], alone, **options))
            added, own = (statistics.median(each) for each in times.values())
            print(
                f"{10 - old} of 10 files: added {added:.2f} s, alone {own:.2f} s, "
                f"ratio {added / own:.2f}"
            )


if __name__ == "__main__":
    main()
