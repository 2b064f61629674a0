"""Held-out sentences with a masked word, and the predictions of a model."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bert_jax.data import counter_rng
from bert_jax.data.corpus.store import Corpus
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.data.tokenizer.words import begins_word, readable
from bert_jax.inference.fill_mask import forward_of, probabilities_of
from bert_jax.pretrained.load import LoadedCheckpoint, require_parts
from bert_jax_lab.probes.held_out import readable_sentences

# The key of the random numbers.
_DRAW = 0


@dataclass(frozen=True)
class HiddenWord:
    """A sentence with a mask, the masked word, and candidates, the best one first."""

    text: str
    word: str
    # (token, probability)
    candidates: tuple[tuple[str, float], ...]
    # Whether the first candidate is the word.
    is_right: bool


def hidden_words(
    source: LoadedCheckpoint,
    tokenizer: Tokenizer,
    corpus: Corpus,
    *,
    number: int = 8,
    top: int = 3,
) -> list[HiddenWord]:
    """Returns examples from documents at equal distances in the validation split, a fixed selection
    for each corpus. One randomly drawn whole word of each sentence is masked.

    Returns fewer than `number` if fewer documents have a sentence of readable length. Raises
    UsageError for a model without a masked-LM head.
    """
    require_parts(source, "mlm")
    forward, mask = forward_of(source), tokenizer.special.mask
    found = []
    for ids, place in drawn_words(tokenizer, corpus, number):
        # Encoding the text again may give other ids if a space is part of a token.
        asked = [*ids[:place], mask, *ids[place + 1 :]]
        (shares,) = probabilities_of(source, tokenizer, asked, forward=forward)
        best = np.argsort(-shares, kind="stable")[:top].tolist()
        candidates = zip(readable(tokenizer, best), shares[best].tolist(), strict=True)
        text = _with_mask(tokenizer, ids, place)
        word = tokenizer.decode([ids[place]]).strip()
        found.append(HiddenWord(text, word, tuple(candidates), best[0] == ids[place]))
    return found


def drawn_words(
    tokenizer: Tokenizer, corpus: Corpus, number: int
) -> Sequence[tuple[list[int], int]]:
    """Returns the ids of sentences, and the index of the masked word: one token of letters."""
    begins, found = begins_word(tokenizer), []
    is_whole = _is_whole(tokenizer, begins)
    for sentences in readable_sentences(corpus, 3 * number):
        for ids in sentences:
            if tokenizer.special.mask in ids:
                continue  # the text itself contains masks
            places = [i for i in range(len(ids) - 1) if is_whole[ids[i]] and begins[ids[i + 1]]]
            if places:
                drawn = counter_rng.bits(_DRAW, len(found))
                found.append((ids, places[int(counter_rng.randint(drawn, len(places))[0])]))
                break
        if len(found) == number:
            break
    return found


def _is_whole(tokenizer: Tokenizer, begins: np.ndarray) -> list[bool]:
    """Returns for each id whether it is a whole word of letters. Marks count as letters: the vowels
    of Hindi are marks.
    """
    special = vars(tokenizer.special).values()
    texts = [tokenizer.text_of(id_).strip() for id_ in range(tokenizer.vocab_size)]
    return [
        bool(begins[id_])
        and id_ not in special
        and text[:1].isalpha()
        and all(unicodedata.category(one)[0] in "LM" for one in text)
        for id_, text in enumerate(texts)
    ]


def _with_mask(tokenizer: Tokenizer, ids: list[int], place: int) -> str:
    """Returns the text of ids with the mask at one index, and with the spaces of the text."""
    text = tokenizer.decode(ids[:place]).rstrip()
    (mask,) = tokenizer.tokens([tokenizer.special.mask])
    hidden, after = readable(tokenizer, ids[place : place + 2])
    for token, part in ((hidden, mask), (after, tokenizer.decode(ids[place + 1 :]).lstrip())):
        has_space = tokenizer.kind == "wordpiece" or token.startswith("▁")
        text += " " + part if text and has_space else part
    return text
