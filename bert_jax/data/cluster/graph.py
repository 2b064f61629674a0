"""The stages as a graph of Apache Beam.

What is grouped, the engine groups. One worker each has what `assign`, `vocabulary`, `cut_shards`
and `finish` need: a line of each unit, the sample, a line of each piece, and one of each shard.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import apache_beam as beam  # pyright: ignore[reportMissingImports]
from apache_beam.pvalue import AsSingleton  # pyright: ignore[reportMissingImports]

from bert_jax.data.cluster import stages
from bert_jax.data.cluster.values import Candidates, Decided, EncodedPiece, Job, UnitCounts
from bert_jax.data.corpus.survey import Unit

# Samples that are kept before they are made one.
_KEPT = 32


class Sample(beam.CombineFn):
    """The documents of the lowest priority, of all units."""

    def __init__(self, budget: int) -> None:
        self._budget = budget

    def create_accumulator(self) -> list[Candidates]:
        return []

    def add_input(
        self, mutable_accumulator: list[Candidates], element: Candidates
    ) -> list[Candidates]:
        return self._merged([*mutable_accumulator, element])

    def merge_accumulators(self, accumulators: Iterable[list[Candidates]]) -> list[Candidates]:
        return self._merged([each for several in accumulators for each in several])

    def extract_output(self, accumulator: list[Candidates]) -> Candidates:
        return Candidates.lowest(self._budget, accumulator)

    def _merged(self, several: list[Candidates]) -> list[Candidates]:
        if len(several) <= _KEPT:
            return several
        return [Candidates.lowest(self._budget, several)]


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
    whole = (
        decided
        | "line" >> beam.Map(lambda of: UnitCounts(of.unit, of.kept, of.totals))
        | "lines" >> beam.combiners.ToList()
        | "assign" >> beam.Map(lambda lines: stages.assign(job, lines))
    )
    sample = (
        decided
        | "candidates" >> beam.Map(lambda of: of.sample)
        | "sample" >> beam.CombineGlobally(Sample(job.sample_bytes))
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


def _decide(job: Job, of: dict[str, Iterable[Any]]) -> Decided:
    (unit,) = of["unit"]
    return stages.decide_unit(job, unit, of["duplicates"])


def _gather(job: Job, of: dict[str, Iterable[Any]]) -> list[dict[tuple[int, int], Any]]:
    (unit,) = of["unit"]
    return [stages.gather_unit(job, unit, numbers) for numbers in of["wanted"]]


def _encode(job: Job, of: dict[str, Iterable[Any]], vocabulary: Any) -> list[EncodedPiece]:
    (unit,), (decided,), (begun,) = of["unit"], of["decided"], of["begun"]
    return stages.encode(job, unit, decided, begun, vocabulary)
