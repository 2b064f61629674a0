"""Trains vocabularies from text."""

from collections.abc import Iterable
from typing import Any

from bert_jax.data.tokenizer import (
    byte_level_bpe,
    characters,
    sentencepiece_model,
    wordpiece_model,
)
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UsageError


def train_wordpiece(
    texts: Iterable[str], *, vocab_size: int, lowercase: bool, strip_accents: bool | None = None
) -> Tokenizer:
    """Returns a WordPiece vocabulary of at most `vocab_size` tokens (fewer if the text does not
    have more).

    The same texts give the same files for any number of threads. The texts are held in memory.
    `strip_accents` None strips accents if text is lower-cased. Raises `UsageError` if the texts are
    empty or have more characters than `vocab_size` allows.
    """
    lines = _non_empty(texts)
    settings: dict[str, Any] = {
        "lowercase": lowercase,
        "strip_accents": None if strip_accents == lowercase else strip_accents,
        "cuts_runs": wordpiece_model.has_long_runs(lines),
    }
    tokens = wordpiece_model.train(lines, vocab_size=vocab_size, **settings)
    vocab = {token: i for i, token in enumerate(tokens)}
    return Tokenizer(wordpiece_model.build(vocab, **settings), source="trained vocabulary")


def train_sentencepiece(
    texts: Iterable[str], *, vocab_size: int, lowercase: bool, strip_accents: bool = False
) -> Tokenizer:
    """Returns a SentencePiece unigram vocabulary of exactly `vocab_size` tokens.

    Reproducible like `train_wordpiece`, given one build of the library. Raises `UsageError` if the
    texts are empty, or `vocab_size` is too large or too small for them.
    """
    model = sentencepiece_model.train(
        _non_empty(texts), vocab_size=vocab_size, lowercase=lowercase, strip_accents=strip_accents
    )
    backend = sentencepiece_model.convert(model, source="trained model")
    if strip_accents:
        backend.normalizer = sentencepiece_model.stripping(backend.normalizer)
    return Tokenizer(backend, source="trained model")


def train_byte_level_bpe(texts: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """Returns a byte-level BPE vocabulary of at most `vocab_size` tokens, laid out as RoBERTa's.

    Reproducible like `train_wordpiece`. Texts are not stripped: the space before a word inside a
    text is part of the word. Raises `UsageError` if the texts are empty, or `vocab_size` is too
    small.
    """
    backend = byte_level_bpe.train(_non_empty(texts), vocab_size=vocab_size)
    return Tokenizer(backend, source="trained vocabulary")


def train_characters(
    texts: Iterable[str], *, vocab_size: int, lowercase: bool = False
) -> Tokenizer:
    """Returns a vocabulary of characters: the special tokens, then the most frequent characters of
    the texts, at most `vocab_size` tokens in all.

    Reproducible like `train_wordpiece`. A space is a token if a text contains white space between
    other characters; otherwise white space is dropped. Raises `UsageError` if the texts are empty.
    """
    backend = characters.train(_non_empty(texts), vocab_size=vocab_size, lowercase=lowercase)
    return Tokenizer(backend, source="trained vocabulary")


def _non_empty(texts: Iterable[str]) -> list[str]:
    lines = [text for text in texts if text.strip()]
    if not lines:
        raise UsageError("no text to train a vocabulary on")
    return lines
