"""Measures, in a short time, how many rows a second one thread of this machine makes."""

import time
from dataclasses import replace

import numpy as np

from bert_jax.config import DataConfig, PhaseConfig
from bert_jax.data import counter_rng
from bert_jax.data.corpus.store import Split
from bert_jax.data.pretraining.pipeline import Pipeline
from bert_jax.data.tokenizer.tokenizer import SpecialIds, Vocabulary
from bert_jax.registry import OBJECTIVES

_SPECIAL = SpecialIds(pad=0, unk=100, cls=101, sep=102, mask=103)
_TOKENS, _SENTENCE, _DOCUMENT = 400_000, 20, 12  # in all; tokens a sentence, sentences a document
_ROWS = 64
_SECONDS = 0.5


def rows_per_second(
    phase: PhaseConfig, *, objective: str, data: DataConfig, vocab_size: int
) -> float:
    """Returns the rate of `batch_at` in one thread, measured for half a second on an invented
    corpus in memory: `batch_at`, one thread.

    A real corpus is memory-mapped and mostly not in a cache, so it is somewhat slower; several
    threads (`data.num_workers`) are faster. `benchmarks/pipeline_throughput.py` is the long form.
    """
    phase = replace(phase, global_batch_size=_ROWS, steps=10**9)
    pipeline = Pipeline(
        _invented_split(vocab_size),
        collator=OBJECTIVES[objective],
        # One token in four goes on with a word.
        vocabulary=Vocabulary(_SPECIAL, vocab_size, np.arange(vocab_size) % 4 != 0),
        options=data,
        phases=(phase,),
        seed=0,
    )
    pipeline.batch_at(0, range(_ROWS))  # plans the epoch
    began, steps = time.perf_counter(), 0
    while (seconds := time.perf_counter() - began) < _SECONDS:
        steps += 1
        pipeline.batch_at(steps, range(_ROWS))
    return steps * _ROWS / seconds


def _invented_split(vocab_size: int) -> Split:
    sentences = _TOKENS // _SENTENCE
    low = min(1000, vocab_size // 2)
    ids = low + counter_rng.randint(counter_rng.bits(1, np.arange(_TOKENS)), vocab_size - low)
    sentence_starts = np.arange(0, _TOKENS + 1, _SENTENCE)
    document_starts = np.append(np.arange(0, sentences, _DOCUMENT), sentences)
    return Split(
        name="train",
        shards=(ids.astype(np.uint32),),
        shard_starts=np.array([0, _TOKENS]),
        sentence_starts=sentence_starts,
        document_starts=document_starts,
    )
