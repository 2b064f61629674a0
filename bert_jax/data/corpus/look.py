"""The first pass over a unit: computes what decides which of its documents are kept."""

import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_jax.data.corpus.job import NO_SPLIT, Hashes, Job, Unit, texts_of
from bert_jax.data.matching.identity import identify
from bert_jax.data.matching.near_duplicates import Signer
from bert_jax.data.pool import count
from bert_jax.data.sources.read import Reader
from bert_jax.data.sources.stream import Findings

_COUNTED_AT_ONCE = 256
# The number of first units, and the size of the text from each, to guess the language from.
_FIRST_UNITS, _FIRST_BYTES = 16, 256 << 10
# Per document: a hash that is equal for duplicates; its priority (the lowest ones form the
# tokenizer's sample); the first bytes of the digest of its text; bytes of text; its split, as an
# index into SPLITS.
FOUND = np.dtype([("words", "<u8"), ("priority", "<u8"), ("digest", ">u8"), ("size", "<u4"),
                  ("split", "u1")])  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Found:
    """The findings of the first pass over a unit, without the files that cannot be read."""

    documents: np.ndarray  # FOUND
    digest: bytes  # of the texts
    findings: Findings
    contaminated: dict[int, list[int]]  # document -> records of test sets
    keys: np.ndarray | None  # for finding near duplicates, uint64 [documents, bands]
    beginning: str  # of the text

    def save(self, job: Job, unit: int) -> None:
        """Writes the file of a unit."""
        noted = {
            "digest": self.digest.hex(),
            "contaminated": self.contaminated,
            "beginning": self.beginning,
            "findings": vars(self.findings),
        }
        arrays: dict[str, Any] = {"documents": self.documents}
        arrays["noted"] = np.frombuffer(json.dumps(noted).encode(), np.uint8)
        if self.keys is not None:
            arrays["keys"] = self.keys
        with job.scratch.writing(_file(unit)) as stream:
            np.savez(stream, **arrays)

    @classmethod
    def load(cls, job: Job, unit: int) -> "Found":
        """Returns the findings that `save` wrote."""
        data = io.BytesIO(job.scratch.read(_file(unit)))
        with np.load(data, allow_pickle=False) as arrays:
            noted = json.loads(arrays["noted"].tobytes())
            findings = noted["findings"]
            return cls(
                documents=arrays["documents"],
                digest=bytes.fromhex(noted["digest"]),
                findings=Findings(**findings | {"records": Counter(findings["records"])}),
                contaminated={int(n): records for n, records in noted["contaminated"].items()},
                keys=arrays.get("keys"),
                beginning=noted["beginning"],
            )


def _file(unit: int) -> str:
    return f"found/{unit:06}.npz"


def look(job: Job, number: int, unit: Unit) -> list[tuple[int, Hashes]]:
    """Reads a unit and writes the findings. Returns the hashes of its documents by range."""
    found = look_through(job, unit)
    found.save(job, number)
    words, splits = found.documents["words"], found.documents["split"].copy()
    splits[[*found.contaminated]] = NO_SPLIT
    return Hashes.of_unit(job, number, np.arange(len(words)), words, splits)


def look_through(job: Job, unit: Unit) -> Found:
    """Reads a whole unit."""
    findings, beginning = Findings(), bytearray()
    tables, keys = [np.empty(0, FOUND)], list[np.ndarray]()
    contaminated: dict[int, list[int]] = {}
    all_texts, total = hashlib.sha256(), 0
    is_first = unit.number < _FIRST_UNITS and job.options.language is None
    for reader in unit.readers:
        of_file, seen = Findings(), _Seen(job, is_held_out=unit.is_held_out)
        for text in seen.of(reader, of_file):
            if is_first and len(beginning) < _FIRST_BYTES:
                beginning += text + b"\n"
        if of_file.files:
            findings.files |= of_file.files
            continue
        findings.add(of_file)
        tables.append(np.frombuffer(bytes(seen.rows), FOUND))
        all_texts.update(seen.digests)
        contaminated |= {total + n: records for n, records in seen.contaminated.items()}
        if seen.signer is not None:
            keys.append(seen.signer.signed())
        total += len(tables[-1])
    return Found(
        documents=np.concatenate(tables),
        digest=all_texts.digest(),
        findings=findings,
        contaminated=contaminated,
        keys=np.concatenate(keys) if keys else None,
        beginning=beginning.decode(),
    )


class _Seen:
    """Collects the findings about the documents of a file while they are read."""

    def __init__(self, job: Job, *, is_held_out: bool) -> None:
        self._job, alike = job, job.options.dedup_threshold
        is_drawn = not job.options.validation_source
        # Documents with a draw below this number are held out.
        self._limit = job.options.validation_fraction if is_drawn else float(is_held_out)
        self.rows, self.digests = bytearray(), bytearray()
        self.contaminated: dict[int, list[int]] = {}
        self.signer = None if alike is None else Signer(alike)

    def of(self, reader: Reader, findings: Findings) -> Iterator[bytes]:
        """Yields the texts of a file and records the findings about each."""
        salt, tests = self._job.options.seed.to_bytes(8, "little"), self._job.contamination
        number, size, drawn = -1, 0, bytes(16)
        for number, (text, is_continued) in enumerate(texts_of(reader, findings)):
            identity = identify(text, is_exact=self._job.by_character)
            if not is_continued:  # a continued document stays in the split of its beginning
                drawn = hashlib.blake2b(identity.side, digest_size=16, salt=salt).digest()
            digest = hashlib.blake2b(text, digest_size=16).digest()
            self.digests += digest
            is_held_out = int.from_bytes(drawn[:6], "little") / 2.0**48 < self._limit
            self.rows += identity.words[:8] + drawn[8:] + digest[:8]
            self.rows += len(text).to_bytes(4, "little") + bytes([is_held_out])
            if self.signer is not None:
                self.signer.add(text)
            if tests is not None and (records := tests.records_in(text)):
                self.contaminated[number] = sorted(records)
            size += len(text)
            if number % _COUNTED_AT_ONCE == _COUNTED_AT_ONCE - 1:
                count(_COUNTED_AT_ONCE, size)
                size = 0
            yield text
        count((number + 1) % _COUNTED_AT_ONCE, size)
