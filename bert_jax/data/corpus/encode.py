"""The second pass over a unit: encodes its documents in pieces of a few megabytes.

The name of a piece is the hash of everything that decides its content: documents, tokenizer,
segmenter, format. A file with this name has the right content and is complete.
"""

import contextlib
import hashlib
import io
import json
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bert_jax.data.corpus.decide import Fate, decided_of, parts_of
from bert_jax.data.corpus.folder import Folder
from bert_jax.data.corpus.job import Job, Unit
from bert_jax.data.corpus.look import Found
from bert_jax.data.corpus.store import FORMAT_VERSION, SPLITS, token_type
from bert_jax.data.corpus.vocabulary import SharedTokenizer, loaded
from bert_jax.data.language import marks
from bert_jax.data.language.codes import DEFAULT
from bert_jax.data.language.sentences import sentences_of
from bert_jax.data.pool import count, offer
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import DataDamaged, UsageError

# Sentences per call of the tokenizer, which needs hundreds of bytes per token while it runs.
_SENTENCES_PER_CALL = 1024
# The version of the rules that put a space before sentences.
SPACE_RULES = 2
_ARRAYS = ("tokens", "sentences", "documents")


class Piece(NamedTuple):
    """Encoded documents of one unit and one part. Pieces sort in the order of the corpus."""

    split: str
    part: int
    unit: int
    key: str
    tokens: int


class _Texts(NamedTuple):
    """Documents of one unit and one part, and the key of their piece."""

    split: str
    part: int
    key: str
    documents: list[bytes]
    is_last: bool  # of the unit


@dataclass(frozen=True)
class EncodedPart:
    """The content of a piece. Sentences and documents without tokens are omitted."""

    tokens: np.ndarray  # uint16 or uint32 [tokens]
    sentences: np.ndarray  # tokens of each sentence, uint32 [sentences]
    documents: np.ndarray  # sentences of each document, uint32 [documents]
    words: int  # separated by white space, in the documents with tokens
    empty_documents: int
    stripped_marks: int  # removed from letters by the tokenizer

    def save(self, folder: Folder, key: str) -> None:
        """Writes the file of a piece."""
        counts = [self.words, self.empty_documents, self.stripped_marks]
        arrays = {each: getattr(self, each) for each in _ARRAYS}
        with folder.writing(piece_file(key)) as stream:
            np.savez(stream, counts=np.array(counts), **arrays)


def encode(
    job: Job, number: int, unit: Unit, begun: Iterable[Sequence[int]], of: SharedTokenizer
) -> Iterator[Piece]:
    """Encodes the kept documents of a unit, except for pieces that exist already.

    Idle processes also encode pieces of this unit. Raises UsageError for a unit that changed since
    the first pass.
    """
    (before,) = begun
    for texts in _texts_by_piece(job, number, unit, before, of):
        if (encoded := _encoded_before(job.pieces, texts.key)) is not None:
            count(len(texts.documents), 0, len(texts.documents))
            yield Piece(texts.split, texts.part, number, texts.key, len(encoded.tokens))
        elif texts.is_last or not offer(encode_piece, number, texts, of):
            yield from encode_piece(job, number, texts, of)


def encode_piece(job: Job, unit: int, texts: _Texts, of: SharedTokenizer) -> list[Piece]:
    """Encodes the documents of a piece."""
    tokenizer = loaded(job.tokenizer, of)
    encoded = encode_documents(texts.documents, tokenizer, language=job.options.rules)
    encoded.save(job.pieces, texts.key)
    count(len(texts.documents), len(encoded.tokens))
    return [Piece(texts.split, texts.part, unit, texts.key, len(encoded.tokens))]


def _texts_by_piece(
    job: Job, number: int, unit: Unit, begun: Sequence[int], of: SharedTokenizer
) -> Iterator[_Texts]:
    found, decided = Found.load(job, number), decided_of(job, number)
    parts = parts_of(job, found, decided, begun)
    last = max((at for of_split in parts.values() for at in of_split), default=-1)
    decisive = json.dumps(
        [FORMAT_VERSION, job.versions["sentencex"], SPACE_RULES, of.hash, job.options.rules]
    ).encode()
    texts: dict[str, list[bytes]] = {split: [] for split in SPLITS}
    digests: dict[str, list[bytes]] = {split: [] for split in SPLITS}
    all_digests, at = hashlib.sha256(), -1
    splits, is_kept = decided["split"].tolist(), (decided["fate"] == Fate.KEPT).tolist()
    for at, text in enumerate(unit.texts(found.findings.files)):
        digest = hashlib.blake2b(text, digest_size=16).digest()
        all_digests.update(digest)
        if at >= len(splits):
            break
        if is_kept[at]:
            split = SPLITS[splits[at]]
            texts[split].append(text)
            digests[split].append(digest)
            if (part := parts[split].get(at)) is not None:
                key = hashlib.blake2b(decisive + b"".join(digests[split]), digest_size=16)
                yield _Texts(split, part, key.hexdigest(), texts[split], at == last)
                texts[split], digests[split] = [], []
    if at + 1 != len(splits) or all_digests.digest() != found.digest:
        names = ", ".join(reader.name for reader in unit.readers[:3])
        raise UsageError(f"{names}: changed while they were read; run the same command again")
    count(len(splits) - sum(is_kept))


# --- the files of pieces --------------------------------------------------------------------------


def piece_file(key: str) -> str:
    """Returns the name of the file of a piece."""
    return f"{key}.npz"


def _encoded_before(pieces: Folder, key: str) -> EncodedPart | None:
    """Returns a piece of an earlier attempt; None if the piece is missing or damaged."""
    with contextlib.suppress(DataDamaged):
        return read_piece(pieces, key) if pieces.has(piece_file(key)) else None
    return None


def read_piece(pieces: Folder, key: str) -> EncodedPart:
    """Raises DataDamaged, and removes the file, if a piece differs from its checksums."""
    data = io.BytesIO(pieces.read(piece_file(key)))
    try:
        with np.load(data, allow_pickle=False) as arrays:
            words, empty_documents, stripped_marks = map(int, arrays["counts"])
            tokens, sentences, documents = (arrays[name] for name in _ARRAYS)
    except (zipfile.BadZipFile, ValueError, EOFError, KeyError, RuntimeError) as error:
        pieces.remove([piece_file(key)])
        raise DataDamaged(
            f"{pieces}/{piece_file(key)} was damaged and is now removed: run the same command again"
        ) from error
    return EncodedPart(tokens, sentences, documents, words, empty_documents, stripped_marks)


# --- documents ------------------------------------------------------------------------------------


def encode_documents(
    texts: Iterable[bytes], tokenizer: Tokenizer, *, language: str = DEFAULT
) -> EncodedPart:
    """Splits texts into sentences, by the rules of `language`, and encodes the sentences.

    `texts` are UTF-8 with newlines between paragraphs. If ids depend on the space before a word,
    each sentence is encoded with its space in running text, or without a space if the text has
    none, as in Chinese.
    """
    sentences: list[str] = []
    joined: list[bool] = []  # whether no space separates the sentence from the one before it
    sentence_counts: list[int] = []
    words: list[int] = []
    stripped_marks = 0
    for text in texts:
        before = len(sentences)
        decoded = text.decode()
        for pieces in sentences_of(decoded, language):
            for piece in pieces:
                has_space = piece[0] == " "
                joined.append(not has_space and len(sentences) > before)
                sentences.append(tokenizer.word_prefix + piece[1:] if has_space else piece)
        sentence_counts.append(len(sentences) - before)
        words.append(len(text.split()))
        if tokenizer.strips_accents and not text.isascii():
            stripped_marks += marks.lost(decoded)

    dtype = token_type(tokenizer.vocab_size)
    tokens, lengths = [np.empty(0, dtype)], [np.empty(0, np.uint32)]
    for start in range(0, len(sentences), _SENTENCES_PER_CALL):
        end = start + _SENTENCES_PER_CALL
        ids, counts = tokenizer.encode_running_text(sentences[start:end], joined[start:end])
        lengths.append(counts.astype(np.uint32))
        tokens.append(ids.astype(dtype))

    sentence_lengths = np.concatenate(lengths)
    document_of = np.repeat(np.arange(len(words)), sentence_counts)[sentence_lengths > 0]
    documents = np.bincount(document_of, minlength=len(words)).astype(np.uint32)
    return EncodedPart(
        tokens=np.concatenate(tokens),
        sentences=sentence_lengths[sentence_lengths > 0],
        documents=documents[documents > 0],
        words=int(np.array(words, np.int64)[documents > 0].sum()),
        empty_documents=int((documents == 0).sum()),
        stripped_marks=stripped_marks,
    )
