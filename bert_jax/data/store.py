"""A tokenised corpus on disk: its format, and reading it.

    corpus.json               written last: counts, options, tokenizer, size and checksum of files
    tokenizer/                loadable by transformers.AutoTokenizer
    train/ validation/
      00000.tokens.npy        token ids of a shard, document after document, no special tokens;
                              uint16 where the vocabulary allows, else uint32
      00000.sentences.npy     where each of the shard's sentences starts in it, and the end
      00000.documents.npy     which of the shard's sentences each of its documents starts with,
                              and the end

A shard holds whole documents. Tokens are memory-mapped; offsets are read, and made global.
"""

import hashlib
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data import tokenizer as tokenizers
from bert_jax.data.tokenizer import SpecialIds
from bert_jax.errors import DataDamaged, UsageError

FORMAT_VERSION = 1
SPLITS: tuple[str, ...] = ("train", "validation")
MANIFEST = "corpus.json"


@dataclass(frozen=True, kw_only=True)
class Split:
    """The documents of one side of the split.

    Token t, counted over the whole split, is `shards[s][t - shard_starts[s]]`. Sentence i is the
    tokens from `sentence_starts[i]` to `sentence_starts[i + 1]`, document d the sentences from
    `document_starts[d]` to `document_starts[d + 1]`; neither is ever empty, and a document lies in
    one shard.
    """

    name: str
    shards: tuple[np.ndarray, ...]  # 1-D memory maps, uint16 or uint32
    shard_starts: np.ndarray  # int64[shards + 1]
    sentence_starts: np.ndarray  # int64[sentences + 1]
    document_starts: np.ndarray  # int64[documents + 1]


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A corpus directory, opened."""

    directory: Path
    manifest: dict[str, Any]
    fingerprint: str
    tokenizer_hash: str
    vocab_size: int
    special: SpecialIds
    train: Split
    validation: Split


def open_corpus(directory: Path) -> Corpus:
    """Check and map a corpus directory.

    Raises UsageError where there is no corpus, or one of another format version, and DataDamaged
    where a file is missing or has another size than the manifest says (to read a mapped file past
    its end kills the process), or the tokenizer is not the one that the ids are from. The bytes of
    the shards are not read: `verify_checksums` does that.
    """
    manifest = read_manifest(directory)
    for name, entry in manifest["files"].items():
        file = directory / name
        if not file.is_file():
            raise _damaged(file, "is missing")
        if file.stat().st_size != entry["bytes"]:
            raise _damaged(file, f"has {file.stat().st_size} bytes, not {entry['bytes']}")

    expected = manifest["tokenizer"]
    folder = directory / "tokenizer"
    try:
        found = tokenizers.load(folder)
    except UsageError as error:
        raise _damaged(folder, f"cannot be loaded ({error})") from error
    if found.hash != expected["hash"]:
        raise _damaged(
            folder,
            f"was altered: it has {found.vocab_size} tokens and hash {found.hash[:12]}, the ids "
            f"are from one with {expected['vocab_size']} and hash {expected['hash'][:12]}",
        )
    train, validation = (_open_split(directory, name, manifest) for name in SPLITS)
    return Corpus(
        directory=directory,
        manifest=manifest,
        fingerprint=manifest["fingerprint"],
        tokenizer_hash=expected["hash"],
        vocab_size=expected["vocab_size"],
        special=SpecialIds(**expected["special_ids"]),
        train=train,
        validation=validation,
    )


def verify_checksums(corpus: Corpus) -> None:
    """Read every shard. Raises DataDamaged, naming the first file that was altered."""
    for name, entry in corpus.manifest["files"].items():
        file = corpus.directory / name
        if describe_file(file) != entry:
            raise _damaged(file, "has another checksum than when it was written")


def read_manifest(directory: Path) -> dict[str, Any]:
    """The content of corpus.json. Raises UsageError and DataDamaged as `open_corpus` does."""
    file = directory / MANIFEST
    try:
        manifest = json.loads(file.read_bytes())
        version = manifest["format_version"]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(
            f"{directory} is not a corpus: it has no {MANIFEST}; "
            f"`bert-jax prepare --source ... --output {directory}` makes one"
        ) from error
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(file, "cannot be read") from error
    if version != FORMAT_VERSION:
        raise UsageError(
            f"{directory} is a corpus of format {version}, this bert-jax reads {FORMAT_VERSION}: "
            "delete it and run prepare again"
        )
    return manifest


def describe_file(file: Path) -> dict[str, int]:
    """Size and CRC-32 of a file, as the manifest keeps them."""
    size = checksum = 0
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            size += len(block)
            checksum = zlib.crc32(block, checksum)
    return {"bytes": size, "crc32": checksum}


def fingerprint(manifest: dict[str, Any]) -> str:
    """sha256 over what decides the content of a corpus; no path, date or library version in it."""
    decisive = {
        "format_version": manifest["format_version"],
        "tokenizer": manifest["tokenizer"]["hash"],
        "validation_fraction": manifest["options"]["validation_fraction"],
        "seed": manifest["options"]["seed"],
        "counts": manifest["counts"],
        "files": manifest["files"],
    }
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def token_type(vocab_size: int) -> np.dtype:
    """The smallest type that the ids of a vocabulary are stored in."""
    return np.dtype(np.uint16 if vocab_size <= 65535 else np.uint32)


def _open_split(directory: Path, name: str, manifest: dict[str, Any]) -> Split:
    stems = sorted(
        file.removesuffix(".tokens.npy")
        for file in manifest["files"]
        if file.startswith(f"{name}/") and file.endswith(".tokens.npy")
    )
    shards = [_load(directory / f"{stem}.tokens.npy", mapped=True) for stem in stems]
    sentences = [_load(directory / f"{stem}.sentences.npy") for stem in stems]
    documents = [_load(directory / f"{stem}.documents.npy") for stem in stems]
    return Split(
        name=name,
        shards=tuple(shards),
        shard_starts=np.cumsum([0, *(len(shard) for shard in shards)], dtype=np.int64),
        sentence_starts=_globally(sentences),
        document_starts=_globally(documents),
    )


def _globally(offsets: list[np.ndarray]) -> np.ndarray:
    """Each shard's offsets shifted past those before it; int64[sum of (length - 1), + 1]."""
    starts = np.zeros(1 + sum(len(local) - 1 for local in offsets), np.int64)
    at = 0
    for local in offsets:
        # In place: the offsets of a large corpus are gigabytes.
        np.add(local[1:], starts[at], out=starts[at + 1 : at + len(local)], casting="unsafe")
        at += len(local) - 1
    return starts


def _load(file: Path, *, mapped: bool = False) -> np.ndarray:
    try:
        return np.load(file, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise _damaged(file, "is not a NumPy array") from error


def _damaged(file: Path, what: str) -> DataDamaged:
    return DataDamaged(
        f"{file} {what}; delete the corpus directory and run prepare again, or copy it again"
    )
