"""Held-out sentences that one can read: always the same ones of a corpus."""

from collections.abc import Iterator

import numpy as np

from bert_jax.data.corpus.store import Corpus

# Sub-words of a sentence: enough to guess from, few enough to read.
_SHORTEST, _LONGEST = 8, 28


def readable_sentences(corpus: Corpus, documents: int) -> Iterator[list[list[int]]]:
    """Yields the ids of the sentences of readable length, document by document: so many documents,
    at equal distances over the held-out split, or all that it has.
    """
    split = corpus.validation
    last = len(split.document_starts) - 2
    for document in np.unique(np.linspace(0, last, documents).astype(int)):
        first, end = split.document_starts[document : document + 2]
        sentences = map(split.sentence, range(first, end))
        yield [ids.tolist() for ids in sentences if _SHORTEST <= len(ids) <= _LONGEST]
