"""Corpora made from NumPy arrays, without files."""

import numpy as np

from bert_jax.data import counter_rng
from bert_jax.data.corpus.store import Split
from bert_jax.data.tokenizer.tokenizer import SpecialIds

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
FIRST_WORD = 5  # ids below it are special


def split_from_lengths(
    sentence_lengths: np.ndarray,
    document_sentences: np.ndarray,
    *,
    vocab_size: int | None = 1000,
    num_shards: int = 1,
) -> Split:
    """A split of the given shape with random words; documents are dealt to shards evenly."""
    sentence_starts = np.concatenate([[0], np.cumsum(sentence_lengths)]).astype(np.int64)
    document_starts = np.concatenate([[0], np.cumsum(document_sentences)]).astype(np.int64)
    index = np.arange(sentence_starts[-1])
    if vocab_size is None:  # every token of the split is unlike every other
        tokens = (FIRST_WORD + index).astype(np.uint32)
    else:
        words = counter_rng.randint(counter_rng.bits(99, index), vocab_size - FIRST_WORD)
        tokens = (FIRST_WORD + words).astype(np.uint16)
    cuts = np.linspace(0, document_starts.size - 1, num_shards + 1).astype(np.int64)
    shard_starts = sentence_starts[document_starts[cuts]]
    shards = tuple(np.split(tokens, shard_starts[1:-1]))
    return Split(
        name="train",
        shards=shards,
        shard_starts=shard_starts,
        sentence_starts=sentence_starts,
        document_starts=document_starts,
    )


def random_split(
    num_documents: int, *, seed: int = 0, mean_sentences: float = 12, mean_tokens: float = 20, **kw
) -> Split:
    """Documents and sentences of geometric sizes, from 1 sentence and 1 token up."""
    document_sentences = _geometric(num_documents, mean_sentences, seed)
    lengths = _geometric(int(document_sentences.sum()), mean_tokens, seed + 1)
    return split_from_lengths(lengths, document_sentences, **kw)


def _geometric(size: int, mean: float, seed: int) -> np.ndarray:
    uniform = 1 - counter_rng.uniform(counter_rng.bits(seed, np.arange(size)))
    return 1 + np.floor(np.log(uniform) / np.log1p(-1 / mean)).astype(np.int64)
