"""The stages of a corpus in order, defined over the operations of an engine.

Two engines run them: processes on this machine (`local.py`) and Apache Beam (`data/cluster`). A
stage is a function of the job, an element and the values of earlier stages, and returns new
elements. An element is a tuple that begins with its key: the number of a unit, a range of hashes,
the first document of a group, or the name of a shard.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from bert_jax.data.corpus import decide, encode, look, near, shards, vocabulary
from bert_jax.data.corpus.job import Job, Unit

# In Beam both are deferred: a PCollection of elements, and a PCollection with one value.
Elements = Any
Value = Any
Stage = Callable[..., Any]


class Engine(Protocol):
    """The operations from which a pipeline is built."""

    def spread(self, elements: Sequence[tuple[Any, ...]]) -> Elements:
        """Returns the command's elements, distributed over the workers."""

    def each(self, stage: Stage, elements: Elements, *values: Value) -> Elements:
        """Runs a stage on each element: `stage(job, *element, *values)`."""

    def each_of(self, name: str, split: Callable[[Any], list[Any]], value: Value) -> Elements:
        """Returns the elements of a value."""

    def grouped(self, name: str, pairs: Elements) -> Elements:
        """Returns each key with all of its values."""

    def joined(self, name: str, units: Elements, *pairs: Elements) -> Elements:
        """Returns each unit with the values of its number in each of `pairs`, when all pairs are
        available.
        """

    def one(self, stage: Stage, elements: Elements, *values: Value) -> Value:
        """Runs a stage on all elements at once: `stage(job, elements, *values)`."""

    def merged(
        self, stage: Stage, merge: Callable[[Iterable[Any]], Any], elements: Elements
    ) -> Value:
        """Merges the results of a stage on each element, a few at a time, in any order."""


def listed(job: Job, stage: Stage, *arguments: Any) -> list[Any]:
    """Returns the results of a stage for an element as a list."""
    return [*stage(job, *arguments)]


def build(engine: Engine, job: Job, units: Sequence[Unit]) -> Value:
    """Runs the stages, or describes them to an engine. Returns the content of corpus.json."""
    numbered = engine.spread([(unit.number, unit) for unit in units])
    decided = decided_units(engine, job, numbered)
    whole = engine.one(decide.assign, decided)
    if job.options.trains:
        lowest = functools.partial(vocabulary.lowest, job.sample_bytes)
        sample = engine.merged(vocabulary.candidates, lowest, decided)
        wanted = engine.each_of("wanted", vocabulary.wanted, sample)
        sampled = engine.joined("sample by unit", numbered, wanted)
        texts = engine.each(vocabulary.gather, sampled)
        tokenizer = engine.one(vocabulary.train, texts, sample, whole)
    else:
        tokenizer = engine.one(vocabulary.given, decided, whole)
    begun = engine.joined("begun by unit", numbered, engine.each_of("begun", decide.begun, whole))
    pieces = engine.each(encode.encode, begun, tokenizer)
    cut = engine.each_of("shards", list, engine.one(shards.cut, pieces))
    written = engine.each(shards.write, cut, tokenizer)
    return engine.one(shards.finish, written, tokenizer, whole)


def decided_units(engine: Engine, job: Job, numbered: Elements) -> Elements:
    """Runs the stages that decide which documents are kept. Returns the counts of each unit."""
    words = engine.grouped("words by range", engine.each(look.look, numbered))
    lost = [engine.each(decide.duplicates, words)]
    if job.options.dedup_threshold is not None:
        lost.append(_near_duplicates(engine, numbered, *lost))
    return engine.each(decide.decide, engine.joined("lost by unit", numbered, *lost))


def _near_duplicates(engine: Engine, numbered: Elements, duplicates: Elements) -> Elements:
    others = engine.joined("duplicates by unit", numbered, duplicates)
    keys = engine.grouped("keys by range", engine.each(near.keys, others))
    together = engine.merged(near.pairs, near.groups, keys)
    groups = engine.each_of("groups", near.groups_by_unit, together)
    runs = engine.each(near.runs, engine.joined("groups by unit", numbered, groups))
    return engine.each(near.near, engine.grouped("runs by group", runs))
