"""Parts, a few megabytes of documents each, encoded by as many processes as there are cores.

A part is written under a name that is the hash of all that decides its content: documents,
tokenizer, segmenter, format. If the file is there, it is the right one, and whole.
"""

import concurrent.futures
import functools
import hashlib
import json
import multiprocessing
import os
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_jax.data.corpus import worker
from bert_jax.data.corpus.dedup import SourceDocument
from bert_jax.data.corpus.store import FORMAT_VERSION, SPLITS, Split, token_type
from bert_jax.data.language import marks
from bert_jax.data.language.codes import DEFAULT
from bert_jax.data.language.sentences import cut, whole_sentences
from bert_jax.data.tokenizer.tokenizer import Tokenizer, load_tokenizer
from bert_jax.errors import BertJaxError, DataDamaged

_PART_BYTES = 4 << 20
# Sentences in one call of the tokenizer: while it runs, a token takes hundreds of bytes.
_SENTENCES_PER_CALL = 1024


@dataclass(frozen=True)
class CorpusPart:
    """Documents of one split, and the file that their ids belong in."""

    split: str
    file: Path
    texts: tuple[bytes, ...]


@dataclass(frozen=True)
class EncodedPart:
    """The content of a part's file. Sentences and documents that encode to nothing are gone."""

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


def parts(
    documents: Iterable[SourceDocument],
    *,
    tokenizer_hash: str,
    folder: Path,
    language: str = DEFAULT,
) -> Iterator[CorpusPart]:
    """Yields the documents of each split, in order, cut where a part is full."""
    waiting: dict[str, list[SourceDocument]] = {split: [] for split in SPLITS}
    sizes = dict.fromkeys(SPLITS, 0)
    others = [language] if language != DEFAULT else []
    counted = len(TextCounts._fields)
    decisive = json.dumps(
        [FORMAT_VERSION, version("sentencex"), tokenizer_hash, counted, *others]
    ).encode()

    def close(split: str) -> CorpusPart:
        digests = b"".join(document.digest for document in waiting[split])
        key = hashlib.blake2b(decisive + digests, digest_size=16).hexdigest()
        texts = tuple(document.text for document in waiting[split])
        waiting[split].clear()
        sizes[split] = 0
        return CorpusPart(split, folder / f"{key}.npz", texts)

    for document in documents:
        waiting[document.split].append(document)
        sizes[document.split] += len(document.text)
        if sizes[document.split] >= _PART_BYTES:
            yield close(document.split)
    yield from (close(split) for split in SPLITS if waiting[split])


def encode_parts(
    parts: Iterable[CorpusPart], *, tokenizer: Path, workers: int, language: str = DEFAULT
) -> Iterator[tuple[int, int]]:
    """Writes every part; yields (documents, tokens) of each as it is done, in any order.

    At most two parts a process are in memory. With one worker there is no process but this one.
    """
    if workers == 1:
        loaded = load_tokenizer(tokenizer)
        yield from (_encode_to_file(part, loaded, language) for part in parts)
        return
    worker.prepare_for_workers()
    pool = concurrent.futures.ProcessPoolExecutor(
        workers,
        # A forked copy of a process that runs threads (tokenizers, jax) can deadlock.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
    )
    running: set[concurrent.futures.Future[tuple[int, int]]] = set()
    try:
        for part in parts:
            running.add(pool.submit(_encode_in_worker, part, tokenizer, language))
            if len(running) == 2 * workers:
                done, running = concurrent.futures.wait(
                    running, return_when=concurrent.futures.FIRST_COMPLETED
                )
                yield from (future.result() for future in done)
        yield from (future.result() for future in concurrent.futures.as_completed(running))
    except BrokenProcessPool as error:
        raise BertJaxError(
            "an encoding process was killed, perhaps for lack of memory; the same command goes on "
            f"where this one stopped, and takes less memory with fewer than `workers` {workers}"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def read_part(file: Path) -> EncodedPart:
    """Raises DataDamaged, with the file removed, where it does not agree with its checksums."""
    try:
        with np.load(file, allow_pickle=False) as arrays:
            words, empty_documents, *text = map(int, arrays["counts"])
            return EncodedPart(
                arrays["tokens"],
                arrays["sentences"],
                arrays["documents"],
                words,
                empty_documents,
                TextCounts(*text),
            )
    except (zipfile.BadZipFile, ValueError, EOFError, KeyError) as error:
        file.unlink()
        raise DataDamaged(
            f"{file} was damaged and is removed now: run the same command again"
        ) from error


def encode_documents(
    texts: Iterable[bytes], tokenizer: Tokenizer, *, language: str = DEFAULT
) -> EncodedPart:
    """Cuts texts into sentences, by the rules of `language`, and encodes those.

    `texts` are UTF-8, their paragraphs separated by newlines. To a byte-level tokenizer each
    sentence but a document's first comes with the space before it, as in running text.
    """
    sentences: list[str] = []
    sentence_counts: list[int] = []
    words: list[int] = []
    characters = marks_lost = cut_sentences = 0
    for text in texts:
        before = len(sentences)
        decoded = text.decode()
        for paragraph in decoded.split("\n"):
            for whole in whole_sentences(paragraph, language):
                pieces = cut(whole)
                cut_sentences += len(pieces) > 1
                for sentence in pieces:
                    is_first = len(sentences) == before
                    sentences.append(sentence if is_first else tokenizer.word_prefix + sentence)
        sentence_counts.append(len(sentences) - before)
        words.append(len(text.split()))
        characters += sum(map(len, decoded.split()))
        if tokenizer.strips_accents and not text.isascii():
            marks_lost += marks.lost(decoded)

    dtype = token_type(tokenizer.vocab_size)
    tokens, lengths = [np.empty(0, dtype)], [np.empty(0, np.uint32)]
    unknown_characters = 0
    for start in range(0, len(sentences), _SENTENCES_PER_CALL):
        called = sentences[start : start + _SENTENCES_PER_CALL]
        ids, counts = tokenizer.encode_running_text(called)
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
    encoded = encode_documents((text.encode() for text in texts), tokenizer, language=language)

    def starts(lengths: np.ndarray) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])

    return Split(
        name=name,
        shards=(encoded.tokens,),
        shard_starts=np.array([0, len(encoded.tokens)], np.int64),
        sentence_starts=starts(encoded.sentences),
        document_starts=starts(encoded.documents),
    )


def _encode_to_file(part: CorpusPart, tokenizer: Tokenizer, language: str) -> tuple[int, int]:
    encoded = encode_documents(part.texts, tokenizer, language=language)
    unfinished = part.file.with_suffix(f".{os.getpid()}.tmp")
    with unfinished.open("wb") as stream:
        np.savez(
            stream,
            tokens=encoded.tokens,
            sentences=encoded.sentences,
            documents=encoded.documents,
            counts=np.array([encoded.words, encoded.empty_documents, *encoded.text]),
        )
    unfinished.replace(part.file)
    return len(part.texts), len(encoded.tokens)


def _start_worker() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    worker.begin()


def _encode_in_worker(part: CorpusPart, tokenizer: Path, language: str) -> tuple[int, int]:
    return _encode_to_file(part, _load_once(tokenizer), language)


@functools.cache
def _load_once(tokenizer: Path) -> Tokenizer:
    return load_tokenizer(tokenizer)
