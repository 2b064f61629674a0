"""Tells which tokens begin a word: one bit an id, for masks that take words whole."""

import numpy as np

from bert_jax.data.tokenizer import byte_level_bpe
from bert_jax.data.tokenizer.tokenizer import Tokenizer

# What the pieces of a tokenizer begin with, and whether that says that a word begins there or that
# it goes on: BERT's WordPiece; SentencePiece, also in the form of BPE; byte-level BPE, where white
# space of any kind belongs to the word after it.
_WORDPIECE, _SENTENCEPIECE = (("##",), False), (("▁",), True)
_BYTE_LEVEL = (byte_level_bpe.WHITE_SPACE, True)


def begins_word(tokenizer: Tokenizer) -> np.ndarray:
    """Returns bool `[vocab_size]`: true for the ids that begin a word, wherever they stand.

    The first token of a text begins one, too, which byte-level BPE writes without its mark.
    WordPiece cuts off punctuation and Chinese characters as words of their own; the others do not.
    """
    marks, begins = _WORDPIECE if tokenizer.kind == "wordpiece" else _SENTENCEPIECE
    if tokenizer.is_byte_level:
        marks, begins = _BYTE_LEVEL
    tokens = tokenizer.tokens(list(range(tokenizer.vocab_size)))
    return np.array([token.startswith(marks) == begins for token in tokens])
