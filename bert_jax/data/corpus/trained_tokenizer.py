"""The tokenizer that is trained on a sample of the documents, now or by an interrupted run."""

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from bert_jax.data.corpus.request import Request
from bert_jax.data.language import marks
from bert_jax.data.language.sentences import sentences_of
from bert_jax.data.tokenizer.tokenizer import Tokenizer, load_tokenizer
from bert_jax.data.tokenizer.training import (
    train_byte_level_bpe,
    train_characters,
    train_sentencepiece,
    train_wordpiece,
)
from bert_jax.progress import note

# Words that may lose a mark: in English those of other languages, well below this.
_FEW_MARKED = 0.01


def train_or_find(
    request: Request,
    sample: Sequence[bytes],
    folder: Path,
    parts: Path,
    *,
    documents: int,
) -> Tokenizer:
    """Returns the tokenizer of a sample of so many `documents`, which is saved in `folder`.

    A file in `parts` says for which options and which sample the one that is there was trained.
    Where the request leaves accents open, the sample decides. Raises UsageError as training does.
    """
    kind, strip_accents = request.tokenizer, request.strip_accents
    key = hashlib.sha256(json.dumps(request.options, sort_keys=True).encode())
    for text in sample:
        key.update(hashlib.blake2b(text, digest_size=16).digest())
    marker = parts / f"tokenizer-{key.hexdigest()}"
    if marker.exists():
        return load_tokenizer(folder)

    size = sum(map(len, sample))
    note(
        f"train {kind} on {size / 1e6:.1f} MB of text "
        f"({len(sample):,} of {documents:,} training documents)"
    )
    sentences = [
        piece if kind == "bpe" else piece.lstrip(" ")
        for text in sample
        # In a text a word comes with the space before it, which byte-level BPE makes a part of it.
        for pieces in sentences_of(text.decode(), request.rules)
        for piece in pieces
    ]
    if strip_accents is None and kind == "wordpiece" and request.lowercase:
        strip_accents = _strips_accents(sentences)
    if kind == "bpe":
        trained = train_byte_level_bpe(sentences, vocab_size=request.vocab_size)
    elif kind == "characters":
        trained = train_characters(
            sentences, vocab_size=request.vocab_size, lowercase=request.lowercase
        )
    elif kind == "sentencepiece":
        trained = train_sentencepiece(
            sentences,
            vocab_size=request.vocab_size,
            lowercase=request.lowercase,
            strip_accents=bool(strip_accents),
        )
    else:
        trained = train_wordpiece(
            sentences,
            vocab_size=request.vocab_size,
            lowercase=request.lowercase,
            strip_accents=strip_accents,
        )
    forget(folder, parts)
    trained.save(folder)
    marker.touch()
    return trained


def _strips_accents(lines: Sequence[str]) -> bool:
    """Returns whether a vocabulary that lower-cases these lines strips their accents, too, as
    BERT's uncased ones do for English; where it does not, that is said.
    """
    found = marks.words(lines)
    if found.losing <= _FEW_MARKED * found.total:
        return True
    note(
        f"{found.losing / found.total:.1%} of the words have marks that lower-casing would strip "
        f"({', '.join(found.examples)}): they are kept; `strip_accents` yes strips them, as BERT's "
        "uncased vocabularies do"
    )
    return False


def forget(folder: Path, parts: Path) -> None:
    """Removes a tokenizer of an earlier request, and first what says that it is there."""
    for old in parts.glob("tokenizer-*"):
        old.unlink()
    shutil.rmtree(folder, ignore_errors=True)
