"""Tells which tokens begin a word: one bit an id, for masks that take words whole."""

import numpy as np

from bert_jax.data.tokenizer.tokenizer import Tokenizer

# Kind of a tokenizer -> what its pieces begin with, and whether that says that a word begins there
# or that it goes on (BERT's WordPiece; SentencePiece; RoBERTa's byte-level BPE).
_MARKS = {"wordpiece": ("##", False), "sentencepiece": ("▁", True), "bpe": ("Ġ", True)}


def begins_word(tokenizer: Tokenizer) -> np.ndarray:
    """Returns bool `[vocab_size]`: true for the ids that begin a word, wherever they stand.

    The first token of a text begins one, too, which byte-level BPE writes without its mark.
    WordPiece cuts off punctuation and Chinese characters as words of their own; the others do not.
    """
    mark, begins = _MARKS[tokenizer.kind]
    tokens = tokenizer.tokens(list(range(tokenizer.vocab_size)))
    return np.array([token.startswith(mark) == begins for token in tokens])
