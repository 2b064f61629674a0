"""Runs the stages of a corpus in processes on this machine."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from bert_jax.data.corpus import encode, look, near, shards, vocabulary
from bert_jax.data.corpus.job import Job, Unit
from bert_jax.data.corpus.pipeline import Stage, build, listed
from bert_jax.data.pool import Pool
from bert_jax.progress import Progress

# Stages with progress in documents, and stages with progress in elements, which is only shown if
# there are enough elements to take some seconds.
_BY_DOCUMENT = {look.look: "read sources", encode.encode: "prepare"}
_BY_ELEMENT = {
    vocabulary.gather: "gather the sample",
    near.runs: "compare near duplicates",
    shards.write: "write shards",
}
_SHOWN = 8


def make(job: Job, units: Sequence[Unit], workers: int) -> dict[str, Any]:
    """Makes a corpus with `workers` processes. Returns the content of corpus.json."""
    with Pool(workers, job) as pool:
        return build(LocalEngine(job, pool), job, units)


class LocalEngine:
    """An engine with lists as elements, which runs stages immediately."""

    def __init__(self, job: Job, pool: Pool) -> None:
        self._job, self._pool = job, pool
        # The documents read so far, and the bytes of their texts.
        self._documents: int | None = None
        self._bytes = 0

    def spread(self, elements: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        return [*elements]

    def each(self, stage: Stage, elements: Iterable[Any], *values: Any) -> list[Any]:
        return [*self._each(stage, elements, *values)]

    def _each(self, stage: Stage, elements: Iterable[Any], *values: Any) -> Iterator[Any]:
        found = [*elements]
        with self._shown(stage, len(found)) as progress:

            def watch() -> None:
                if stage in _BY_DOCUMENT:
                    progress.advance(self._pool.counts[0] - progress.done)

            # Starting a process takes a second, as long as all stages of a short text. These, and
            # single tasks, therefore run in this process.
            is_short = self._documents is not None and self._bytes < 2 * self._job.part_bytes
            is_here = is_short or len(found) == 1
            arguments = ((stage, *element, *values) for element in found)
            for result in self._pool.map(listed, arguments, is_here=is_here, watch=watch):
                yield from result
                if stage in _BY_ELEMENT:
                    progress.advance()
            watch()
        if stage is look.look:
            self._documents, self._bytes, _ = self._pool.counts

    def _shown(self, stage: Stage, elements: int) -> Progress:
        if stage not in _BY_DOCUMENT:
            is_hidden = stage not in _BY_ELEMENT or elements < _SHOWN
            return Progress(_BY_ELEMENT.get(stage, ""), total=elements, hidden=is_hidden)
        progress = Progress(_BY_DOCUMENT[stage], total=self._documents)
        began = time.monotonic()

        def describe() -> str:
            documents, tokens, kept = self._pool.counts
            if stage is look.look:
                return f"{documents:,} documents"
            seconds = time.monotonic() - began
            before = f", {kept:,} documents reused" if kept else ""
            return (
                f"{documents:,} documents ({(documents - kept) / seconds:,.0f}/s), "
                f"{tokens:,} tokens ({tokens / seconds:,.0f}/s){before}"
            )

        progress.describe = describe
        return progress

    def each_of(self, name: str, split: Callable[[Any], list[Any]], value: Any) -> list[Any]:
        del name
        return split(value)

    def grouped(self, name: str, pairs: Iterable[tuple[Any, Any]]) -> list[tuple[Any, list[Any]]]:
        del name
        groups: dict[Any, list[Any]] = defaultdict(list)
        for key, value in pairs:
            groups[key].append(value)
        return [*groups.items()]

    def joined(
        self, name: str, units: Iterable[tuple[int, Unit]], *pairs: Iterable[tuple[int, Any]]
    ) -> list[tuple[Any, ...]]:
        found = [dict(self.grouped(name, each)) for each in pairs]
        return [
            (number, unit, *(of_unit.get(number, []) for of_unit in found))
            for number, unit in units
        ]

    def one(self, stage: Stage, elements: Iterable[Any], *values: Any) -> Any:
        return stage(self._job, elements, *values)

    def merged(
        self, stage: Stage, merge: Callable[[Iterable[Any]], Any], elements: Iterable[Any]
    ) -> Any:
        found = merge([])
        for result in self._each(stage, elements):
            found = merge([found, result])
        return found
