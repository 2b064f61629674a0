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

    def joined(self, name: str, units: Any, *pairs: Any) -> Any:
        return (
            (units, *pairs)
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
        # Beam collects a few values before it merges them.
        return found | f"merge {stage.__name__}" >> beam.CombineGlobally(lambda some: merge(some))


def _joined(number: int, of: tuple[Iterable[Any], ...]) -> tuple[Any, ...]:
    (unit,), *values = of
    return number, unit, *([*each] for each in values)
