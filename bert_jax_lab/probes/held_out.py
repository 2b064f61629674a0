"""Held-out sentences of readable length: a fixed selection for each corpus."""

from collections.abc import Iterator

import numpy as np

from bert_jax.data.corpus.store import Corpus

# Tokens per sentence: enough context to predict a word, few enough to read.
_SHORTEST, _LONGEST = 8, 28


def readable_sentences(corpus: Corpus, documents: int) -> Iterator[list[list[int]]]:
    """Yields the ids of a document's sentences of readable length. The documents are `documents`
    documents at equal distances in the validation split, or all of them if there are fewer.
    """
    split = corpus.validation
    last = len(split.document_starts) - 2
    for document in np.unique(np.linspace(0, last, documents).astype(int)):
        first, end = split.document_starts[document : document + 2]
        sentences = map(split.sentence, range(first, end))
        yield [ids.tolist() for ids in sentences if _SHORTEST <= len(ids) <= _LONGEST]
