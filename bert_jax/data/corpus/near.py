"""The stages that find near duplicates, before `decide`.

Documents are compared in order, and dropped documents are not compared with later ones. Documents
that are connected by shared MinHash keys are therefore grouped first, and each group is compared on
one machine. Stages exchange keys and hashes of word n-grams.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from bert_jax.data.corpus.decide import Fate, fates
from bert_jax.data.corpus.job import Hashes, Job, Unit, by_unit
from bert_jax.data.corpus.look import Found
from bert_jax.data.matching.near_duplicates import nearly, runs_of

# The position of a document among all units: its unit times this factor, plus its number there.
_UNIT = 1 << 32


class Runs(NamedTuple):
    """A document to compare."""

    place: int
    keys: bytes  # uint64
    runs: bytes  # hashes of its word n-grams, uint64


def keys(job: Job, number: int, _: Unit, duplicates: Iterable[bytes]) -> list[tuple[int, Hashes]]:
    """Returns the keys of the documents of a unit that are not dropped yet, by range."""
    unit = Found.load(job, number)
    numbers = np.flatnonzero(fates(unit, duplicates)["fate"] == Fate.KEPT)
    if unit.keys is None or not len(numbers):
        return []
    found = unit.keys[numbers]
    return Hashes.of_unit(job, number, np.repeat(numbers, found.shape[1]), found.ravel())


def pairs(_: Job, __: int, several: Iterable[Hashes]) -> list[bytes]:
    """Returns the groups of documents that share a key in one range, as `groups` does."""
    units, rows = Hashes.joined(several)
    hashes, places = rows["hash"], units.astype(np.uint64) * np.uint64(_UNIT) + rows["number"]
    (first,) = np.nonzero(np.append(True, hashes[1:] != hashes[:-1]))
    counts = np.diff(first, append=len(hashes))
    both = np.stack([places, np.repeat(places[first], counts)], axis=1)
    return [groups([both[np.repeat(counts, counts) > 1].tobytes()])]


def groups(several: Iterable[bytes]) -> bytes:
    """Returns connected documents: the position of each and the first position of its group,
    uint64 [documents, 2].

    `several` contain pairs of connected documents or groups from earlier merges: the result does
    not depend on the order of merging.
    """
    places, at = np.unique(np.frombuffer(b"".join(several), np.uint64), return_inverse=True)
    a, b = at.reshape(-1, 2).T
    first = np.arange(len(places))
    while (first[a] != first[b]).any():
        higher, lower = np.maximum(first[a], first[b]), np.minimum(first[a], first[b])
        np.minimum.at(first, higher, lower)
        while (first != first[first]).any():
            first = first[first]
    return np.stack([places, places[first]], axis=1).tobytes()


def groups_by_unit(found: bytes) -> list[tuple[int, bytes]]:
    """Returns the rows of `groups` by unit."""
    rows = np.frombuffer(found, np.uint64).reshape(-1, 2)
    units = (rows[:, 0] // _UNIT).astype(np.int64)
    return [(unit, of.tobytes()) for unit, of in by_unit(units, rows)]


def runs(job: Job, number: int, unit: Unit, several: Iterable[bytes]) -> list[tuple[int, Runs]]:
    """Reads the documents of a unit that are in groups. Returns the documents of each group."""
    rows = np.frombuffer(b"".join(several), np.uint64).reshape(-1, 2)
    if not len(rows):
        return []
    places, first = rows.T
    group_of = dict(zip((places % _UNIT).tolist(), first.tolist(), strict=True))
    found, last = Found.load(job, number), max(group_of)
    assert found.keys is not None
    compared: list[tuple[int, Runs]] = []
    for at, text in enumerate(unit.texts(found.findings.files)):
        if (group := group_of.get(at)) is not None:
            distinct = np.unique(runs_of(text)).tobytes()
            compared.append((group, Runs(number * _UNIT + at, found.keys[at].tobytes(), distinct)))
        if at == last:
            break
    return compared


def near(job: Job, _: int, several: Iterable[Runs]) -> list[tuple[int, bytes]]:
    """Compares a group. Returns the numbers of the documents to drop by unit: uint32."""
    assert job.options.dedup_threshold is not None
    documents = (
        (place, np.frombuffer(keys, np.uint64).tolist(), np.frombuffer(runs, np.uint64))
        for place, keys, runs in sorted(several)
    )
    dropped = np.array([*nearly(documents, job.options.dedup_threshold)], np.int64)
    return [
        (unit, numbers.astype(np.uint32).tobytes())
        for unit, numbers in by_unit(dropped // _UNIT, dropped % _UNIT)
    ]
