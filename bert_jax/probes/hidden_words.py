"""Held-out sentences with a hidden word, and what a model takes the word for."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bert_jax.data.corpus.store import Corpus
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.data.tokenizer.words import begins_word
from bert_jax.tasks.fill_mask import fill_mask, forward_of
from bert_jax.workdir.load import LoadedCheckpoint

# Sub-words of a sentence that is shown: enough to guess from, few enough to read.
_SHORTEST, _LONGEST = 8, 28


@dataclass(frozen=True)
class HiddenWord:
    """A sentence with a mask, the word that stands there, and candidates, the best first."""

    text: str
    word: str
    # (token, probability)
    candidates: tuple[tuple[str, float], ...]


def hidden_words(
    source: LoadedCheckpoint,
    tokenizer: Tokenizer,
    corpus: Corpus,
    *,
    number: int = 8,
    top: int = 3,
) -> list[HiddenWord]:
    """Returns examples from documents at equal distances over the held-out split: always the same
    ones of a corpus. One whole word of each is hidden, in the latter half of its sentence.

    Fewer are returned where the split has fewer documents with a sentence of readable length.
    Raises UsageError for a model without a masked-LM head.
    """
    forward, mask = forward_of(source), tokenizer.tokens([tokenizer.special.mask])[0]
    found = []
    for ids, place in _sentences(tokenizer, corpus, number):
        text = " ".join(
            part
            for part in (
                tokenizer.decode(ids[:place]),
                mask,
                tokenizer.decode(ids[place + 1 :]),
            )
            if part
        )
        if tokenizer.encode(text).count(tokenizer.special.mask) != 1:
            continue  # the text itself speaks of masks
        (candidates,) = fill_mask(source, tokenizer, text, top=top, forward=forward)
        word = tokenizer.decode([ids[place]]).strip()
        best = tuple((c.token, c.probability) for c in candidates)
        found.append(HiddenWord(text, word, best))
    return found


def _sentences(
    tokenizer: Tokenizer, corpus: Corpus, number: int
) -> Sequence[tuple[list[int], int]]:
    """Returns ids of sentences, and which of them is hidden: a word of one sub-word of letters."""
    split, begins = corpus.validation, begins_word(tokenizer)
    tokens = np.concatenate([np.asarray(shard) for shard in split.shards])
    documents = len(split.document_starts) - 1
    found = []
    for document in np.unique(np.linspace(0, documents - 1, 3 * number).astype(int)):
        first, end = split.document_starts[document : document + 2]
        for sentence in range(first, end):
            start, stop = split.sentence_starts[sentence : sentence + 2]
            ids = [int(id_) for id_ in tokens[start:stop]]
            if not _SHORTEST <= len(ids) <= _LONGEST:
                continue
            names = tokenizer.tokens(ids)
            places = [
                i
                for i in range(len(ids) // 2, len(ids) - 1)
                if begins[ids[i]] and begins[ids[i + 1]] and names[i].lstrip("▁Ġ").isalpha()
            ]
            if places:
                # A longer word says more than "the".
                found.append((ids, max(places, key=lambda i: len(names[i]))))
                break
        if len(found) == number:
            break
    return found
