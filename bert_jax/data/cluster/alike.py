"""The stages that drop near duplicates: those of `stages.py` come before and after.

One machine compares documents in their order, and one that is dropped is compared with none. So
documents that may hang together, by keys of MinHash that they share, are grouped first, and each
group is compared as one machine does. What goes from stage to stage are keys, and hashes of runs of
words.
"""

import copy
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data.cluster.found import read_found
from bert_jax.data.cluster.reports import reported
from bert_jax.data.cluster.values import Decided, Hashes, Job, by_range, by_unit
from bert_jax.data.corpus.store import SPLITS
from bert_jax.data.corpus.survey import Unit, texts_of
from bert_jax.data.matching.near_duplicates import nearly, runs_of

# A document in all units: its unit, times this, and its number there.
_UNIT = 1 << 32


class Runs(NamedTuple):
    """A document to compare."""

    place: int
    keys: bytes  # uint64
    runs: bytes  # hashes of its runs of words, uint64


@reported
def keys(job: Job, decided: Decided) -> list[tuple[int, Hashes]]:
    """Returns the keys of the documents of a unit that are kept, in each range."""
    decisions = np.frombuffer(decided.decisions, np.uint8)
    numbers = np.flatnonzero(decisions < len(SPLITS))
    found = read_found(job, decided.unit).keys
    if found is None or not len(numbers):
        return []
    found, of_each = found[numbers].ravel(), np.repeat(numbers, found.shape[1])
    return [
        (of, Hashes(decided.unit, of_each[at].astype(np.uint32).tobytes(), found[at].tobytes()))
        for of, at in by_range(job, found)
    ]


@reported
def pairs(_: Job, __: int, several: Iterable[Hashes]) -> bytes:
    """Returns the groups of documents that share a key in one range, as `groups` does."""
    all_ = [*several]
    hashes = np.concatenate([np.frombuffer(each.hashes, np.uint64) for each in all_])
    places = np.concatenate(
        [np.frombuffer(each.numbers, np.uint32) + np.uint64(each.unit * _UNIT) for each in all_]
    )
    order = np.argsort(hashes, kind="stable")
    hashes, places = hashes[order], places[order]
    (first,) = np.nonzero(np.append(True, hashes[1:] != hashes[:-1]))
    counts = np.diff(first, append=len(hashes))
    both = np.stack([places, np.repeat(places[first], counts)], axis=1)
    return groups([both[np.repeat(counts, counts) > 1].tobytes()])


def groups(several: Iterable[bytes]) -> bytes:
    """Returns which documents hang together: of each its place and the first of its group, uint64
    [documents, 2].

    `several` have pairs of documents that do, which may be groups that were found before.
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
    """Returns the rows of `groups` of each unit."""
    rows = np.frombuffer(found, np.uint64).reshape(-1, 2)
    units = (rows[:, 0] // _UNIT).astype(np.int64)
    return [(unit, of.tobytes()) for unit, of in by_unit(units, rows)]


@reported
def runs(job: Job, unit: Unit, rows: bytes) -> list[tuple[int, Runs]]:
    """Reads the documents of a unit that are in groups. Returns those of each group."""
    places, first = np.frombuffer(rows, np.uint64).reshape(-1, 2).T
    group_of = dict(zip((places % _UNIT).tolist(), first.tolist(), strict=True))
    found, last = read_found(job, unit.number), max(group_of)
    assert found.keys is not None
    compared: list[tuple[int, Runs]] = []
    for number, text in enumerate(texts_of(unit.without(frozenset(found.findings.files)))):
        if (group := group_of.get(number)) is not None:
            place = unit.number * _UNIT + number
            of = Runs(place, found.keys[number].tobytes(), np.unique(runs_of(text)).tobytes())
            compared.append((group, of))
        if number == last:
            break
    return compared


@reported
def near(job: Job, _: int, several: Iterable[Runs]) -> list[tuple[int, bytes]]:
    """Compares a group. Returns the numbers of those to drop, by unit."""
    assert job.request.near_duplicates is not None
    documents = (
        (place, np.frombuffer(keys, np.uint64).tolist(), np.frombuffer(runs, np.uint64))
        for place, keys, runs in sorted(several)
    )
    dropped = np.array(
        [place for place, _, _ in nearly(documents, job.request.near_duplicates)], np.int64
    )
    return [
        (unit, numbers.astype(np.uint32).tobytes())
        for unit, numbers in by_unit(dropped // _UNIT, dropped % _UNIT)
    ]


def drop(decided: Decided, near_duplicates: Sequence[bytes]) -> Decided:
    """Decides once more of a unit."""
    if not near_duplicates:
        return decided
    places = np.concatenate([np.frombuffer(each, np.uint32) for each in near_duplicates])
    decisions = np.frombuffer(decided.decisions, np.uint8).copy()
    totals = copy.deepcopy(decided.totals)  # an engine may run this again
    totals.count_near_duplicates(decisions, places)
    return decided._replace(
        decisions=decisions.tobytes(), totals=totals, sample=decided.sample.without(places)
    )
