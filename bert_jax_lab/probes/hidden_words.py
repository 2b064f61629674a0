"""Held-out sentences with a hidden word, and what a model takes the word for."""

from collections.abc import Sequence
from dataclasses import dataclass

from bert_jax.data import counter_rng
from bert_jax.data.corpus.store import Corpus
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.data.tokenizer.words import begins_word
from bert_jax.inference.fill_mask import fill_mask, forward_of
from bert_jax.pretrained.load import LoadedCheckpoint
from bert_jax_lab.probes.held_out import readable_sentences

# Its key: other words than those of another draw.
_DRAW = 0


@dataclass(frozen=True)
class HiddenWord:
    """A sentence with a mask, the word that stands there, and candidates, the best first."""

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
    """Returns examples from documents at equal distances over the held-out split: always the same
    ones of a corpus. One whole word of each is hidden, drawn among its words as tokens are drawn to
    be masked: any is as likely as another, so that a model is right as often as it usually is.

    Fewer are returned where the split has fewer documents with a sentence of readable length.
    Raises UsageError for a model without a masked-LM head.
    """
    forward, mask = forward_of(source), tokenizer.tokens([tokenizer.special.mask])[0]
    found = []
    for ids, place in drawn_words(tokenizer, corpus, number):
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
        is_right = best[0][0] == tokenizer.tokens([ids[place]])[0]
        found.append(HiddenWord(text, word, best, is_right))
    return found


def drawn_words(
    tokenizer: Tokenizer, corpus: Corpus, number: int
) -> Sequence[tuple[list[int], int]]:
    """Returns ids of sentences, and which of them is hidden: a word of one sub-word of letters."""
    begins, found = begins_word(tokenizer), []
    for sentences in readable_sentences(corpus, 3 * number):
        for ids in sentences:
            names = tokenizer.tokens(ids)
            places = [
                i
                for i in range(len(ids) - 1)
                if begins[ids[i]] and begins[ids[i + 1]] and names[i].lstrip("▁Ġ").isalpha()
            ]
            if places:
                drawn = counter_rng.bits(_DRAW, len(found))
                found.append((ids, places[int(counter_rng.randint(drawn, len(places))[0])]))
                break
        if len(found) == number:
            break
    return found
