"""The tokens that begin a word: one bit an id, for masks that take words whole."""

import unicodedata

import numpy as np

from bert_jax.data.language import scripts
from bert_jax.data.tokenizer import byte_level_bpe
from bert_jax.data.tokenizer.tokenizer import Tokenizer

# What the pieces of a tokenizer begin with, and whether that says that a word begins there or that
# it goes on: BERT's WordPiece; SentencePiece, also in the form of BPE; byte-level BPE, where white
# space of any kind belongs to the word after it.
_WORDPIECE, _SENTENCEPIECE = (("##",), False), (("▁",), True)
_BYTE_LEVEL = (byte_level_bpe.WHITE_SPACE, True)


# Of the tokens: text in other scripts that quotes such letters is masked as it always was.
_FEW = 0.01


def is_by_piece(tokenizer: Tokenizer, token_counts: np.ndarray) -> bool:
    """Returns whether a text, whose ids occur so often (int64 `[vocab_size]`), is in a script
    without spaces, so that its pieces are taken for words.
    """
    differs = begins_word(tokenizer) != begins_word(tokenizer, by_piece=False)
    return bool(token_counts[differs].sum() > _FEW * token_counts.sum())


def begins_word(tokenizer: Tokenizer, *, by_piece: bool = True) -> np.ndarray:
    """Returns bool `[vocab_size]`: true for the ids that begin a word, wherever they stand.

    The first token of a text begins one, too, which byte-level BPE writes without its mark.
    WordPiece cuts off punctuation and Chinese characters as words of their own; the others do not,
    so that a word would be a sentence in scripts without spaces. There each piece is a word,
    `by_piece`, if it begins with a letter. (Words of Thai in WordPiece are as long as its runs.)
    """
    marks, begins = _WORDPIECE if tokenizer.kind == "wordpiece" else _SENTENCEPIECE
    if tokenizer.is_byte_level:
        marks, begins = _BYTE_LEVEL
    ids = list(range(tokenizer.vocab_size))
    tokens = tokenizer.tokens(ids)
    found = np.array([token.startswith(marks) == begins for token in tokens])
    if by_piece and tokenizer.kind != "wordpiece":
        texts = [tokenizer.decode([id_]) for id_ in ids] if tokenizer.is_byte_level else tokens
        first = [text[:1] or " " for text in texts]
        is_letter = np.array([unicodedata.category(one) not in ("Mn", "Mc") for one in first])
        found |= is_letter & scripts.is_spaceless(scripts.points("".join(first)))
    return found
