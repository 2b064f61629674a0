"""Held-out sentences with a masked word, and the predictions of a model."""

import unicodedata
from typing import Any

import numpy as np

from bert_jax.data.corpus.store import Corpus
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.data.tokenizer.words import begins_word, readable
from bert_jax.inference.fill_mask import forward_of, probabilities_of
from bert_jax.pretrained.load import LoadedCheckpoint, require_parts
from bert_jax_lab.probes.held_out import readable_sentences


def hidden_words(
    source: LoadedCheckpoint,
    tokenizer: Tokenizer,
    corpus: Corpus,
    *,
    number: int = 8,
    top: int = 3,
) -> list[dict[str, Any]]:
    """Returns examples from documents at equal distances in the validation split, a fixed selection
    for each corpus. One whole word of each sentence is masked.

    Each has the `text` with the mask, the masked `word`, the `candidates`, pairs of a token and its
    probability, best first, and whether the first one `is_right`. Returns fewer than `number` if
    fewer documents have a sentence of readable length. Raises UsageError for a model without a
    masked-LM head.
    """
    require_parts(source, "mlm")
    forward, mask = forward_of(source), tokenizer.special.mask
    begins, found = begins_word(tokenizer), []
    for sentences in readable_sentences(corpus, 3 * number):
        places = ((ids, _whole_words(tokenizer, begins, ids)) for ids in sentences)
        ids, words = next(((ids, words) for ids, words in places if words), ([], []))
        if not words or len(found) == number:
            continue
        place = words[len(words) // 2]
        # Encoding the text again may give other ids if a space is part of a token.
        asked = [*ids[:place], mask, *ids[place + 1 :]]
        (shares,) = probabilities_of(source, tokenizer, asked, forward=forward)
        best = np.argsort(-shares, kind="stable")[:top].tolist()
        candidates = zip(readable(tokenizer, best), shares[best].tolist(), strict=True)
        found.append(
            {
                "text": _with_mask(tokenizer, ids, place),
                "word": tokenizer.decode([ids[place]]).strip(),
                "candidates": [*candidates],
                "is_right": best[0] == ids[place],
            }
        )
    return found


def _whole_words(tokenizer: Tokenizer, begins: np.ndarray, ids: list[int]) -> list[int]:
    """Returns the indices of the words of letters that are one token. Marks count as letters: the
    vowels of Hindi are marks.
    """
    if tokenizer.special.mask in ids:
        return []  # the text itself contains masks
    texts = [tokenizer.text_of(id_).strip() for id_ in ids]
    return [
        place
        for place, text in enumerate(texts[:-1])
        if begins[ids[place]]
        and begins[ids[place + 1]]
        and text[:1].isalpha()
        and all(unicodedata.category(one)[0] in "LM" for one in text)
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
