"""Joins pieces to shards, in the order of the sources, and writes corpus.json at the end."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from bert_jax.data.corpus.decide import Counts, Fate, Whole, require_two
from bert_jax.data.corpus.encode import SPACE_RULES, Piece, read_piece
from bert_jax.data.corpus.job import Job
from bert_jax.data.corpus.store import (
    FORMAT_VERSION,
    MANIFEST,
    SPLITS,
    describe_file,
    describe_tokenizer,
    fingerprint,
    keys_file,
)
from bert_jax.data.corpus.vocabulary import SharedTokenizer, loaded
from bert_jax.data.tokenizer.unknown import note_unknown
from bert_jax.errors import BertJaxError

# The packages with versions in corpus.json.
_NOTED = ("sentencex", "tokenizers", "rensa")
# The fix if the vocabulary lacks much of the text.
_GIVEN = (
    "the vocabulary was made for other text: choose a `tokenizer` trained on this text, unless you "
    "continue from a model"
)
_TRAINED = (
    "a larger `vocab_size` covers more characters; words of more than 100 characters need "
    "`tokenizer` characters, for sequences such as DNA and proteins, or sentencepiece or bpe"
)


class Shard(NamedTuple):
    """The counts of a shard, and its files, if it has documents."""

    counts: dict[str, int]
    token_counts: np.ndarray  # int64 [vocab_size]
    files: dict[str, dict[str, int]]


def cut(job: Job, pieces: Iterable[Piece]) -> list[tuple[str, tuple[str, ...]]]:
    """Returns the shards: the file name stem, and the keys of the pieces, of each.

    A shard has whole parts: at most `shard_tokens` of the job, or a single part.
    """
    found: list[tuple[str, tuple[str, ...]]] = []
    for split, of_split in groupby(sorted({*pieces}), key=lambda piece: piece.split):
        parts = [[*part] for _, part in groupby(of_split, key=lambda piece: piece.part)]
        for number, shard in enumerate(_shards(parts, job.shard_tokens)):
            found.append((f"{split}/{number:05}", tuple(piece.key for piece in shard)))
    return found


def _shards(parts: Iterable[list[Piece]], most_tokens: int) -> Iterator[list[Piece]]:
    shard: list[Piece] = []
    tokens = 0
    for part in parts:
        size = sum(piece.tokens for piece in part)
        if shard and tokens + size > most_tokens:
            yield shard
            shard, tokens = [], 0
        shard += part
        tokens += size
    if shard:
        yield shard


def write(job: Job, stem: str, keys: Sequence[str], of: SharedTokenizer) -> list[tuple[str, Shard]]:
    """Writes the pieces of a shard as its three files. Returns its stem and counts."""
    parts = [read_piece(job.pieces, key) for key in keys]
    counts = {
        "documents": sum(len(part.documents) for part in parts),
        "sentences": sum(len(part.sentences) for part in parts),
        "tokens": sum(len(part.tokens) for part in parts),
        "words": sum(part.words for part in parts),
        "empty_documents": sum(part.empty_documents for part in parts),
        "stripped_marks": sum(part.stripped_marks for part in parts),
    }
    token_counts = np.zeros(of.size, np.int64)
    for part in parts:
        token_counts += np.bincount(part.tokens, minlength=of.size)
    made: dict[str, dict[str, int]] = {}
    if counts["documents"]:
        for name, array in {
            "tokens": np.concatenate([part.tokens for part in parts]),
            "sentences": _starts([part.sentences for part in parts]),
            "documents": _starts([part.documents for part in parts]),
        }.items():
            shard_file = f"{stem}.{name}.npy"
            with job.output.writing(shard_file) as stream:
                np.save(stream, array)
                made[shard_file] = _described(stream)
    return [(stem, Shard(counts, token_counts, made))]


def _described(stream: IO[bytes]) -> dict[str, int]:
    stream.flush()
    return describe_file(Path(stream.name))


def _starts(lengths: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([[0], *lengths]).cumsum().astype(np.uint32)


def finish(
    job: Job, written: Iterable[tuple[str, Shard]], of: SharedTokenizer, whole: Whole
) -> dict[str, Any]:
    """Writes corpus.json, after all other files. Returns its content.

    Raises UsageError if too few documents have tokens.
    """
    shards: dict[str, list[Shard]] = {split: [] for split in SPLITS}
    for stem, shard in sorted(dict(written).items(), key=lambda item: item[0]):
        shards[stem.partition("/")[0]].append(shard)
    tokens = {
        split: sum((shard.token_counts for shard in of_split), np.zeros(of.size, np.int64))
        for split, of_split in shards.items()
    }
    counts = {
        split: {
            name: sum(shard.counts[name] for shard in of_split)
            for name in ("documents", "sentences", "tokens", "words")
        }
        | {
            "duplicate_documents": whole.counts.of(Fate.DUPLICATE)[split],
            "empty_documents": sum(shard.counts["empty_documents"] for shard in of_split),
        }
        for split, of_split in shards.items()
    }
    require_two(job, {split: counts[split]["documents"] for split in SPLITS}, whole.counts)
    counts["total"] = {
        name: sum(counts[split][name] for split in SPLITS) for name in counts["train"]
    }
    tokenizer = loaded(job.tokenizer, of)
    unknown = {split: int(tokens[split][tokenizer.special.unk]) for split in SPLITS}
    unknown["total"] = sum(unknown.values())
    every = [shard for of_split in shards.values() for shard in of_split]
    manifest = {
        "format_version": FORMAT_VERSION,
        "tokenizer": describe_tokenizer(tokenizer, tokens["train"]),
        "sources": job.options.source,
        "validation_sources": job.options.validation_source,
        "options": job.described,
        "counts": counts,
        "unigram_entropy_nats": _entropy(tokens["train"]),
        "unknown_share": {
            name: round(number / max(1, counts[name]["tokens"]), 6)
            for name, number in unknown.items()
        },
        "stripped_marks": sum(shard.counts["stripped_marks"] for shard in every),
        **_left_out(job, whole.counts),
        "files": {name: entry for shard in every for name, entry in shard.files.items()},
        "keys": _write_keys(job, whole.counts),
        "versions": {
            **{name: number for name, number in job.versions.items() if name in _NOTED},
            "space_rules": SPACE_RULES,
        },
    }
    manifest["fingerprint"] = fingerprint(manifest)
    for split in SPLITS:  # files of an earlier attempt with other shards
        left = [f"{split}/{name}" for name in (job.output / split).names()]
        job.output.remove([name for name in left if name not in manifest["files"]])
    job.output.write(MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode(), is_synced=True)
    note_unknown(
        unknown["total"],
        counts["total"]["tokens"],
        "the tokens of the corpus",
        _TRAINED if job.options.trains else _GIVEN,
    )
    return manifest


def _left_out(job: Job, counts: Counts) -> dict[str, Any]:
    """Returns the counts in corpus.json of text that the corpus omits."""
    tests = job.contamination
    return {
        "near_duplicate_documents": counts.of(Fate.NEAR_DUPLICATE),
        "contaminated_documents": counts.of(Fate.CONTAMINATED),
        "decontaminated_of": {} if tests is None else tests.counts(counts.contaminated),
        "skipped_files": counts.findings.files,
        "skipped_records": dict(counts.findings.records),
        "records_without_text": counts.findings.without_text,
    }


def _write_keys(job: Job, counts: Counts) -> dict[str, dict[str, int]]:
    """Writes the keys of the documents. Returns the size and checksum of each split's file."""
    described: dict[str, dict[str, int]] = {}
    for split in SPLITS:
        folder = job.scratch / f"keys/{split}"
        with job.output.writing(keys_file(split)) as stream:
            for keys in folder.read_several(sorted(folder.names())):
                stream.write(keys)
            described[split] = _described(stream)
    dropped = sum(counts.of(Fate.DUPLICATE).values()) + sum(counts.of(Fate.CONTAMINATED).values())
    if sum(entry["bytes"] for entry in described.values()) != 8 * (counts.total - dropped):
        raise BertJaxError(f"another job is writing {job.folder}: run the command again")
    return described


def _entropy(counts: np.ndarray) -> float:
    """Returns the entropy of the distribution with these counts, in nats: the loss of the best
    constant prediction.
    """
    share = counts[counts > 0] / counts.sum()
    # With a single kind of token the result is zero, not minus zero.
    return max(0.0, float(-(share * np.log(share)).sum()))
