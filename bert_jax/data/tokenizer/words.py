"""Finds the tokens that begin a word, for whole-word masking, and makes tokens readable."""

import unicodedata

import numpy as np

from bert_jax.data.language import scripts
from bert_jax.data.tokenizer.tokenizer import Tokenizer

# A smaller share of letters in scripts without spaces is treated as quotations.
_FEW = 0.01


def is_by_piece(tokenizer: Tokenizer, token_counts: np.ndarray) -> bool:
    """Returns whether a text is in a script without spaces, so that each piece counts as a word.
    `token_counts` (int64 `[vocab_size]`) is the number of occurrences of each id in the text.
    """
    differs = begins_word(tokenizer) != begins_word(tokenizer, by_piece=False)
    return bool(token_counts[differs].sum() > _FEW * token_counts.sum())


def begins_word(tokenizer: Tokenizer, *, by_piece: bool = True) -> np.ndarray:
    """Returns bool `[vocab_size]`: true for the ids that begin a word, at any position.

    The first token of a text also begins a word; byte-level BPE writes it without a mark. If names
    do not show word starts (`probe.NO_MARKS`), each token is a word. In WordPiece, punctuation and
    Chinese characters are separate words. In the other tokenizers they are not, so that a sentence
    in a script without spaces would be one word; `by_piece` counts each of its pieces that begins
    with a letter as a word. (In WordPiece, Thai words are as long as the runs of letters.)
    """
    ids = list(range(tokenizer.vocab_size))
    tokens = tokenizer.tokens(ids)
    found = np.array([*map(tokenizer.word_marks.begin, tokens)])
    if by_piece and tokenizer.kind != "wordpiece":
        texts = [tokenizer.decode([id_]) for id_ in ids] if tokenizer.is_byte_level else tokens
        first = [text[:1] or " " for text in texts]
        is_letter = np.array([unicodedata.category(one) not in ("Mn", "Mc") for one in first])
        found |= is_letter & scripts.is_spaceless(scripts.points("".join(first)))
    return found


def readable(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Returns readable tokens of ids: byte-level tokens as their text, with "▁" for each space; the
    vocabulary's name for special tokens and for parts of a character.
    """
    names = tokenizer.tokens(ids)
    if not tokenizer.is_byte_level:
        return names
    texts = [tokenizer.decode([id_]).replace(" ", "▁") for id_ in ids]
    return [
        text if text and "\ufffd" not in text else name
        for text, name in zip(texts, names, strict=True)
    ]
