"""How long a run waits for the plan of a large corpus, and how much memory the plan takes.

    python benchmarks/block_plans.py [--tokens 1 10 100] [--rounds 3]

Synthetic corpora of so many billion tokens: documents of 12 sentences and sentences of 20 tokens on
average, in shards of a quarter of a billion, whose offsets are mapped from files. Sentence pairs of
128, 16,384 rows a batch, all made by one process, or by one of 64. Each corpus is opened by a
process of its own. Printed are the seconds that a core needs for the first batch of a new run, and
of one that is resumed in its second epoch with the sizes that it has kept; the process's peak
memory, mapped files included; and the row tokens a second for which one thread of one of 64 hosts
can plan. `--whole` plans whole epochs, as smaller corpora and older runs have them.

    python benchmarks/block_plans.py --corpus runs/simplewiki

A corpus in a block of its own, with lanes as large as usual: the share of its planned rows that
an epoch leaves out, and the share of an epoch that begins again, by kinds of rows of 128.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bert_jax.config import DataConfig, PhaseConfig
from bert_jax.data import counter_rng
from bert_jax.data.corpus.pieces import BLOCKS, UNCUT, Blocks
from bert_jax.data.corpus.store import Split, open_corpus
from bert_jax.data.offsets import Offsets
from bert_jax.data.pretraining.epochs import EpochSizes
from bert_jax.data.pretraining.pipeline import Pipeline
from bert_jax.data.tokenizer.tokenizer import SpecialIds, Vocabulary
from bert_jax.objectives.mlm import MLM
from bert_jax.objectives.mlm_nsp import MLM_NSP

ROWS, LENGTH, VOCAB_SIZE = 16384, 128, 30522
SHARD = 250_000_000
SPECIAL = SpecialIds(pad=0, unk=100, cls=101, sep=102, mask=103)


def write_shard(directory: Path) -> None:
    """Writes the offsets of a shard, and its tokens, which may all be alike."""

    def geometric(size: int, mean: int, seed: int) -> np.ndarray:
        uniform = 1 - counter_rng.uniform(counter_rng.bits(seed, np.arange(size)))
        return 1 + np.floor(np.log(uniform) / np.log1p(-1 / mean)).astype(np.int64)

    documents = geometric(SHARD // 240, 12, 1)
    sentences = np.append(0, np.cumsum(geometric(int(documents.sum()), 20, 2)))
    np.save(directory / "documents.npy", np.append(0, np.cumsum(documents)).astype(np.uint32))
    np.save(directory / "sentences.npy", sentences.astype(np.uint32))
    tokens = np.lib.format.open_memmap(
        directory / "tokens.npy", "w+", np.uint16, (int(sentences[-1]),)
    )
    tokens.flush()


def split_of(directory: Path, billions: float) -> Split:
    """Returns a split of as many equal shards as make so many billion tokens."""
    tokens, sentences, documents = (
        np.load(directory / f"{name}.npy", mmap_mode="r")
        for name in ("tokens", "sentences", "documents")
    )
    count = max(1, round(billions * 1e9 / tokens.size))
    return Split(
        name="train",
        shards=(tokens,) * count,
        shard_starts=np.arange(count + 1) * tokens.size,
        sentence_starts=Offsets([sentences] * count),
        document_starts=Offsets([documents] * count),
    )


def pipeline(split: Split, blocks: Blocks, kept: EpochSizes | None) -> Pipeline:
    return Pipeline(
        split,
        collator=MLM_NSP,
        vocabulary=Vocabulary(SPECIAL, VOCAB_SIZE),
        options=DataConfig(),
        phases=(PhaseConfig(sequence_length=LENGTH, steps=10**9, global_batch_size=ROWS),),
        seed=0,
        kept=kept,
        blocks=blocks,
    )


def measure(directory: Path, billions: float, blocks: Blocks, rounds: int) -> str:
    split = split_of(directory, billions)
    first: list[float] = []
    resumed: list[float] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as workdir:

            def kept(place: str = workdir) -> EpochSizes:
                return EpochSizes(Path(place), corpus="synthetic", is_writer=True)

            began = time.thread_time()
            whole = pipeline(split, blocks, kept())
            whole.batch_at(0, range(ROWS))
            first.append(time.thread_time() - began)
            step = int(1.4 * whole.rows_per_epoch(0) / ROWS)
            began = time.thread_time()
            pipeline(split, blocks, kept()).batch_at(step, range(ROWS))
            resumed.append(time.thread_time() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    stream = pipeline(split, blocks, None)._streams[0][0]
    lanes = stream._lanes
    began, units = time.thread_time(), range(0, 16 * lanes if lanes > 1 else 1, lanes)
    rows = sum(len(stream.plans.get(unit)) for unit in units)
    rate = rows * LENGTH * lanes / (time.thread_time() - began)
    whole = ", whole epochs" if blocks == UNCUT else ""
    return (
        f"| {split.tokens / 1e9:,.0f} G{whole} | {statistics.median(first):.1f} | "
        f"{statistics.median(resumed):.1f} | {peak:.2f} | {rate / 1e6:,.0f} |"
    )


def shares(directory: Path) -> list[str]:
    corpus = open_corpus(directory)
    lanes = 1 << int(np.log2(corpus.train.tokens * BLOCKS.lanes / BLOCKS.tokens))
    pieces = BLOCKS.pieces // BLOCKS.lanes * lanes
    lines = []
    for rows in ("sentence_pairs", "documents", "full_sentences"):
        made = Pipeline(
            corpus.train,
            collator=MLM_NSP if rows == "sentence_pairs" else MLM,
            vocabulary=corpus.vocabulary,
            options=DataConfig(rows=rows),
            phases=(PhaseConfig(sequence_length=LENGTH, steps=10**9, global_batch_size=lanes),),
            seed=0,
            blocks=Blocks(tokens=corpus.train.tokens - 1, lanes=lanes, pieces=pieces),
        )
        (stream,), a_lane = made._streams[0], made.examples_per_epoch(0) // lanes
        sizes = np.array([len(stream.plans.get(lane)) for lane in range(lanes)])
        left_out = np.maximum(sizes - a_lane, 0).sum() / sizes.sum()
        again = np.maximum(a_lane - sizes, 0).sum() / (a_lane * lanes)
        lines.append(f"| {rows} | {left_out:.1%} | {again:.1%} |")
    return [f"| {lanes} lanes | left out | again |", "|---|---|---|", *lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=float, nargs="+", default=[1, 10, 100], metavar="BILLIONS")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.corpus:
        print("\n".join(shares(arguments.corpus)))
        return
    if arguments.directory:
        blocks = UNCUT if arguments.whole else BLOCKS
        print(measure(arguments.directory, *arguments.tokens, blocks, arguments.rounds))
        return
    columns = ("tokens", "first batch, CPU s", "resumed, CPU s", "peak GB", "M tokens/s a host")
    print(f"| {' | '.join(columns)} |")
    print("|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        write_shard(Path(directory))
        for billions in arguments.tokens:
            command = [sys.executable, __file__, "--tokens", str(billions)]
            command += ["--rounds", str(arguments.rounds), "--directory", directory]
            command += ["--whole"] * arguments.whole
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
