"""The stages of a job run one after the other in this process: an engine of the fewest lines."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from bert_jax.data.cluster import alike, stages
from bert_jax.data.cluster.values import Candidates, Decided, Job, UnitCounts
from bert_jax.data.corpus.survey import Unit


def make(job: Job, units: Sequence[Unit], *, times: int = 1, seed: int = 0) -> str:
    """Makes a corpus, each stage run so many times, in an order that is drawn. Returns its
    fingerprint.
    """
    draw = np.random.default_rng(seed)

    def each(function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> list[Any]:
        found = [*arguments]
        order = draw.permutation(np.repeat(np.arange(len(found)), times)).tolist()
        made = {number: function(job, *found[number]) for number in order}
        return [made[number] for number in dict.fromkeys(order)]

    def one(function: Callable[..., Any], *arguments: Any) -> Any:
        return each(function, [arguments])[0]

    of_number = {unit.number: unit for unit in units}
    words = defaultdict(list)
    for found in each(stages.look, [(unit,) for unit in units]):
        for of, several in found:
            words[of].append(several)
    duplicates = defaultdict(list)
    for found in each(stages.losers, words.items()):
        for unit, numbers in found:
            duplicates[unit].append(numbers)
    decided = each(stages.decide_unit, [(unit, duplicates[unit.number]) for unit in units])
    if job.request.near_duplicates is not None:
        decided = _without_near_duplicates(job, each, of_number, decided)
    lines = [UnitCounts(of.unit, of.kept, of.totals) for of in decided]
    whole = one(stages.assign, lines)
    halves = [Candidates.lowest(job.sample_bytes, [of.sample]) for of in decided]
    sample = Candidates.lowest(job.sample_bytes, halves)
    wanted = [(of_number[unit], numbers) for unit, numbers in stages.wanted(sample)]
    vocabulary = one(stages.vocabulary, sample, each(stages.gather_unit, wanted), whole)
    encoded = each(
        stages.encode,
        [(of_number[of.unit], of, whole.begun[of.unit], vocabulary) for of in decided],
    )
    shards = stages.cut_shards(piece for pieces in encoded for piece in pieces)
    written = each(stages.write, [(*shard, vocabulary) for shard in shards])
    return one(stages.finish, written, vocabulary, whole)


def _without_near_duplicates(
    job: Job,
    each: Callable[..., list[Any]],
    of_number: dict[int, Unit],
    decided: list[Decided],
) -> list[Decided]:
    keys = defaultdict(list)
    for found in each(alike.keys, [(of,) for of in decided]):
        for of, several in found:
            keys[of].append(several)
    pairs = each(alike.pairs, keys.items())
    groups = alike.groups([alike.groups(pairs[::2]), alike.groups(pairs[1::2])])
    runs = defaultdict(list)
    wanted = [(of_number[unit], rows) for unit, rows in alike.groups_by_unit(groups)]
    for found in each(alike.runs, wanted):
        for group, of in found:
            runs[group].insert(0, of)
    dropped = defaultdict(list)
    for found in each(alike.near, runs.items()):
        for unit, numbers in found:
            dropped[unit].append(numbers)
    return [alike.drop(of, dropped[of.unit]) for of in decided]
