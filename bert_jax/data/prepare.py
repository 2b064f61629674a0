"""Sources -> tokenizer -> corpus directory.

One reader, in this process, takes the documents once each, chooses their side of the split and
groups them into parts (`survey.py`); many processes encode the parts (`encode.py`) into files under
OUTPUT/.parts; at the end these are joined, in the reader's order, to the shards of `store.py`. A
restarted run reads the sources again and keeps the parts that it finds. The bytes of the result do
not depend on the number of processes.
"""

import dataclasses
import hashlib
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data import tokenizer as tokenizers
from bert_jax.data.corpus import split_sentences
from bert_jax.data.encode import EncodedPart, Part, encode_parts, parts, read_part
from bert_jax.data.store import (
    FORMAT_VERSION,
    MANIFEST,
    SPLITS,
    Corpus,
    describe_file,
    fingerprint,
    open_corpus,
    read_manifest,
    token_type,
)
from bert_jax.data.survey import Survey, sample
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import StorageFailed, UsageError
from bert_jax.progress import Progress, note

_PARTS = ".parts"
_SHARD_TOKENS = 32 << 20
# Text that the tokenizer is trained on.
_SAMPLE_BYTES = 64 << 20
_COUNTS = ("documents", "sentences", "tokens", "words", "duplicate_documents", "empty_documents")


@dataclass(frozen=True, kw_only=True)
class _Request:
    """What decides the content of the corpus."""

    sources: tuple[str, ...]
    tokenizer: str
    vocab_size: int
    lowercase: bool
    validation_fraction: float
    seed: int

    @property
    def trains(self) -> bool:
        return self.tokenizer in ("wordpiece", "sentencepiece")

    @property
    def options(self) -> dict[str, Any]:
        """As the manifest keeps them; what a given tokenizer is, its hash says."""
        return {
            "tokenizer": self.tokenizer if self.trains else "given",
            "vocab_size": self.vocab_size if self.trains else None,
            "lowercase": self.lowercase if self.trains else None,
            "validation_fraction": self.validation_fraction,
            "seed": self.seed,
        }

    def survey(self) -> Survey:
        return Survey(self.sources, validation_fraction=self.validation_fraction, seed=self.seed)


def prepare(
    sources: Sequence[str],
    output: Path,
    *,
    tokenizer: str = "wordpiece",
    vocab_size: int = 30522,
    lowercase: bool | None = None,
    workers: int | None = None,
    validation_fraction: float = 0.01,
    seed: int = 0,
) -> Corpus:
    """Write the corpus directory `output`, or go on writing it, or find it finished.

    `tokenizer` is "wordpiece" or "sentencepiece", trained on a sample of the training documents
    with `vocab_size` sub-words, or the path of one. `lowercase` None means yes when training, and
    as the vocabulary itself is when loading.
    `workers` is the number of encoding processes, by default one a core.

    Raises UsageError for what is wrong with sources or options and where `output` holds something
    else, StorageFailed where it cannot be written, DataDamaged where what is there is damaged.
    """
    if not sources:
        raise UsageError("no --source given")
    if not 0 < validation_fraction < 1:
        raise UsageError(f"--validation-fraction {validation_fraction} is not between 0 and 1")
    if not 0 <= seed < 2**64:
        raise UsageError(f"--seed {seed} is not between 0 and 2**64 - 1")
    if workers is not None and workers < 1:
        raise UsageError(f"--workers {workers} is less than 1")
    request = _Request(
        sources=tuple(sources),
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        lowercase=lowercase is not False,
        validation_fraction=validation_fraction,
        seed=seed,
    )
    for source in sources:
        if Path(source).is_dir() and output.resolve().is_relative_to(Path(source).resolve()):
            raise UsageError(
                f"--output {output} lies in the folder --source {source}, and would itself be read "
                "as text; choose a place outside"
            )
    given = None if request.trains else tokenizers.load(tokenizer, lowercase=lowercase)
    try:
        if (output / MANIFEST).exists():
            return _reopen(request, output, given)
        return _write(request, output, given, workers or os.cpu_count() or 1)
    except OSError as error:
        raise StorageFailed(f"{error.filename or output}: {error.strerror or error}") from error


def _reopen(request: _Request, output: Path, given: Tokenizer | None) -> Corpus:
    """The finished corpus that is there, if it is the one asked for."""
    manifest = read_manifest(output)
    differences = [
        f"its {name} is {manifest['options'].get(name)!r}, not {value!r}"
        for name, value in request.options.items()
        if manifest["options"].get(name) != value
    ]
    if given is not None and given.hash != manifest["tokenizer"]["hash"]:
        differences.append("its tokenizer is another one")
    if not differences:
        survey = request.survey()
        with Progress("compare sources", total=None) as progress:
            progress.describe = lambda: f"{progress.done:,} documents"
            for _ in survey.read():
                progress.advance()
        if survey.source_hash != manifest.get("source_hash"):
            differences.append("its sources had other text")
    if differences:
        raise UsageError(
            f"{output} holds another corpus ({'; '.join(differences)}): "
            "choose another --output, or delete it"
        )
    corpus = open_corpus(output, verify=SPLITS)
    shutil.rmtree(output / _PARTS, ignore_errors=True)
    note(f"{output} is finished already, and its checksums are right: nothing to do")
    return corpus


def _write(request: _Request, output: Path, given: Tokenizer | None, workers: int) -> Corpus:
    folder = output / _PARTS
    if output.exists() and not folder.is_dir() and (output.is_file() or any(output.iterdir())):
        raise UsageError(f"{output} exists and is not a corpus: choose another --output")
    folder.mkdir(parents=True, exist_ok=True)

    total = None
    if given is None:
        tokenizer, total = _train_tokenizer(request, output)
    else:
        tokenizer = given
        _forget_trained(output)
        tokenizer.save(output / "tokenizer")
    survey = request.survey()
    files = _encode(survey, tokenizer, output, workers=workers, total=total)
    survey.check(survey.documents)
    for split in SPLITS:
        shutil.rmtree(output / split, ignore_errors=True)
    joined = {split: _Joined(output, split, tokenizer.vocab_size) for split in SPLITS}
    for split in SPLITS:
        joined[split].join(files[split])
        joined[split].counts["duplicate_documents"] = survey.duplicates[split]
    survey.check({split: joined[split].counts["documents"] for split in SPLITS})

    counts = {split: joined[split].counts for split in SPLITS}
    total_counts = counts["train"] + counts["validation"]
    manifest = {
        "format_version": FORMAT_VERSION,
        "tokenizer": {
            "kind": tokenizer.kind,
            "hash": tokenizer.hash,
            "vocab_size": tokenizer.vocab_size,
            "special_ids": dataclasses.asdict(tokenizer.special),
            "lowercase": tokenizer.lowercase,
        },
        "sources": request.sources,
        "source_hash": survey.source_hash,
        "options": request.options,
        "counts": {
            name: {key: split_counts[key] for key in _COUNTS}
            for name, split_counts in [*counts.items(), ("total", total_counts)]
        },
        "unigram_entropy_nats": _entropy(joined["train"].token_counts),
        "files": joined["train"].files | joined["validation"].files,
        "versions": {name: version(name) for name in ("sentencex", "tokenizers")},
    }
    manifest["fingerprint"] = fingerprint(manifest)
    _write_durably(output / MANIFEST, json.dumps(manifest, indent=2) + "\n")
    shutil.rmtree(folder)
    return open_corpus(output)


def _train_tokenizer(request: _Request, output: Path) -> tuple[Tokenizer, int]:
    """The tokenizer, trained now or by an interrupted run; and how many documents there are."""
    survey = request.survey()
    with Progress("sample text", total=None) as progress:
        progress.describe = lambda: f"{progress.done:,} documents"

        def documents() -> Iterator:
            for document in survey.read():
                progress.advance()
                yield document

        chosen = sample(documents(), budget=_SAMPLE_BYTES)
    survey.check(survey.documents)
    total = sum(survey.documents.values())
    key = hashlib.sha256(json.dumps(request.options, sort_keys=True).encode())
    for document in chosen:
        key.update(document.digest)
    folder, marker = output / "tokenizer", output / _PARTS / f"tokenizer-{key.hexdigest()}"
    if marker.exists():
        return tokenizers.load(folder), total

    size = sum(len(document.text) for document in chosen)
    note(
        f"train {request.tokenizer} on {size / 1e6:.1f} MB of text "
        f"({len(chosen):,} of {survey.documents['train']:,} training documents)"
    )
    if request.tokenizer == "wordpiece":
        train = tokenizers.train_wordpiece
    else:
        train = tokenizers.train_sentencepiece
    sentences = (
        sentence
        for document in chosen
        for paragraph in document.text.decode().split("\n")
        for sentence in split_sentences(paragraph)
    )
    trained = train(sentences, vocab_size=request.vocab_size, lowercase=request.lowercase)
    _forget_trained(output)
    trained.save(folder)
    marker.touch()
    return trained, total


def _forget_trained(output: Path) -> None:
    """Removes a tokenizer of an earlier request, and first what says that it is there."""
    for old in (output / _PARTS).glob("tokenizer-*"):
        old.unlink()
    shutil.rmtree(output / "tokenizer", ignore_errors=True)


def _encode(
    survey: Survey, tokenizer: Tokenizer, output: Path, *, workers: int, total: int | None
) -> dict[str, list[Path]]:
    """Make sure that every part is on disk. Returns the files of each split, in order."""
    files: dict[str, list[Path]] = {split: [] for split in SPLITS}
    started = time.monotonic()
    tokens = kept = 0
    with Progress("prepare", total=total) as progress:

        def describe() -> str:
            seconds = time.monotonic() - started
            return (
                f"{progress.done:,} documents ({(progress.done - kept) / seconds:,.0f}/s), "
                f"{tokens:,} tokens ({tokens / seconds:,.0f}/s)"
                + (f", {kept:,} documents from before" if kept else "")
            )

        def missing() -> Iterator[Part]:
            nonlocal kept
            for part in parts(survey.read(), tokenizer_hash=tokenizer.hash, folder=output / _PARTS):
                files[part.split].append(part.file)
                if part.file.exists():
                    kept += len(part.texts)
                    progress.advance(len(part.texts))
                else:
                    yield part

        progress.describe = describe
        for part_documents, part_tokens in encode_parts(
            missing(), tokenizer=output / "tokenizer", workers=workers
        ):
            tokens += part_tokens
            progress.advance(part_documents)
    return files


class _Joined:
    """The shards of a split, and what is counted while they are written."""

    def __init__(self, output: Path, split: str, vocab_size: int) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(_COUNTS, 0))
        self.token_counts = np.zeros(vocab_size, np.int64)
        self.files: dict[str, dict[str, int]] = {}
        self._output, self._split = output, split
        self._dtype = token_type(vocab_size)

    def join(self, files: Sequence[Path]) -> None:
        """Write consecutive parts as shards of at most _SHARD_TOKENS, or of a single part."""
        (self._output / self._split).mkdir()
        shard: list[EncodedPart] = []
        for file in files:
            part = read_part(file)
            self.counts.update(
                documents=len(part.documents),
                sentences=len(part.sentences),
                tokens=len(part.tokens),
                words=part.words,
                empty_documents=part.empty_documents,
            )
            self.token_counts += np.bincount(part.tokens, minlength=len(self.token_counts))
            if shard and sum(len(p.tokens) for p in [*shard, part]) > _SHARD_TOKENS:
                self._write_shard(shard)
                shard = []
            shard.append(part)
        if self.counts["documents"]:
            self._write_shard(shard)

    def _write_shard(self, shard: list[EncodedPart]) -> None:
        stem = f"{self._split}/{len(self.files) // 3:05}"
        for name, array in {
            "tokens": np.concatenate([part.tokens for part in shard]),
            "sentences": _starts([part.sentences for part in shard]),
            "documents": _starts([part.documents for part in shard]),
        }.items():
            file = f"{stem}.{name}.npy"
            np.save(self._output / file, array)
            self.files[file] = describe_file(self._output / file)


def _starts(lengths: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([[0], *lengths]).cumsum().astype(np.uint32)


def _entropy(counts: np.ndarray) -> float:
    """Of the distribution with these counts, in nats: the loss of the best constant guess."""
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())


def _write_durably(file: Path, text: str) -> None:
    unfinished = file.with_suffix(".tmp")
    with unfinished.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    unfinished.replace(file)
