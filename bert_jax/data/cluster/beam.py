"""Runs the stages of a corpus with Apache Beam.

Beam does the grouping. A stage that `one` runs gets all elements on one worker: one line per unit,
the sizes of the sample's texts, one line per piece or shard.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import apache_beam as beam  # pyright: ignore[reportMissingImports]
from apache_beam.pvalue import AsSingleton  # pyright: ignore[reportMissingImports]

from bert_jax.data.cluster.reports import reported
from bert_jax.data.corpus.job import Job
from bert_jax.data.corpus.pipeline import Stage, listed

# Values that are collected before they are merged.
_KEPT = 32


class BeamEngine:
    """An engine with PCollections as elements, and stages as steps of a pipeline."""

    def __init__(self, job: Job, pipeline: Any) -> None:
        self._job, self._pipeline = job, pipeline

    def spread(self, elements: Sequence[tuple[Any, ...]]) -> Any:
        return self._pipeline | "units" >> beam.Create(elements) | "spread" >> beam.Reshuffle()

    def each(self, stage: Stage, elements: Any, *values: Any) -> Any:
        job = self._job
        return elements | stage.__name__ >> beam.FlatMap(
            lambda element, *of: reported(job, listed, stage, *element, *of),
            *map(AsSingleton, values),
        )

    def each_of(self, name: str, split: Callable[[Any], list[Any]], value: Any) -> Any:
        return value | name >> beam.FlatMap(split) | f"spread {name}" >> beam.Reshuffle()

    def grouped(self, name: str, pairs: Any) -> Any:
        return pairs | name >> beam.GroupByKey()

    def joined(self, name: str, units: Any, pairs: Any) -> Any:
        return (
            {"unit": units, "values": pairs}
            | name >> beam.CoGroupByKey()
            | f"{name}, in order" >> beam.Map(lambda pair: _joined(*pair))
        )

    def one(self, stage: Stage, elements: Any, *values: Any) -> Any:
        job, name = self._job, stage.__name__
        return (
            elements
            | f"all for {name}" >> beam.combiners.ToList()
            | name
            >> beam.Map(
                lambda all_, *of: reported(job, stage, all_, *of), *map(AsSingleton, values)
            )
        )

    def merged(self, stage: Stage, merge: Callable[[Iterable[Any]], Any], elements: Any) -> Any:
        found = self.each(stage, elements)
        return found | f"merge {stage.__name__}" >> beam.CombineGlobally(Merged(merge))


def _joined(number: int, of: dict[str, Iterable[Any]]) -> tuple[int, Any, list[Any]]:
    (unit,) = of["unit"]
    return number, unit, [*of["values"]]


class Merged(beam.CombineFn):
    """Merges values by a function with a result that does not depend on the order of merging."""

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
