"""Words whose embeddings point the same way: what a model finds alike, before any context.

Dims: V rows of the word embedding, D width, C candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bert_jax.data.corpus.store import Corpus
from bert_jax.data.sources.document import whole_characters
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.data.tokenizer.words import whole_words
from bert_jax.errors import UsageError
from bert_jax.pretrained.load import LoadedCheckpoint
from bert_jax_lab.probes.probe import Probe, ProbeResult

# Words that ordinary prose and technical documentation share.
WORDS = ("word", "number", "name", "line", "function", "value")


@dataclass(frozen=True)
class Neighbour:
    """A word of the vocabulary, and its cosine with the one that was asked for."""

    word: str
    cosine: float


def nearest_words(
    source: LoadedCheckpoint, tokenizer: Tokenizer, words: Sequence[str], *, top: int = 5
) -> dict[str, list[Neighbour]]:
    """Returns for each word the `top` nearest ones of the vocabulary, the nearest first.

    A word of several sub-words is the mean of theirs. Candidates are sub-words that begin a word
    and consist of letters alone. The mean of the candidates is taken off first: all embeddings of a
    trained model share a direction, which would make all cosines high (Mu & Viswanath 2018, "All-
    but-the-Top"). Raises UsageError for a word without sub-words.
    """
    table_VD = np.asarray(source.params["encoder"]["embeddings"]["word"]["embedding"], np.float32)
    by_id = whole_words(tokenizer)
    ids = np.array([id_ for id_, name in enumerate(by_id) if name], np.int64)
    names = [by_id[id_] for id_ in ids]
    if not len(ids):
        raise UsageError("the vocabulary has no whole words to choose from")
    mean_D = table_VD[ids].mean(axis=0)
    candidates_CD = _unit(table_VD[ids] - mean_D)
    found = {}
    for word in words:
        (pieces,) = tokenizer.encode_sentences([whole_characters(tokenizer.word_prefix + word)])
        if not pieces:
            raise UsageError(f"{word!r} has no sub-words")
        cosines_C = candidates_CD @ _unit(table_VD[pieces].mean(axis=0) - mean_D)
        # As the vocabulary has it: in lower case, and without accents, where it has none.
        own = by_id[pieces[0]] if len(pieces) == 1 else word
        best = [i for i in np.argsort(-cosines_C, kind="stable") if names[i] != own][:top]
        found[word] = [Neighbour(names[i], float(cosines_C[i])) for i in best]
    return found


def _unit(x: np.ndarray) -> np.ndarray:
    """Returns vectors of length 1; a vector of zeros stays."""
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


def _measure(
    source: LoadedCheckpoint, tokenizer: Tokenizer, corpus: Corpus | None
) -> list[ProbeResult]:
    return findings(source, tokenizer, WORDS)


def findings(
    source: LoadedCheckpoint, tokenizer: Tokenizer, words: Sequence[str]
) -> list[ProbeResult]:
    """Returns for each word the three nearest ones, as words."""
    found = nearest_words(source, tokenizer, words, top=3)
    return [
        ProbeResult(word, ", ".join(each.word for each in near)) for word, near in found.items()
    ]


PROBE = Probe(_measure)
