"""The tokens that begin a word, one bit an id, for masks that take words whole; and how to read
tokens.
"""

import unicodedata

import numpy as np

from bert_jax.data.language import scripts
from bert_jax.data.tokenizer.tokenizer import Tokenizer

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

    The first token of a text begins a word as well; byte-level BPE writes it without a mark. Where
    names do not show it (`probe.NO_MARKS`), each token is a word. WordPiece makes punctuation and
    Chinese characters separate words; the others do not, so that a word would be a sentence in
    scripts without spaces. There each piece is a word, `by_piece`, if it begins with a letter.
    (Words of Thai in WordPiece are as long as its runs.)
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


def whole_words(tokenizer: Tokenizer) -> list[str]:
    """Returns for each id the word that it writes; nothing for one that is part of a word, special,
    or not of letters alone. Marks count with their letters: the vowels of Hindi are marks.
    """
    ids, special = list(range(tokenizer.vocab_size)), {*vars(tokenizer.special).values()}
    texts = [tokenizer.text_of(id_).strip() for id_ in ids]
    begins = begins_word(tokenizer)
    return [
        text if begins[id_] and id_ not in special and _is_word(text) else ""
        for id_, text in zip(ids, texts, strict=True)
    ]


def _is_word(text: str) -> bool:
    return text[:1].isalpha() and all(unicodedata.category(one)[0] in "LM" for one in text)


def readable(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Returns the tokens of ids. A byte-level one is its text, with "▁" for each space; where that
    is no whole character, or the token is special, as the vocabulary has it.
    """
    names = tokenizer.tokens(ids)
    if not tokenizer.is_byte_level:
        return names
    texts = [tokenizer.decode([id_]).replace(" ", "▁") for id_ in ids]
    return [
        text if text and "\ufffd" not in text else name
        for text, name in zip(texts, names, strict=True)
    ]
