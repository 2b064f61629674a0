"""An engine that runs each stage several times, in random order."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.data.corpus.job import Job, Unit
from bert_jax.data.corpus.local import LocalEngine
from bert_jax.data.corpus.pipeline import Stage, build, listed
from bert_jax.data.pool import Pool


class Repeated(LocalEngine):
    """Runs each stage `times` times per element, like an engine that lost a worker."""

    def __init__(self, job: Job, times: int, seed: int) -> None:
        super().__init__(job, Pool(1, job))
        self._times, self._draw = times, np.random.default_rng(seed)

    def _each(self, stage: Stage, elements: Iterable[Any], *values: Any) -> Iterator[Any]:
        found = [*elements]
        repeated = np.repeat(np.arange(len(found)), self._times)
        results = {
            number: listed(self._job, stage, *found[number], *values)
            for number in self._draw.permutation(repeated).tolist()
        }
        for result in results.values():
            yield from result

    def one(self, stage: Stage, elements: Iterable[Any], *values: Any) -> Any:
        found = [*elements]
        for _ in range(self._times):
            order = self._draw.permutation(len(found)).tolist()
            result = super().one(stage, [found[number] for number in order], *values)
        return result

    def merged(
        self, stage: Stage, merge: Callable[[Iterable[Any]], Any], elements: Iterable[Any]
    ) -> Any:
        results = [*self._each(stage, elements)]
        return merge([merge(results[::2]), merge(results[1::2])])


def make(job: Job, units: Sequence[Unit], *, times: int = 1, seed: int = 0) -> str:
    """Makes a corpus. Returns its fingerprint."""
    return build(Repeated(job, times, seed), job, units)["fingerprint"]
