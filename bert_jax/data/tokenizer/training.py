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


def train_tokenizer(
    kind: str,
    texts: Iterable[str],
    *,
    vocab_size: int,
    lowercase: bool = False,
    strip_accents: bool | None = None,
) -> Tokenizer:
    """Returns a vocabulary of at most `vocab_size` tokens; SentencePiece has exactly as many.

    `kind` is "wordpiece", "sentencepiece", "bpe" (in the layout of RoBERTa, always cased) or
    "characters" (the most frequent ones). `strip_accents` is for WordPiece; None strips accents if
    it lower-cases. In byte-level BPE the space before a word inside a text is part of the word. For
    characters, a space is a token if a text contains white space between other characters;
    otherwise white space is dropped.

    The same texts give the same files for any number of threads; for SentencePiece, given one build
    of the library. The texts are held in memory. Raises `UsageError` if the texts are empty, or
    `vocab_size` does not suit them.
    """
    lines = [text for text in texts if text.strip()]
    if not lines:
        raise UsageError("no text to train a vocabulary on")
    if kind == "bpe":
        backend = byte_level_bpe.train(lines, vocab_size=vocab_size)
    elif kind == "characters":
        backend = characters.train(lines, vocab_size=vocab_size, lowercase=lowercase)
    elif kind == "sentencepiece":
        model = sentencepiece_model.train(lines, vocab_size=vocab_size, lowercase=lowercase)
        backend = sentencepiece_model.convert(model, source="trained model")
    else:
        settings: dict[str, Any] = {
            "lowercase": lowercase,
            "strip_accents": None if strip_accents == lowercase else strip_accents,
            "cuts_runs": wordpiece_model.has_long_runs(lines),
        }
        tokens = wordpiece_model.train(lines, vocab_size=vocab_size, **settings)
        backend = wordpiece_model.build({t: i for i, t in enumerate(tokens)}, **settings)
    return Tokenizer(backend, source="trained vocabulary")
