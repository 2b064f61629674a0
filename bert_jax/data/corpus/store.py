"""The format of a tokenized corpus on disk, and its reader.

    corpus.json               written last: counts, options, tokenizer, size and checksum of files
    keys/train.u64            a hash of each document, ascending, to find equal documents in other
    keys/validation.u64       corpora
    tokenizer/                loadable by transformers.AutoTokenizer
    train/ validation/
      00000.tokens.npy        token ids of a shard, document after document, no special tokens;
                              uint16 if the vocabulary allows, else uint32
      00000.sentences.npy     the first token of each of the shard's sentences, and the end
      00000.documents.npy     the first sentence of each of the shard's documents, and the end

A corpus is never changed. A shard holds whole documents. All arrays are memory-mapped, and offsets
are made global when they are read (data/offsets.py).
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax import strict_json
from bert_jax.data.offsets import Offsets
from bert_jax.data.tokenizer.tokenizer import SpecialIds, Tokenizer, Vocabulary, load_tokenizer
from bert_jax.data.tokenizer.words import begins_word, is_by_piece
from bert_jax.errors import DataDamaged, UsageError
from bert_jax.files import local, measure
from bert_jax.progress import Progress

FORMAT_VERSION = 1
SPLITS: tuple[str, ...] = ("train", "validation")
MANIFEST = "corpus.json"
# The arrays of a shard, which are also parts of the file names.
_ARRAYS = ("tokens", "sentences", "documents")
_BY_PIECE = "pieces"
_FILE = re.compile(rf"({'|'.join(SPLITS)})/[0-9]{{5,}}\.({'|'.join(_ARRAYS)})\.npy")


# The offsets of a whole split are read on demand; the offsets of a part are in memory.
Starts = np.ndarray | Offsets


@dataclass(frozen=True, kw_only=True)
class Split:
    """The documents of one split.

    Token t, counted over the whole split, is `shards[s][t - shard_starts[s]]`. Sentence i has the
    tokens from `sentence_starts[i]` to `sentence_starts[i + 1]`, document d the sentences from
    `document_starts[d]` to `document_starts[d + 1]`. Neither is ever empty, and a document is in
    one shard.
    """

    name: str
    shards: tuple[np.ndarray, ...]  # 1-D memory maps, uint16 or uint32
    shard_starts: np.ndarray  # int64[shards + 1]
    sentence_starts: Starts  # int64[sentences + 1]
    document_starts: Starts  # int64[documents + 1]
    is_piece: bool = False  # part of a split; the other pieces are planned separately

    @property
    def tokens(self) -> int:
        """The tokens of its documents; part of a split refers to the shards of the whole split."""
        return int(self.sentence_starts[-1] - self.sentence_starts[0])

    def sentence(self, number: int) -> np.ndarray:
        """Returns the ids of a sentence, a view of its shard."""
        start, end = (int(at) for at in self.sentence_starts[number : number + 2])
        shard = int(np.searchsorted(self.shard_starts, start, side="right")) - 1
        first = start - int(self.shard_starts[shard])
        return self.shards[shard][first : first + end - start]

    def starts(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns `sentence_starts` and `document_starts` as arrays in memory."""
        return np.asarray(self.sentence_starts), np.asarray(self.document_starts)


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A corpus directory, opened."""

    directory: Path
    manifest: dict[str, Any]
    fingerprint: str
    tokenizer_hash: str
    vocab_size: int
    special: SpecialIds
    begins_word: np.ndarray
    train: Split
    validation: Split
    # The corpora of a mixture (several.py) by name, each with its parts of the splits.
    sources: Mapping[str, "Corpus"] = field(default_factory=dict)

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.special, self.vocab_size, self.begins_word)


def open_corpus(directory: Path | str, *, verify: Collection[str] = ()) -> Corpus:
    """Checks and maps a corpus directory.

    Raises UsageError if there is no corpus, or a corpus of another format version. Raises
    DataDamaged if the manifest was altered, a file is missing or differs in size from the manifest
    (reading a mapped file past its end would kill the process), or the ids are from another
    tokenizer. The files of the splits in `verify` are also read in full before they are mapped; the
    first file with another checksum raises DataDamaged.
    """
    directory = local(directory)
    manifest = read_manifest(directory)
    for name, entry in manifest["files"].items():
        file = directory / name
        if not file.is_file():
            raise _damaged(file, "is missing")
        if file.stat().st_size != entry["bytes"]:
            raise _damaged(file, f"has {file.stat().st_size} bytes, not {entry['bytes']}")
    _verify(directory, {n: e for split in verify for n, e in shard_files(manifest, split).items()})

    expected = manifest["tokenizer"]
    folder = directory / "tokenizer"
    try:
        found = load_tokenizer(folder)
    except UsageError as error:
        raise _damaged(folder, f"cannot be loaded ({error})") from error
    if found.hash != expected["hash"]:
        raise _damaged(
            folder,
            f"was altered: it has {found.vocab_size} tokens and hash {found.hash[:12]}, but the "
            f"ids are from a tokenizer with hash {str(expected['hash'])[:12]}",
        )
    train, validation = (_open_split(directory, name, manifest) for name in SPLITS)
    return Corpus(
        directory=directory,
        manifest=manifest,
        fingerprint=manifest["fingerprint"],
        tokenizer_hash=found.hash,
        vocab_size=found.vocab_size,
        special=found.special,
        begins_word=begins_word(found, by_piece=expected.get("words") == _BY_PIECE),
        train=train,
        validation=validation,
    )


# Tokens per call of NumPy, which copies them to eight bytes each.
_COUNTED_AT_ONCE = 1 << 22
# The number of bytes that take about a second to read.
_WORTH_A_BAR = 2_000_000_000


def _verify(directory: Path, files: dict[str, dict[str, int]]) -> None:
    if not files:
        return
    total = sum(entry["bytes"] for entry in files.values())
    with Progress("verify corpus", total=total, hidden=total < _WORTH_A_BAR) as bar:
        bar.describe = lambda: f"{bar.done / 1e9:,.1f} GB"
        for name, entry in files.items():
            if describe_file(directory / name)["crc32"] != entry["crc32"]:
                raise _damaged(directory / name, "differs from its checksum in corpus.json")
            bar.advance(entry["bytes"])


def read_manifest(directory: Path) -> dict[str, Any]:
    """Returns the content of corpus.json.

    Raises the same UsageError and DataDamaged as `open_corpus`.
    """
    file = directory / MANIFEST
    try:
        manifest = strict_json.parse(file.read_bytes())
        version = manifest["format_version"]
    except (FileNotFoundError, NotADirectoryError) as error:
        if directory.is_file():
            raise UsageError(
                f"{directory} is a file, but a corpus is a folder; to make a corpus from text, run "
                "bert-jax prepare with the text as `source`"
            ) from error
        raise UsageError(
            f"{directory} is not a corpus: it has no {MANIFEST}; "
            f"make one with bert-jax prepare `source` ... `output` {directory}"
        ) from error
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(file, "cannot be read") from error
    if version != FORMAT_VERSION:
        raise UsageError(
            f"{directory} has corpus format {version}, but this bert-jax reads {FORMAT_VERSION}: "
            "delete it and run prepare again"
        )
    try:
        is_written = manifest["fingerprint"] == fingerprint(manifest)
        is_inside = all(map(_FILE.fullmatch, manifest["files"]))
        float(manifest["unigram_entropy_nats"])  # the fingerprint does not cover it
    except (KeyError, TypeError, ArithmeticError, ValueError, AttributeError, RecursionError) as e:
        raise _damaged(file, "was altered: fields that prepare writes are missing") from e
    if not is_written:
        raise _damaged(file, "was altered: its content has another fingerprint")
    if not is_inside:
        raise _damaged(file, "was altered: it names files that are not shards")
    return manifest


def keys_file(split: str) -> str:
    """Returns the name of the file with the keys of a split."""
    return f"keys/{split}.u64"


def read_keys(directory: Path, split: str) -> np.ndarray:
    """Returns the keys of the documents of a split: uint64, ascending. Equal documents have equal
    keys in all corpora.

    Raises the same UsageError and DataDamaged as `open_corpus`.
    """
    file = directory / keys_file(split)
    expected = read_manifest(directory).get("keys", {}).get(split)
    if not file.is_file() or describe_file(file) != expected:
        raise _damaged(file, "is missing, or was altered")
    return np.fromfile(file, "<u8").astype(np.uint64)


def token_counts(split: Split, vocab_size: int) -> np.ndarray:
    """Returns the number of occurrences of each id: int64 `[vocab_size]`. Reads all tokens."""
    counts = np.zeros(vocab_size, np.int64)
    for shard in split.shards:
        for begin in range(0, len(shard), _COUNTED_AT_ONCE):
            part = shard[begin : begin + _COUNTED_AT_ONCE]
            counts += np.bincount(part, minlength=vocab_size)
    return counts


def shard_files(manifest: dict[str, Any], split: str) -> dict[str, dict[str, int]]:
    """Returns the files of one split from the manifest."""
    return {n: e for n, e in manifest["files"].items() if n.startswith(f"{split}/")}


def describe_file(file: Path) -> dict[str, int]:
    """Returns the size and CRC-32 of a file for the manifest."""
    return dict(zip(("bytes", "crc32"), measure(file), strict=True))


def fingerprint(manifest: dict[str, Any]) -> str:
    """Returns the SHA-256 of what decides the content of a corpus: no path, date or version."""
    decisive = {
        "format_version": manifest["format_version"],
        "tokenizer": manifest["tokenizer"]["hash"],
        "validation_fraction": manifest["options"]["validation_fraction"],
        "seed": manifest["options"]["seed"],
        "counts": manifest["counts"],
        "files": manifest["files"],
    }
    # Two corpora with the same ids may differ in their word boundaries for masking.
    if "words" in manifest["tokenizer"]:
        decisive["words"] = manifest["tokenizer"]["words"]
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def describe_tokenizer(tokenizer: Tokenizer, counts: np.ndarray) -> dict[str, Any]:
    """Returns the manifest's description of a tokenizer; `counts` are those of the training tokens.

    `words` is present if whole-word masks treat each piece of a script without spaces as a word.
    """
    described: dict[str, Any] = {
        "kind": tokenizer.kind,
        "hash": tokenizer.hash,
        "vocab_size": tokenizer.vocab_size,
        "special_ids": dataclasses.asdict(tokenizer.special),
        "lowercase": tokenizer.lowercase,
        "strip_accents": tokenizer.strips_accents,
    }
    if is_by_piece(tokenizer, counts):
        described["words"] = _BY_PIECE
    return described


def token_type(vocab_size: int) -> np.dtype:
    """Returns the smallest type that can store the ids of a vocabulary."""
    return np.dtype(np.uint16 if vocab_size <= 65535 else np.uint32)


def _open_split(directory: Path, name: str, manifest: dict[str, Any]) -> Split:
    stems = sorted(
        file.removesuffix(".tokens.npy")
        for file in shard_files(manifest, name)
        if file.endswith(".tokens.npy")
    )
    shards, sentences, documents = (
        [_map(directory / f"{stem}.{array}.npy") for stem in stems] for array in _ARRAYS
    )
    return Split(
        name=name,
        shards=tuple(shards),
        shard_starts=np.cumsum([0, *(len(shard) for shard in shards)], dtype=np.int64),
        sentence_starts=Offsets(sentences),
        document_starts=Offsets(documents),
    )


def _map(file: Path) -> np.ndarray:
    try:
        array = np.lib.format.open_memmap(file, mode="r")
    except OSError:
        raise
    except Exception as error:  # any error that NumPy's header reader raises for a damaged file
        raise _damaged(file, "is not a NumPy array") from error
    return array


def _damaged(file: Path, what: str) -> DataDamaged:
    return DataDamaged(
        f"{file} {what}; delete the corpus directory and run prepare again, or copy it again"
    )
