"""The stages as a graph of Apache Beam.

What is grouped, the engine groups. One worker each has what `assign`, `vocabulary`, `cut_shards`
and `finish` need: a line of each unit, the sample, a line of each piece, and one of each shard; and
`groups` two numbers of each document that may nearly be another one.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import apache_beam as beam  # pyright: ignore[reportMissingImports]
from apache_beam.pvalue import AsSingleton  # pyright: ignore[reportMissingImports]

from bert_jax.data.cluster import alike, stages
from bert_jax.data.cluster.values import Candidates, Decided, EncodedPiece, Job, UnitCounts
from bert_jax.data.corpus.survey import Unit

# So many are kept before they are made one.
_KEPT = 32


class Merged(beam.CombineFn):
    """Makes one of several, by a function to which it is all the same in which steps."""

    def __init__(self, merge: Callable[[Iterable[Any]], Any]) -> None:
        self._merge = merge

    def create_accumulator(self) -> list[Any]:
        return []

    def add_input(self, mutable_accumulator: list[Any], element: Any) -> list[Any]:
        return self._merged([*mutable_accumulator, element])

    def merge_accumulators(self, accumulators: Iterable[list[Any]]) -> list[Any]:
        return self._merged([each for several in accumulators for each in several])

    def extract_output(self, accumulator: list[Any]) -> Any:
        return self._merge(accumulator)

    def _merged(self, several: list[Any]) -> list[Any]:
        return several if len(several) <= _KEPT else [self._merge(several)]


def build(pipeline: Any, job: Job, units: Sequence[Unit]) -> None:
    """Adds the graph of a job to a pipeline."""
    numbered = (
        pipeline
        | "units" >> beam.Create([(unit.number, unit) for unit in units])
        | "spread units" >> beam.Reshuffle()
    )
    duplicates = (
        numbered
        | "look through" >> beam.FlatMap(lambda pair: stages.look(job, pair[1]))
        | "words by range" >> beam.GroupByKey()
        | "duplicates" >> beam.FlatMap(lambda pair: stages.losers(job, *pair))
    )
    # Nothing comes out before all units were looked through: of each, all duplicates are known.
    decided = (
        {"unit": numbered, "duplicates": duplicates}
        | "duplicates by unit" >> beam.CoGroupByKey()
        | "decide" >> beam.Map(lambda pair: _decide(job, pair[1]))
    )
    if job.request.near_duplicates is not None:
        decided = _without_near_duplicates(job, numbered, decided)
    whole = (
        decided
        | "line" >> beam.Map(lambda of: UnitCounts(of.unit, of.kept, of.totals))
        | "lines" >> beam.combiners.ToList()
        | "assign" >> beam.Map(lambda lines: stages.assign(job, lines))
    )
    lowest = functools.partial(Candidates.lowest, job.sample_bytes)
    sample = (
        decided
        | "candidates" >> beam.Map(lambda of: of.sample)
        | "sample" >> beam.CombineGlobally(Merged(lowest))
    )
    wanted = sample | "sample by unit" >> beam.FlatMap(stages.wanted)
    vocabulary = (
        {"unit": numbered, "wanted": wanted}
        | "units of the sample" >> beam.CoGroupByKey()
        | "gather" >> beam.FlatMap(lambda pair: _gather(job, pair[1]))
        | "gathered" >> beam.combiners.ToList()
        | "vocabulary"
        >> beam.Map(
            lambda gathered, sample, whole: stages.vocabulary(job, sample, gathered, whole),
            AsSingleton(sample),
            AsSingleton(whole),
        )
    )
    shards = (
        {
            "unit": numbered,
            "decided": decided | "by unit" >> beam.Map(lambda of: (of.unit, of)),
            "begun": whole | "begun" >> beam.FlatMap(lambda whole: whole.begun.items()),
        }
        | "all of a unit" >> beam.CoGroupByKey()
        | "encode"
        >> beam.FlatMap(lambda pair, of: _encode(job, pair[1], of), AsSingleton(vocabulary))
        | "pieces" >> beam.combiners.ToList()
        | "shards" >> beam.FlatMap(stages.cut_shards)
        | "spread shards" >> beam.Reshuffle()
    )
    _ = (
        shards
        | "write"
        >> beam.Map(
            lambda pair, of: stages.write(job, pair[0], pair[1], of), AsSingleton(vocabulary)
        )
        | "written" >> beam.combiners.ToList()
        | "corpus.json"
        >> beam.Map(
            lambda written, of, whole: stages.finish(job, written, of, whole),
            AsSingleton(vocabulary),
            AsSingleton(whole),
        )
    )


def _without_near_duplicates(job: Job, numbered: Any, decided: Any) -> Any:
    groups = (
        decided
        | "keys" >> beam.FlatMap(lambda of: alike.keys(job, of))
        | "keys by range" >> beam.GroupByKey()
        | "pairs" >> beam.Map(lambda pair: alike.pairs(job, *pair))
        | "groups" >> beam.CombineGlobally(Merged(alike.groups))
    )
    near = (
        {"unit": numbered, "groups": groups | "of a unit" >> beam.FlatMap(alike.groups_by_unit)}
        | "groups by unit" >> beam.CoGroupByKey()
        | "runs" >> beam.FlatMap(lambda pair: _runs(job, pair[1]))
        | "runs by group" >> beam.GroupByKey()
        | "near duplicates" >> beam.FlatMap(lambda pair: alike.near(job, *pair))
    )
    return (
        {"decided": decided | "decided" >> beam.Map(lambda of: (of.unit, of)), "near": near}
        | "near duplicates by unit" >> beam.CoGroupByKey()
        | "drop" >> beam.Map(lambda pair: _drop(pair[1]))
    )


def _runs(job: Job, of: dict[str, Iterable[Any]]) -> list[tuple[int, alike.Runs]]:
    (unit,) = of["unit"]
    return [found for rows in of["groups"] for found in alike.runs(job, unit, rows)]


def _drop(of: dict[str, Iterable[Any]]) -> Decided:
    (decided,) = of["decided"]
    return alike.drop(decided, [*of["near"]])


def _decide(job: Job, of: dict[str, Iterable[Any]]) -> Decided:
    (unit,) = of["unit"]
    return stages.decide_unit(job, unit, of["duplicates"])


def _gather(job: Job, of: dict[str, Iterable[Any]]) -> list[dict[tuple[int, int], Any]]:
    (unit,) = of["unit"]
    return [stages.gather_unit(job, unit, numbers) for numbers in of["wanted"]]


def _encode(job: Job, of: dict[str, Iterable[Any]], vocabulary: Any) -> list[EncodedPiece]:
    (unit,), (decided,), (begun,) = of["unit"], of["decided"], of["begun"]
    return stages.encode(job, unit, decided, begun, vocabulary)
