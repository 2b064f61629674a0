"""Tokens per second: our input pipeline compared with Hugging Face's masked-LM collator.

    python benchmarks/pipeline_throughput.py [--corpus DIR] [--steps 200] [--rounds 5]

Ours makes whole batches from the token store: draws the order of the epoch, finds sentence pairs
with next-sentence labels, gathers their tokens from the memory-mapped shards, and masks them.
`transformers.DataCollatorForLanguageModeling` in its NumPy mode gets tokenized rows of 128 ids in
memory, and masks them. Both run interleaved, with batches of 256 rows of 128 tokens; the script
prints the medians of the rounds. Padding does not count as tokens; the collator's rows have none.
In the same rounds, ours makes packed rows of documents with 30 % of their tokens masked, of 1,024
and 8,192 tokens, with the same number of tokens per batch.

Without `--corpus`, ours reads a synthetic corpus: 20 million tokens in 8 shards on disk.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from bert_jax.config import DataConfig, PhaseConfig
from bert_jax.data import counter_rng
from bert_jax.data.corpus.store import Split, open_corpus
from bert_jax.data.pretraining.batch import Batch, signature
from bert_jax.data.pretraining.pipeline import Pipeline, tf_batches
from bert_jax.data.pretraining.sentence_pairs import SENTENCE_PAIRS
from bert_jax.data.tokenizer.tokenizer import SpecialIds, Vocabulary
from bert_jax.objectives.mlm import MLM
from bert_jax.objectives.mlm_nsp import MLM_NSP
from bert_jax.objectives.objective import Objective

ROWS, LENGTH, VOCAB_SIZE = 256, 128, 30522
LONG = (1024, 8192)
SPECIAL = SpecialIds(pad=0, unk=100, cls=101, sep=102, mask=103)


def synthetic_split(directory: Path, *, tokens: int = 20_000_000, shards: int = 8) -> Split:
    """Documents of 12 sentences and sentences of 20 tokens on average, geometrically spread."""

    def geometric(size: int, mean: int, seed: int) -> np.ndarray:
        uniform = 1 - counter_rng.uniform(counter_rng.bits(seed, np.arange(size)))
        return 1 + np.floor(np.log(uniform) / np.log1p(-1 / mean)).astype(np.int64)

    documents = geometric(tokens // 240, 12, 1)
    sentences = geometric(int(documents.sum()), 20, 2)
    document_starts = np.concatenate([[0], np.cumsum(documents)])
    sentence_starts = np.concatenate([[0], np.cumsum(sentences)])
    words = counter_rng.bits(3, np.arange(sentence_starts[-1]))
    ids = (1000 + counter_rng.randint(words, VOCAB_SIZE - 1000)).astype(np.uint16)
    cuts = np.linspace(0, documents.size, shards + 1).astype(np.int64)
    shard_starts = sentence_starts[document_starts[cuts]]
    mapped = []
    for i, part in enumerate(np.split(ids, shard_starts[1:-1])):
        file = directory / f"{i:05d}.tokens.npy"
        np.save(file, part)
        mapped.append(np.load(file, mmap_mode="r"))
    return Split(
        name="train",
        shards=tuple(mapped),
        shard_starts=shard_starts,
        sentence_starts=sentence_starts,
        document_starts=document_starts,
    )


def rate(run: Callable[[], int]) -> float:
    """Returns million tokens per second of one run, which returns its number of tokens."""
    start = time.perf_counter()
    tokens = run()
    return tokens / (time.perf_counter() - start) / 1e6


# --- theirs --------------------------------------------------------------------------------------


def collate(form: str, steps: int) -> float:
    """Returns million tokens per second of the collator on rows of one supported format."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

    names = {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103}
    words = {f"w{i}": i for i in range(VOCAB_SIZE) if i not in names.values()}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(names | words, unk_token="[UNK]")),
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15, return_tensors="np")
    ids = 1000 + counter_rng.randint(
        counter_rng.bits(4, np.arange(ROWS * LENGTH)), VOCAB_SIZE - 1000
    )
    ids = ids.reshape(ROWS, LENGTH)
    ids[:, 0], ids[:, 64], ids[:, -1] = 101, 102, 102
    is_special = np.isin(ids, (101, 102)).astype(np.int64)
    if form == "lists":
        ids, is_special = ids.tolist(), is_special.tolist()
    rows = [
        {"input_ids": a, "special_tokens_mask": b} for a, b in zip(ids, is_special, strict=True)
    ]

    def run() -> int:
        # The collator pops columns from the result of the tokenizer's `pad`, never from the rows.
        return sum(collator(rows)["input_ids"].size for _ in range(steps))

    run_once = collator(rows)
    assert run_once["input_ids"].shape == (ROWS, LENGTH)
    return rate(run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, help="a corpus directory made by `prepare`")
    parser.add_argument("--steps", type=int, default=400, help="our batches per measurement")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as directory:
        if arguments.corpus:
            corpus = open_corpus(arguments.corpus)
            split, vocabulary = corpus.train, corpus.vocabulary
        else:
            split, vocabulary = synthetic_split(Path(directory)), Vocabulary(SPECIAL, VOCAB_SIZE)
        compare(split, vocabulary, steps=arguments.steps, rounds=arguments.rounds)


class Side:
    """Batches of one kind of rows, each requested once."""

    def __init__(
        self,
        split: Split,
        vocabulary: Vocabulary,
        collator: Objective,
        options: DataConfig,
        *,
        length: int,
        predictions: int,
    ):
        # Each side has the same number of tokens per batch.
        self.rows = range(ROWS * LENGTH // length)
        phase = PhaseConfig(
            sequence_length=length,
            global_batch_size=len(self.rows),
            max_predictions=predictions,
            steps=10**9,
        ).resolved(options.masked_lm_prob, packing=options.packing)
        self._pipeline = Pipeline(
            split,
            collator=collator,
            vocabulary=vocabulary,
            options=options,
            phases=(phase,),
            seed=0,
        )
        self._signature = signature(collator.fields, phase, rows=len(self.rows))
        self._options, self._position = options, 0
        self._pipeline.batch_at(0, self.rows)

    def _next(self, steps: int) -> range:
        self._position += steps
        return range(self._position - steps, self._position)

    def alone(self, steps: int) -> int:
        batches = (self._pipeline.batch_at(step, self.rows) for step in self._next(steps))
        return sum(_tokens(batch) for batch in batches)

    def through_tf_data(self, steps: int) -> int:
        asked = self._next(steps)
        batches = tf_batches(
            lambda step: self._pipeline.batch_at(step, self.rows),
            asked.start,
            asked.stop,
            signature=self._signature,
            num_workers=self._options.num_workers,
            prefetch=self._options.prefetch,
        )
        return sum(_tokens(batch) for batch in batches)


def _tokens(batch: Batch) -> int:
    return int((batch["sequence_ids"] > 0).sum())


def compare(split: Split, vocabulary: Vocabulary, *, steps: int, rounds: int) -> None:
    options = DataConfig()
    start = time.perf_counter()
    plan = SENTENCE_PAIRS.plan(split, options=options, sequence_length=LENGTH, key=1)
    seconds = time.perf_counter() - start
    print(f"corpus: {split.sentence_starts[-1]:,} tokens in {len(split.shards)} shard(s)")
    print(f"plan of an epoch: {len(plan):,} pairs in {seconds:.2f} s")
    fill = plan.lengths.mean() / LENGTH
    print(f"our rows are {100 * fill:.1f} % tokens, the rest is padding and not counted\n")
    pairs = Side(split, vocabulary, MLM_NSP, options, length=LENGTH, predictions=20)
    packed = DataConfig(sequence_format="documents", packing="best_fit", masked_lm_prob=0.3)
    long = {
        length: Side(split, vocabulary, MLM, packed, length=length, predictions=-1)
        for length in LONG
    }

    ours: dict[str, Callable[[], int]] = {
        f"ours, through tf.data, {options.num_workers} threads": lambda: pairs.through_tf_data(
            steps
        ),
        "ours, batch_at alone, one thread": lambda: pairs.alone(steps),
    } | {
        f"ours, packed documents of {length:,}, tf.data": lambda side=side: side.through_tf_data(
            steps
        )
        for length, side in long.items()
    }
    their_steps = max(steps // 10, 4)
    rates: dict[str, list[float]] = {}
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for turn in range(rounds + 1):
            found = {name: rate(run) for name, run in ours.items()}
            for form in ("lists", "arrays"):
                one = pool.submit(collate, form, their_steps).result()
                found[f"collator, rows as {form}, one process"] = one
            both = [pool.submit(collate, "lists", their_steps) for _ in range(2)]
            # Two workers, without sending the batches to a training process.
            found["collator, rows as lists, two processes"] = sum(f.result() for f in both)
            if turn:  # the first round warms up
                for name, value in found.items():
                    rates.setdefault(name, []).append(value)

    best_one = max(statistics.median(v) for k, v in rates.items() if k.endswith("one process"))
    print(f"{'':42s} {'M tokens/s':>10s} {'range':>13s} {'ratio':>6s}")
    for name, values in rates.items():
        middle = statistics.median(values)
        spread = f"{min(values):.1f}-{max(values):.1f}"
        print(f"{name:42s} {middle:10.1f} {spread:>13s} {middle / best_one:6.1f}")


if __name__ == "__main__":
    main()
