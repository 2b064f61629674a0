"""The tokenizer that is trained on a sample of the documents, now or by an interrupted run."""

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax.data.corpus.dedup import SourceDocument
from bert_jax.data.language.sentences import split_sentences
from bert_jax.data.tokenizer import accents
from bert_jax.data.tokenizer.tokenizer import Tokenizer, load_tokenizer
from bert_jax.data.tokenizer.training import (
    train_byte_level_bpe,
    train_sentencepiece,
    train_wordpiece,
)
from bert_jax.progress import note

KINDS = ("wordpiece", "sentencepiece", "bpe")


def train_or_find(
    kind: str,
    sample: Sequence[SourceDocument],
    folder: Path,
    parts: Path,
    *,
    vocab_size: int,
    lowercase: bool,
    strip_accents: bool | None,
    language: str,
    options: dict[str, Any],
    documents: int,
) -> Tokenizer:
    """Returns the tokenizer of a sample, which is saved in `folder`.

    A file in `parts` says for which `options` and which sample the one that is there was trained.
    `strip_accents` None leaves it to the sample, which is of so many `documents`. Raises
    UsageError as training does.
    """
    key = hashlib.sha256(json.dumps(options, sort_keys=True).encode())
    for document in sample:
        key.update(document.digest)
    marker = parts / f"tokenizer-{key.hexdigest()}"
    if marker.exists():
        return load_tokenizer(folder)

    size = sum(len(document.text) for document in sample)
    note(
        f"train {kind} on {size / 1e6:.1f} MB of text "
        f"({len(sample):,} of {documents:,} training documents)"
    )
    # In a text a word comes with the space before it, which byte-level BPE makes a part of it.
    before = " " if kind == "bpe" else ""
    sentences = [
        before + sentence
        for document in sample
        for paragraph in document.text.decode().split("\n")
        for sentence in split_sentences(paragraph, language)
    ]
    if strip_accents is None and kind == "wordpiece" and lowercase:
        strip_accents = accents.decide(sentences)
    if kind == "bpe":
        trained = train_byte_level_bpe(sentences, vocab_size=vocab_size)
    elif kind == "sentencepiece":
        trained = train_sentencepiece(
            sentences,
            vocab_size=vocab_size,
            lowercase=lowercase,
            strip_accents=bool(strip_accents),
        )
    else:
        trained = train_wordpiece(
            sentences, vocab_size=vocab_size, lowercase=lowercase, strip_accents=strip_accents
        )
    forget(folder, parts)
    trained.save(folder)
    marker.touch()
    return trained


def forget(folder: Path, parts: Path) -> None:
    """Removes a tokenizer of an earlier request, and first what says that it is there."""
    for old in parts.glob("tokenizer-*"):
        old.unlink()
    shutil.rmtree(folder, ignore_errors=True)
