"""Tokens per second of the input pipeline by the number of sources that a text is cut into.

    python benchmarks/mixture_throughput.py [--sources 1 2 200] [--steps 200] [--rounds 5]

20 million invented tokens in 200 shards are one corpus, or as many sources, of weights between 1
and 3. All make 256 rows of 128 a batch, in turns; the medians of the rounds are printed, in CPU
seconds of the whole process, too, since other work on the machine does not change these.
"""

import argparse
import dataclasses
import itertools
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from pipeline_throughput import LENGTH, ROWS, SPECIAL, VOCAB_SIZE, synthetic_split

from bert_jax.config import DataConfig, PhaseConfig
from bert_jax.data.corpus.store import Split
from bert_jax.data.pretraining.pipeline import Pipeline, tf_batches
from bert_jax.data.tokenizer.tokenizer import Vocabulary
from bert_jax.objectives.mlm_nsp import MLM_NSP


def parts(split: Split, number: int) -> dict[str, Split]:
    """Returns the documents of a split as so many sources."""
    edges = np.linspace(0, split.document_starts.size - 1, number + 1).astype(np.int64)
    found = {}
    for i, (first, end) in enumerate(itertools.pairwise(edges)):
        starts = split.document_starts[first : end + 1]
        found[f"s{i:03}"] = dataclasses.replace(
            split,
            document_starts=starts - starts[0],
            sentence_starts=split.sentence_starts[starts[0] : starts[-1] + 1],
        )
    return found


def pipeline_of(split: Split, number: int) -> Pipeline:
    sources = parts(split, number)
    weights = ",".join(f"{name}={1 + i % 3}" for i, name in enumerate(sources))
    return Pipeline(
        split,
        collator=MLM_NSP,
        vocabulary=Vocabulary(SPECIAL, VOCAB_SIZE),
        options=DataConfig(source_weights=weights if number > 1 else ""),
        phases=(PhaseConfig(sequence_length=LENGTH, global_batch_size=ROWS, steps=10**6),),
        seed=0,
        sources=sources if number > 1 else {},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sources", type=int, nargs="+", default=[1, 2, 200])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        split = synthetic_split(Path(directory), shards=200)
        made = {number: pipeline_of(split, number) for number in arguments.sources}
        for number, pipeline in made.items():
            began = time.perf_counter()
            pipeline.batch_at(0, range(ROWS))
            print(f"{number} source(s): first batch after {time.perf_counter() - began:.2f} s")
        rates: dict[int, list[tuple[float, float]]] = {number: [] for number in made}
        for turn in range(arguments.rounds):
            for number, pipeline in made.items():
                wall, cpu, tokens = time.perf_counter(), time.process_time(), 0
                for batch in tf_batches(
                    pipeline.batch_at,
                    turn * arguments.steps,
                    (turn + 1) * arguments.steps,
                    range(ROWS),
                    fields=MLM_NSP.fields,
                    num_workers=2,
                    prefetch=4,
                ):
                    tokens += int((batch["sequence_ids"] > 0).sum())
                wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
                rates[number].append((tokens / wall / 1e6, cpu / arguments.steps * 1e3))
    print(f"{'sources':>8s} {'M tokens/s':>11s} {'CPU ms a batch':>15s}")
    for number, found in rates.items():
        speed, cpu = (statistics.median(values) for values in zip(*found, strict=True))
        print(f"{number:8d} {speed:11.1f} {cpu:15.2f}")


if __name__ == "__main__":
    main()
