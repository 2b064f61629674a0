"""Batches: fields, purity, epochs, phases, the evaluation set, tf.data."""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from bert_jax.config import DataConfig, PhaseConfig
from bert_jax.data.corpus.store import Split
from bert_jax.data.pretraining import mixture
from bert_jax.data.pretraining.batch import Batch, signature
from bert_jax.data.pretraining.epochs import EpochCache
from bert_jax.data.pretraining.pipeline import EvaluationSet, Pipeline, tf_batches
from bert_jax.data.pretraining.spans import SpanPlan
from bert_jax.data.tokenizer.tokenizer import Vocabulary
from bert_jax.errors import UsageError
from bert_jax.objectives.mlm_nsp import MLM_NSP
from tests.batches import check_batch, stream_of
from tests.limits import HUNG
from tests.synthetic_corpus import FIRST_WORD, SPECIAL, random_split, split_from_lengths

SMALL = PhaseConfig(sequence_length=32, steps=100, global_batch_size=16, max_predictions=5)


def make_split(num_documents: int = 60, **kw) -> Split:
    """Every token has another id, so that a row shows which tokens of the corpus it holds."""
    return random_split(num_documents, mean_tokens=8, vocab_size=None, **kw)


def vocab_size(split: Split) -> int:
    return FIRST_WORD + int(split.sentence_starts[-1])


def make_pipeline(
    split: Split, *phases: PhaseConfig, seed: int = 0, mask_rate: float = 0.15
) -> Pipeline:
    return Pipeline(
        split,
        collator=MLM_NSP,
        vocabulary=Vocabulary(SPECIAL, vocab_size(split)),
        options=DataConfig(masked_lm_prob=mask_rate),
        phases=phases or (SMALL,),
        seed=seed,
    )


def epoch_size(split: Split, phase: PhaseConfig = SMALL) -> int:
    """Returns the rows of the first epoch of `make_pipeline`."""
    return stream_of(split, DataConfig(), phase).epoch_rows


def make_evaluation(split: Split, **kw) -> EvaluationSet:
    arguments = {"sequence_length": 32, "max_predictions": 5, "num_examples": 50, "batch_size": 16}
    return EvaluationSet(
        split,
        collator=MLM_NSP,
        vocabulary=Vocabulary(SPECIAL, vocab_size(split)),
        options=DataConfig(),
        seed=0,
        **(arguments | kw),
    )


def restored(batch: Batch) -> np.ndarray:
    """`input_ids` before masking."""
    ids = batch["input_ids"].copy()
    row, column = np.nonzero(batch["mlm_weights"])
    ids[row, batch["mlm_positions"][row, column]] = batch["mlm_targets"][row, column]
    return ids


def assert_same(one: Batch, other: Batch) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert np.array_equal(array, other[name]), name


def join(batches: list[Batch]) -> Batch:
    return {name: np.concatenate([batch[name] for batch in batches]) for name in MLM_NSP.fields}


def steps_of_epoch(pipeline: Pipeline, split: Split, epochs: int, batch_size: int) -> list[list]:
    """The restored rows of whole epochs, as tuples."""
    size = epoch_size(split)
    steps = range(-(-epochs * size // batch_size))
    rows = restored(join([pipeline.batch_at(step, range(batch_size)) for step in steps]))
    rows = [tuple(row) for row in rows.tolist()]
    return [rows[epoch * size : (epoch + 1) * size] for epoch in range(epochs)]


def rows_of_plan(split: Split, plan: SpanPlan) -> set[tuple[int, ...]]:
    tokens = np.concatenate(split.shards)
    spans = [
        tokens[start : start + length].tolist()
        for start, length in zip(plan.start, plan.length, strict=True)
    ]
    rows = set()
    for a, b in zip(spans[::2], spans[1::2], strict=True):
        row = [SPECIAL.cls, *a, SPECIAL.sep, *b, SPECIAL.sep]
        rows.add(tuple(row + [SPECIAL.pad] * (32 - len(row))))
    return rows


# --- one batch -----------------------------------------------------------------------------------


def test_rows_are_pairs_of_the_corpus():
    split = make_split()
    pipeline = make_pipeline(split)
    batch = pipeline.batch_at(3, range(16))
    sentence_of = np.searchsorted(split.sentence_starts, np.arange(vocab_size(split)), "right") - 1
    document_of = np.searchsorted(split.document_starts, sentence_of, "right") - 1
    for ids, types, label in zip(
        restored(batch), batch["token_type_ids"], batch["nsp_labels"][:, 0], strict=True
    ):
        words = ids >= FIRST_WORD
        a, b = ids[words & (types == 0)] - FIRST_WORD, ids[words & (types == 1)] - FIRST_WORD
        assert (np.diff(a) == 1).all() and (np.diff(b) == 1).all()  # neighbours in the corpus
        documents_a, documents_b = set(document_of[a]), set(document_of[b])
        assert len(documents_a) == len(documents_b) == 1
        assert (documents_a == documents_b) == (label == 0)


def test_the_seed_decides_and_shards_do_not():
    one, same, other = (
        make_pipeline(make_split(num_shards=shards), seed=seed).batch_at(2, range(16))
        for shards, seed in ((1, 0), (5, 0), (1, 1))
    )
    assert_same(one, same)
    assert (one["input_ids"] != other["input_ids"]).mean() > 0.5


# --- epochs and phases ---------------------------------------------------------------------------


def test_an_epoch_shows_every_pair_of_its_plan_once():
    split = make_split()
    pipeline = make_pipeline(split)
    first, second = steps_of_epoch(pipeline, split, 2, 16)
    assert len(set(first)) == len(first) == epoch_size(split)
    assert first != sorted(first)
    assert set(first) == rows_of_plan(split, stream_of(split, DataConfig(), SMALL).plans.get(0))
    # The second epoch only repeats a pair if it has fewer pairs than the first.
    assert len(set(second) & set(first)) < 0.2 * len(first)
    assert len(set(second)) > 0.9 * len(second)


def test_masks_differ_in_every_epoch_and_phase():
    """A corpus of two documents of one sentence each has the same two pairs in every epoch."""
    split = split_from_lengths(np.array([14, 14]), np.array([1, 1]), vocab_size=None)
    phase = PhaseConfig(sequence_length=32, steps=50, global_batch_size=2, max_predictions=5)
    pipeline = make_pipeline(split, phase, phase)
    assert epoch_size(split, phase) == 2
    batch = join([pipeline.batch_at(step, range(2)) for step in range(100)])
    # 5 of 28 positions: 98,280 choices, so that 200 draws all differ with probability 0.8, and
    # rarely more than two pairs of them agree.
    assert len(np.unique(batch["mlm_positions"], axis=0)) > 195


def test_batch_size_does_not_change_the_examples():
    split = make_split()

    def rows(size: int) -> Batch:
        phase = dataclasses.replace(SMALL, steps=400 // size, global_batch_size=size)
        pipeline = make_pipeline(split, phase)
        return join([pipeline.batch_at(step, range(size)) for step in range(phase.steps)])

    assert_same(rows(4), rows(10))


def test_phases_follow_each_other():
    split = make_split()
    long = PhaseConfig(sequence_length=64, steps=4, global_batch_size=8, max_predictions=9)
    pipeline = make_pipeline(split, SMALL, long, SMALL)
    shapes = [
        pipeline.batch_at(step, range(2))["input_ids"].shape for step in (0, 99, 100, 103, 104, 203)
    ]
    assert shapes == [(2, 32)] * 2 + [(2, 64)] * 2 + [(2, 32)] * 2
    # Equal phases do not have the same examples.
    first, again = (pipeline.batch_at(step, range(16)) for step in (0, 104))
    assert (first["input_ids"] != again["input_ids"]).mean() > 0.5
    with pytest.raises(IndexError):
        pipeline.batch_at(204, range(1))


def test_one_thread_computes_a_plan_and_two_plans_are_kept():
    calls, release = [], threading.Event()

    def plan(epoch: int) -> range:
        calls.append(epoch)
        release.wait(HUNG)
        return range(epoch + 1)

    cache = EpochCache(plan)
    results: list[range] = []
    threads = [threading.Thread(target=lambda: results.append(cache.get(3))) for _ in range(4)]
    for thread in threads:
        thread.start()
    release.set()
    for thread in threads:
        thread.join()
    assert calls == [3]
    assert len(results) == 4 and all(result is results[0] for result in results)
    for epoch in (0, 1, 0, 1, 2, 1, 0):
        assert len(cache.get(epoch)) == epoch + 1
    assert calls == [3, 0, 1, 2, 0]


@pytest.mark.parametrize("is_ahead", [True, False])
def test_a_plan_that_fails_raises_when_it_is_used_and_is_tried_again(is_ahead):
    """Also a plan that was computed in the background."""
    calls, computed = [], threading.Event()

    def plan(epoch: int) -> range:
        calls.append(epoch)
        computed.set()
        if len(calls) <= 1 + is_ahead:
            raise OSError("disk gone")
        return range(1)

    cache = EpochCache(plan)
    if is_ahead:
        cache.begin(0)
        assert computed.wait(HUNG)
    with pytest.raises(OSError, match="disk gone"):
        cache.get(0)
    assert cache.get(0) == range(1) and len(calls) == 2 + is_ahead
    cache.begin(0)
    assert cache.get(0) == range(1) and len(calls) == 2 + is_ahead


def test_the_next_epoch_is_planned_ahead(monkeypatch):
    monkeypatch.setattr(mixture, "_TOGETHER", 1)  # one step at a time
    begun: list[int] = []
    monkeypatch.setattr(EpochCache, "begin", lambda _, epoch: begun.append(epoch))
    split = make_split()
    per_epoch = epoch_size(split) / 16
    pipeline = make_pipeline(split)
    pipeline.batch_at(int(0.7 * per_epoch), range(16))
    assert begun == []
    pipeline.batch_at(int(0.9 * per_epoch), range(16))
    assert begun == [1]
    # Not beyond the last epoch of the phase.
    short = dataclasses.replace(SMALL, steps=int(per_epoch) - 1)
    make_pipeline(split, short).batch_at(int(per_epoch) - 2, range(16))
    assert begun == [1]


# --- evaluation ----------------------------------------------------------------------------------


def test_evaluation_ends_with_rows_of_weight_zero():
    split = make_split()
    evaluation = make_evaluation(split)
    assert (evaluation.num_examples, evaluation.num_batches) == (50, 4)
    last = evaluation.batch_at(3, range(16))
    check_batch(last, rows=16, sequence_length=32, max_predictions=5, vocab_size=vocab_size(split))
    assert last["nsp_weights"][:, 0].tolist() == [1] * 2 + [0] * 14
    assert (last["input_ids"][2:] == last["input_ids"][1]).all()
    assert (last["mlm_weights"][2:] == 0).all() and (last["mlm_weights"][:2, 0] == 1).all()
    assert (last["sequence_ids"][:, 0] == 1).all()
    beyond = evaluation.batch_at(3, range(8, 16))
    assert_same(beyond, {name: array[8:] for name, array in last.items()})


def test_evaluation_is_the_same_in_batches_of_any_size():
    split = make_split()
    sets = [make_evaluation(split, batch_size=size) for size in (16, 7, 50)]
    rows = [
        join([one.batch_at(i, range(size)) for i in range(one.num_batches)])
        for one, size in zip(sets, (16, 7, 50), strict=True)
    ]
    for other in rows[1:]:
        assert_same(
            {name: array[:50] for name, array in rows[0].items()},
            {name: array[:50] for name, array in other.items()},
        )
        assert other["mlm_weights"].sum() == rows[0]["mlm_weights"].sum()


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [make_pipeline, make_evaluation])
def test_one_document_is_not_enough(make: Callable):
    split = split_from_lengths(np.full(10, 5), np.array([10]))
    with pytest.raises(UsageError, match=r"train split .* has 1 document.*another document"):
        make(split)


def test_a_phase_may_override_the_mask_rate():
    """Its batches equal those of a run at that rate; the other phase's batches do not change."""
    split = make_split()

    def batches(*rates: float, rate: float = 0.15):
        phases = (PhaseConfig(sequence_length=32, steps=3, masked_lm_prob=own) for own in rates)
        pipeline = make_pipeline(split, *phases, mask_rate=rate)
        return [pipeline.batch_at(step, range(16)) for step in (0, 5)]

    usual, many, both = batches(-1, -1), batches(-1, -1, rate=0.4), batches(0.4, -1)
    for step, expected in enumerate((many[0], usual[1])):
        assert_same(both[step], expected)
    assert both[0]["mlm_weights"].shape[1] == 13 and both[1]["mlm_weights"].shape[1] == 5


@pytest.mark.parametrize("max_predictions", [0, 30])
def test_impossible_predictions(max_predictions: int):
    with pytest.raises(UsageError, match=rf"max_predictions {max_predictions} is out of range"):
        make_evaluation(make_split(), max_predictions=max_predictions)


# --- tf.data -------------------------------------------------------------------------------------


def batches_by_tf_data(
    batch_at: Callable[[int], Batch], start: int, stop: int, *, rows: int, workers: int = 2
) -> Iterator[Batch]:
    return tf_batches(
        batch_at,
        start,
        stop,
        signature=signature(MLM_NSP.fields, SMALL, rows=rows),
        num_workers=workers,
        prefetch=2,
    )


@pytest.mark.parametrize("start", [0, 5], ids=["from the start", "resumed"])
def test_tf_data_gives_the_same_batches_in_order(start):
    split = make_split()
    pipeline = make_pipeline(split)

    def batch_at(step: int) -> Batch:
        time.sleep(0.02 * (step % 3 == 0))  # a later step may be ready first
        return pipeline.batch_at(step, range(4, 12))

    batches = list(batches_by_tf_data(batch_at, start, 25, rows=8, workers=3))
    assert len(batches) == 25 - start
    for step, batch in enumerate(batches, start):
        check_batch(
            batch, rows=8, sequence_length=32, max_predictions=5, vocab_size=vocab_size(split)
        )
        expected = pipeline.batch_at(step, range(4, 12))
        assert_same(batch, expected)
        assert all(batch[name].dtype == array.dtype for name, array in expected.items())


def test_tf_data_computes_a_bounded_number_of_batches_ahead():
    pipeline, computed = make_pipeline(make_split()), []

    def batch_at(step: int) -> Batch:
        computed.append(step)
        return pipeline.batch_at(step, range(4))

    batches = batches_by_tf_data(batch_at, 0, 100, rows=4)
    next(batches)
    until = time.monotonic() + HUNG
    while len(computed) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    # One batch was taken, two wait, and each of two workers may hold two more.
    assert 3 <= len(computed) <= 7


def test_tf_data_raises_what_the_batch_raised():
    class Broken(Exception):
        pass

    pipeline = make_pipeline(make_split())

    def batch_at(step: int) -> Batch:
        if step == 3:
            raise Broken(f"step {step}")
        return pipeline.batch_at(step, range(4))

    batches = batches_by_tf_data(batch_at, 0, 10, rows=4)
    assert len([next(batches) for _ in range(3)]) == 3
    with pytest.raises(Broken, match="step 3"):
        next(batches)
