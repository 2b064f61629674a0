"""The second reading of a unit: its documents, encoded in pieces of a few megabytes.

A piece is written under a name that is the hash of all that decides its content: documents,
tokenizer, segmenter, format. If the file is there, it is the right one, and whole.
"""

import contextlib
import errno
import functools
import hashlib
import json
import os
import shutil
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.corpus.dedup import Order
from bert_jax.data.corpus.pool import Pool, Task, count
from bert_jax.data.corpus.store import FORMAT_VERSION, SPLITS, Split, token_type
from bert_jax.data.corpus.survey import Unit, texts_of
from bert_jax.data.language import marks
from bert_jax.data.language.codes import DEFAULT
from bert_jax.data.language.sentences import sentences_of
from bert_jax.data.sources.document import whole_characters
from bert_jax.data.tokenizer.tokenizer import Tokenizer, load_tokenizer
from bert_jax.errors import DataDamaged, UsageError
from bert_jax.progress import Progress

# Sentences in one call of the tokenizer: while it runs, a token takes hundreds of bytes.
_SENTENCES_PER_CALL = 1024
# The rules by which sentences come with a space before them: a change of them has the next number.
SPACE_RULES = 2
_ASCII_SPACES = bytes(code for code in range(128) if chr(code).isspace())


@dataclass(frozen=True)
class Encoding:
    """The choices of encoding, for all units."""

    tokenizer: Path
    tokenizer_hash: str
    folder: Path  # of the pieces
    language: str = DEFAULT

    @property
    def decisive(self) -> bytes:
        """Returns what decides the content of a piece beside its documents."""
        others = [self.language] if self.language != DEFAULT else []
        counted = len(TextCounts._fields)
        versions = [
            FORMAT_VERSION,
            version("sentencex"),
            self.tokenizer_hash,
            counted,
            SPACE_RULES,
        ]
        return json.dumps([*versions, *others]).encode()

    @property
    def waiting(self) -> Path:
        """Returns the folder of texts that any process may encode."""
        return self.folder / "waiting"


class Piece(NamedTuple):
    """Documents of one unit and one part: where their ids are."""

    split: str
    part: int
    file: Path


@dataclass(frozen=True)
class EncodedPart:
    """The content of a piece's file. Sentences and documents that encode to nothing are gone."""

    tokens: np.ndarray  # uint16 or uint32 [tokens]
    sentences: np.ndarray  # tokens of each sentence, uint32 [sentences]
    documents: np.ndarray  # sentences of each document, uint32 [documents]
    words: int  # separated by white space, in the documents that are left
    empty_documents: int
    text: "TextCounts"


class TextCounts(NamedTuple):
    """Counts of all text of a part, and of what is lost of it."""

    characters: int = 0  # without white space
    unknown_characters: int = 0  # under an unknown token
    marks: int = 0  # that the tokenizer strips
    cut_sentences: int = 0  # longer than a sentence may be

    def __add__(self, other: Iterable[int]) -> "TextCounts":  # pyright: ignore
        return TextCounts(*(a + b for a, b in zip(self, other, strict=True)))


class Texts(NamedTuple):
    """Documents of one unit and one part, and the name that their piece has."""

    split: str
    part: int
    key: str
    documents: list[bytes]


def texts_by_piece(encoding: Encoding, unit: Unit, order: Order) -> Iterator[Texts]:
    """Yields the texts of a unit that are encoded, as they lie in its pieces.

    Raises UsageError where the unit is not what it was when it was looked through.
    """
    texts: dict[str, list[bytes]] = {split: [] for split in SPLITS}
    digests: dict[str, list[bytes]] = {split: [] for split in SPLITS}
    decisive, all_digests = encoding.decisive, hashlib.sha256()
    number = -1
    for number, text in enumerate(texts_of(unit)):
        digest = hashlib.blake2b(text, digest_size=16).digest()
        all_digests.update(digest)
        if number >= len(order.decisions):
            break
        if (decision := order.decisions[number]) < len(SPLITS):
            split = SPLITS[decision]
            texts[split].append(text)
            digests[split].append(digest)
            if (part := order.parts[split].get(number)) is not None:
                key = hashlib.blake2b(decisive + b"".join(digests[split]), digest_size=16)
                yield Texts(split, part, key.hexdigest(), texts[split])
                texts[split], digests[split] = [], []
    if number + 1 != len(order.decisions) or all_digests.digest() != order.digest:
        names = ", ".join(reader.name for reader in unit.readers[:3])
        raise UsageError(f"{names}: changed while they were read; run the same command again")


def encode_unit(encoding: Encoding, unit: Unit, order: Order, at_most_waiting: int) -> list[Piece]:
    """Makes sure that the pieces of a unit are on disk, or the texts of them in the folder of what
    waits for other processes, which has at most so many. Returns the pieces in order.
    """
    pieces: list[Piece] = []
    for split, part, key, texts in texts_by_piece(encoding, unit, order):
        piece = Piece(split, part, encoding.folder / f"{key}.npz")
        pieces.append(piece)
        if piece.file.exists():
            count(len(texts), 0, len(texts))
        elif at_most_waiting and len(os.listdir(encoding.waiting)) < at_most_waiting:
            packed = json.dumps([text.decode() for text in texts]).encode()
            _write(encoding.waiting / key, lambda stream, packed=packed: stream.write(packed))
        else:
            encode_to_file(encoding, texts, piece.file)
    return pieces


def encode_waiting(encoding: Encoding, file: Path) -> None:
    """Encodes the texts of a file that `encode_unit` has left to any process."""
    texts = [text.encode() for text in json.loads(file.read_bytes())]
    encode_to_file(encoding, texts, encoding.folder / f"{file.name.removesuffix('.taken')}.npz")
    file.unlink()


def encode_units(
    pool: Pool, units: Sequence[Unit], orders: Sequence[Order], total: int
) -> dict[str, list[list[Path]]]:
    """Makes sure that every piece is on disk, encoded as the pool's `shared` Encoding says. Returns
    the files of each part of either side.

    A process that has no unit left takes texts of another's, so that one large file is encoded by
    all of them.
    """
    encoding: Encoding = pool.shared
    shutil.rmtree(encoding.waiting, ignore_errors=True)
    encoding.waiting.mkdir(parents=True)
    files: dict[str, dict[int, list[Path]]] = {split: {} for split in SPLITS}
    started = time.monotonic()
    with Progress("prepare", total=total) as progress:

        def describe() -> str:
            seconds = time.monotonic() - started
            documents, tokens, kept = pool.counts
            return (
                f"{documents:,} documents ({(documents - kept) / seconds:,.0f}/s), "
                f"{tokens:,} tokens ({tokens / seconds:,.0f}/s)"
                + (f", {kept:,} documents from before" if kept else "")
            )

        def look() -> None:
            progress.advance(pool.counts[0] - progress.done)

        def jobs() -> Iterator[tuple[Any, ...]]:
            for unit, order in zip(units, orders, strict=True):
                # The last ones, beside which processes have nothing to do.
                shares = pool.workers > 1 and unit.number + pool.workers >= len(units)
                yield unit, order, 2 * pool.workers if shares else 0

        def waiting() -> Iterator[Task]:
            for entry in os.scandir(encoding.waiting):
                if not entry.name.endswith((".taken", ".tmp")):
                    taken = Path(f"{entry.path}.taken")
                    Path(entry.path).replace(taken)
                    yield encode_waiting, (taken,)

        progress.describe = describe
        for pieces in pool.map(
            encode_unit, jobs(), is_here=lambda job: job[0].is_here, more=waiting, look=look
        ):
            for piece in pieces:
                files[piece.split].setdefault(piece.part, []).append(piece.file)
        look()
    return {split: [*parts.values()] for split, parts in files.items()}


def read_part(file: Path) -> EncodedPart:
    """Raises DataDamaged, with the file removed, where it does not agree with its checksums."""
    with _sound(file), np.load(file, allow_pickle=False) as arrays:
        words, empty_documents, *text = map(int, arrays["counts"])
        return EncodedPart(
            arrays["tokens"],
            arrays["sentences"],
            arrays["documents"],
            words,
            empty_documents,
            TextCounts(*text),
        )


def tokens_of(file: Path) -> int:
    """Returns how many tokens a part has, of which it reads the beginning alone.

    Raises DataDamaged, with the file removed, where that is no part's.
    """
    with _sound(file), zipfile.ZipFile(file) as arrays, arrays.open("tokens.npy") as tokens:
        np.lib.format.read_magic(tokens)
        ((size,), _, _) = np.lib.format.read_array_header_1_0(tokens)
        return size


@contextlib.contextmanager
def _sound(file: Path) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, ValueError, EOFError, KeyError, RuntimeError, OSError) as error:
        # Of a place that is before the file's beginning, or a kind of packing, that nobody wrote.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        file.unlink(missing_ok=True)
        raise DataDamaged(
            f"{file} was damaged and is removed now: run the same command again"
        ) from error


def encode_documents(
    texts: Iterable[bytes], tokenizer: Tokenizer, *, language: str = DEFAULT
) -> EncodedPart:
    """Cuts texts into sentences, by the rules of `language`, and encodes those.

    `texts` are UTF-8, their paragraphs separated by newlines. Where the space before a word decides
    its ids, a sentence comes with the space that it has in running text, and without one that it
    has not, as in Chinese.
    """
    sentences: list[str] = []
    joined: list[bool] = []  # to the sentence before, without a space between them
    sentence_counts: list[int] = []
    words: list[int] = []
    characters = marks_lost = cut_sentences = 0
    strips_accents = tokenizer.strips_accents
    counts_cuts = tokenizer.kind != "characters"  # where each place is between two tokens
    for text in texts:
        before = len(sentences)
        decoded = text.decode()
        for pieces in sentences_of(decoded, language):
            cut_sentences += counts_cuts and len(pieces) > 1
            for piece in pieces:
                has_space = piece[0] == " "
                joined.append(not has_space and len(sentences) > before)
                sentences.append(tokenizer.word_prefix + piece[1:] if has_space else piece)
        sentence_counts.append(len(sentences) - before)
        words.append(len(text.split()))
        characters += (
            len(text.translate(None, _ASCII_SPACES))
            if text.isascii()
            else sum(map(len, decoded.split()))
        )
        if strips_accents and not text.isascii():
            marks_lost += marks.lost(decoded)

    dtype = token_type(tokenizer.vocab_size)
    tokens, lengths = [np.empty(0, dtype)], [np.empty(0, np.uint32)]
    unknown_characters = 0
    for start in range(0, len(sentences), _SENTENCES_PER_CALL):
        called = sentences[start : start + _SENTENCES_PER_CALL]
        ids, counts = tokenizer.encode_running_text(
            called, joined[start : start + _SENTENCES_PER_CALL]
        )
        lengths.append(counts.astype(np.uint32))
        tokens.append(ids.astype(dtype))
        # Few have any, and only for those the tokenizer has to say where its tokens stand.
        (unknown,) = np.nonzero(tokens[-1] == tokenizer.special.unk)
        which = np.unique(np.searchsorted(np.cumsum(lengths[-1]), unknown, side="right"))
        unknown_characters += tokenizer.unknown_characters([called[i] for i in which.tolist()])

    sentence_lengths = np.concatenate(lengths)
    document_of = np.repeat(np.arange(len(words)), sentence_counts)[sentence_lengths > 0]
    documents = np.bincount(document_of, minlength=len(words)).astype(np.uint32)
    return EncodedPart(
        tokens=np.concatenate(tokens),
        sentences=sentence_lengths[sentence_lengths > 0],
        documents=documents[documents > 0],
        words=int(np.array(words, np.int64)[documents > 0].sum()),
        empty_documents=int((documents == 0).sum()),
        text=TextCounts(characters, unknown_characters, marks_lost, cut_sentences),
    )


def split_of(
    texts: Sequence[str], tokenizer: Tokenizer, *, name: str, language: str = DEFAULT
) -> Split:
    """Returns documents in memory as one side of a corpus, as `open_corpus` returns those on disk.

    Paragraphs are separated by newlines. Documents without a token are left out.
    """
    encoded = encode_documents(
        (whole_characters(text).encode() for text in texts), tokenizer, language=language
    )

    def starts(lengths: np.ndarray) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])

    return Split(
        name=name,
        shards=(encoded.tokens,),
        shard_starts=np.array([0, len(encoded.tokens)], np.int64),
        sentence_starts=starts(encoded.sentences),
        document_starts=starts(encoded.documents),
    )


def encode_to_file(encoding: Encoding, texts: Sequence[bytes], file: Path) -> None:
    """Encodes documents into the file of a piece."""
    tokenizer = _load_once(encoding.tokenizer, encoding.tokenizer_hash)
    encoded = encode_documents(texts, tokenizer, language=encoding.language)
    counts = np.array([encoded.words, encoded.empty_documents, *encoded.text])
    arrays = {name: getattr(encoded, name) for name in ("tokens", "sentences", "documents")}
    _write(file, lambda stream: np.savez(stream, counts=counts, **arrays))
    count(len(texts), len(encoded.tokens))


def _write(file: Path, write: Callable[[Any], object]) -> None:
    unfinished = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    with unfinished.open("wb") as stream:
        write(stream)
    unfinished.replace(file)


@functools.lru_cache(maxsize=1)
def _load_once(tokenizer: Path, digest: str) -> Tokenizer:
    """The process may have made another corpus in the same place: `digest` tells tokenizers
    apart.
    """
    return load_tokenizer(tokenizer)
