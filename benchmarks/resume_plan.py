"""Seconds from a resumption to its first batch, with the size of the first epoch kept or counted.

    python benchmarks/resume_plan.py [--tokens 400000000] [--rounds 3]

Synthetic documents of 12 sentences and sentences of 20 tokens on average, sentence pairs of 128,
256 rows a batch, in the fourth epoch. Each round makes both sides anew, in turns, as a process does
that begins; the medians are printed. Both batches are the same, bit for bit.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from bert_jax.config import DataConfig, PhaseConfig
from bert_jax.data import counter_rng
from bert_jax.data.corpus.store import Split
from bert_jax.data.pretraining.epochs import KeptEpochs
from bert_jax.data.pretraining.pipeline import Pipeline
from bert_jax.data.tokenizer.tokenizer import SpecialIds, Vocabulary
from bert_jax.objectives.mlm_nsp import MLM_NSP
from bert_jax.training.epoch_sizes import EpochSizes

ROWS, LENGTH, VOCAB_SIZE, EPOCH = 256, 128, 30522, 3
SPECIAL = SpecialIds(pad=0, unk=100, cls=101, sep=102, mask=103)


def synthetic_split(tokens: int) -> Split:
    def geometric(size: int, mean: int, seed: int) -> np.ndarray:
        uniform = 1 - counter_rng.uniform(counter_rng.bits(seed, np.arange(size)))
        return 1 + np.floor(np.log(uniform) / np.log1p(-1 / mean)).astype(np.int64)

    documents = geometric(tokens // 240, 12, 1)
    sentences = geometric(int(documents.sum()), 20, 2)
    sentence_starts = np.concatenate([[0], np.cumsum(sentences)])
    # A plan touches no token; those of a batch may all be alike.
    ids = np.full(sentence_starts[-1], 1000, np.uint16)
    return Split(
        name="train",
        shards=(ids,),
        shard_starts=np.array([0, ids.size]),
        sentence_starts=sentence_starts,
        document_starts=np.concatenate([[0], np.cumsum(documents)]),
    )


def pipeline(split: Split, kept: KeptEpochs | None) -> Pipeline:
    return Pipeline(
        split,
        collator=MLM_NSP,
        vocabulary=Vocabulary(SPECIAL, VOCAB_SIZE),
        options=DataConfig(),
        phases=(PhaseConfig(sequence_length=LENGTH, steps=10**9, global_batch_size=ROWS),),
        seed=0,
        kept=kept,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=400_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    split = synthetic_split(arguments.tokens)
    with tempfile.TemporaryDirectory() as directory:

        def kept() -> EpochSizes:
            return EpochSizes(Path(directory), corpus="synthetic", is_writer=True)

        size = pipeline(split, kept()).rows_per_epoch(0)
        step = int((EPOCH + 0.3) * size / ROWS)
        seconds: dict[str, list[float]] = {"counted": [], "kept": []}
        for _ in range(arguments.rounds):
            batches = {}
            for side, times in seconds.items():
                began = time.perf_counter()
                resumed = pipeline(split, kept() if side == "kept" else None)
                batches[side] = resumed.batch_at(step, range(ROWS))
                times.append(time.perf_counter() - began)
            for name, array in batches["kept"].items():
                assert array.tobytes() == batches["counted"][name].tobytes(), name
    print(f"{split.shard_starts[-1] / 1e6:,.0f} M tokens, {size:,} pairs an epoch, step {step:,}")
    for side, times in seconds.items():
        print(f"{side}: {statistics.median(times):.2f} s to the first batch")


if __name__ == "__main__":
    main()
