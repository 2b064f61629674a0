"""Batches of a split that is planned in pieces, one block at a time."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from bert_jax.config import DataConfig, PhaseConfig
from bert_jax.data.corpus.pieces import Blocks, Pieces
from bert_jax.data.corpus.store import Split
from bert_jax.data.pretraining import mixture
from bert_jax.data.pretraining.epochs import EpochCache
from bert_jax.data.pretraining.pipeline import Pipeline
from bert_jax.data.pretraining.stream import Stream
from bert_jax.data.tokenizer.tokenizer import Vocabulary
from bert_jax.objectives.mlm import MLM
from bert_jax.objectives.mlm_nsp import MLM_NSP
from tests.batches import stream_of
from tests.synthetic_corpus import FIRST_WORD, SPECIAL, random_split

BLOCKS = Blocks(tokens=8_000, lanes=8, pieces=16)
ONE_BLOCK = Blocks(tokens=10**9, lanes=8, pieces=16)
# Every token has another id, so that a row shows which tokens of the split it holds.
SPLIT = random_split(360, mean_tokens=8, vocab_size=None, num_shards=3)
# 16 rows are divided among eight lanes, 6 among two, 7 go to one.
ROWS, LANES = 16, 8
PAIRS = DataConfig()
KINDS = {
    "pairs": PAIRS,
    "packed pairs": DataConfig(packing="best_fit"),
    "documents": DataConfig(sequence_format="documents"),
    "packed documents": DataConfig(sequence_format="documents", packing="best_fit"),
    "full sentences": DataConfig(sequence_format="full_sentences"),
}


def phase_of(options: DataConfig, rows: int) -> PhaseConfig:
    most = -1 if options.packing != "none" else 5
    return PhaseConfig(
        sequence_length=32, steps=10**6, global_batch_size=rows, max_predictions=most
    )


def stream(options: DataConfig = PAIRS, rows: int = ROWS, blocks: Blocks = BLOCKS) -> Stream:
    """Returns the stream of `made`."""
    return stream_of(SPLIT, options, phase_of(options, rows), blocks=blocks)


def made(options: DataConfig = PAIRS, *, rows: int = ROWS, blocks: Blocks = BLOCKS, **kw):
    return Pipeline(
        SPLIT,
        collator=MLM_NSP if options.sequence_format == "sentence_pairs" else MLM,
        vocabulary=Vocabulary(SPECIAL, FIRST_WORD + SPLIT.tokens),
        options=options,
        phases=(phase_of(options, rows),),
        seed=0,
        blocks=blocks,
        **kw,
    )


@pytest.fixture
def nothing_ahead(monkeypatch) -> None:
    monkeypatch.setattr(Stream, "plan_ahead", lambda *_: None)


def first_tokens(pipeline: Pipeline, steps) -> np.ndarray:
    """The position in the split of the first token of each row: int `[steps, ROWS]`."""
    found = []
    for step in steps:
        batch = pipeline.batch_at(step, range(ROWS))
        ids = batch["input_ids"].copy()
        np.put_along_axis(ids, batch["mlm_positions"], batch["mlm_targets"], axis=1)
        found.append(ids[:, 1] - FIRST_WORD)
    return np.array(found)


@pytest.mark.parametrize(
    ("kind", "rows", "blocks"),
    [
        *((kind, 16, BLOCKS) for kind in KINDS),
        *(("pairs", rows, BLOCKS) for rows in (6, 7)),
        ("packed documents", 6, BLOCKS),
        *((kind, 16, ONE_BLOCK) for kind in ("pairs", "packed pairs")),
    ],
)
def test_any_hosts_and_any_order_have_the_same_rows(kind, rows, blocks):
    whole = made(KINDS[kind], rows=rows, blocks=blocks)
    size = stream(KINDS[kind], rows, blocks).epoch_rows
    steps = [0, 1, *range(size // rows // 4 - 1, 2 * size // rows, size // rows // 4)]
    expected = {step: whole.batch_at(step, range(rows)) for step in steps}
    for first, end in itertools.pairwise([0, 1, rows // 2, rows]):
        host = made(KINDS[kind], rows=rows, blocks=blocks)
        for step in reversed(steps):
            for name, array in host.batch_at(step, range(first, end)).items():
                assert np.array_equal(array, expected[step][name][first:end]), (step, name)


@pytest.mark.parametrize("kind", ["pairs", "documents", "full sentences"])
def test_a_pass_sees_nearly_all_rows_once(kind):
    """Units differ in size: a larger one omits a few rows, a smaller one repeats some."""
    pipeline, planner = made(KINDS[kind]), stream(KINDS[kind])
    size = planner.epoch_rows
    units = [planner.plans.get(unit) for unit in range(LANES * Pieces(SPLIT, BLOCKS).blocks)]
    planned = {int(start) for plan in units for start in plan.start[plan.bounds[:-1]]}
    assert sum(map(len, units)) == pytest.approx(size, rel=0.05)
    seen = first_tokens(pipeline, range(size // ROWS)).ravel()
    if kind != "pairs":  # some pairs have lost tokens at their beginning
        assert set(seen.tolist()) <= planned
    assert len(np.unique(seen)) > 0.9 * len(planned)
    # The rows of two epochs are in different order.
    steps = size // ROWS
    again = first_tokens(pipeline, range(steps, 2 * steps)).ravel()
    assert (seen[: again.size] == again[: seen.size]).mean() < 0.05


@pytest.mark.usefixtures("nothing_ahead")
def test_a_host_only_plans_the_pieces_of_its_rows(monkeypatch):
    monkeypatch.setattr(mixture, "_TOGETHER", 1)  # one step at a time
    planned: list[int] = []
    take = Pieces.__getitem__
    monkeypatch.setattr(Pieces, "__getitem__", lambda self, n: planned.append(n) or take(self, n))
    steps = stream().epoch_rows // ROWS
    sampled = {*planned}
    assert len(planned) == len(sampled) == 4, "a sample: two lanes of eight"
    there = len(Pieces(SPLIT, BLOCKS))
    by_host = []
    for host in range(4):
        planned.clear()
        pipeline = made()
        for step in range(steps):
            pipeline.batch_at(step, range(4 * host, 4 * host + 4))
        by_host.append({*planned})
    # Each host plans its pieces, and the sample; together they plan all pieces.
    assert set.union(*by_host) == {*range(there)}
    assert all(len(each - sampled) <= there // 4 for each in by_host)


def test_the_units_of_the_next_block_are_planned_ahead(monkeypatch):
    begun: list[int] = []
    monkeypatch.setattr(EpochCache, "begin", lambda _, unit: begun.append(unit))
    planner = stream()
    rows = planner.epoch_rows // Pieces(SPLIT, BLOCKS).blocks  # per block
    third = np.arange(2 * rows, 2 * rows + 4)  # in two of its lanes
    planner.plan_ahead(third, last=10 * rows)
    assert begun == [24, 25], "those of this host"
    # Not beyond the last block of the phase.
    planner.plan_ahead(third + rows, last=4 * rows - 1)
    assert begun == [24, 25]


def test_batches_are_as_varied_as_independent_draws_from_a_block():
    """The variance of a batch mean is at most that of independent draws from its block.

    For 40 random properties, each shared by all rows of a piece, the mean ratio of the two
    variances is at most 1.1; so is the ratio for the position of rows in the split.
    """
    options = DataConfig(sequence_format="documents")
    pipeline = made(options)
    pieces = Pieces(SPLIT, BLOCKS)
    edges = np.array([int(pieces[number].sentence_starts[0]) for number in range(len(pieces))])
    steps = stream(options).epoch_rows / pieces.blocks / ROWS  # per block
    draw, ratios, places = np.random.default_rng(0), [], []
    for block in range(pieces.blocks):
        within = range(math.ceil(block * steps), int((block + 1) * steps))
        tokens = first_tokens(pipeline, within)
        piece = np.searchsorted(edges, tokens, side="right") - 1
        assert len(np.unique(piece)) == BLOCKS.pieces
        for value in draw.normal(size=(40, len(pieces))):
            of_rows = value[piece]
            ratios.append(of_rows.mean(1).var() / (of_rows.var() / ROWS))
        places.append(tokens.mean(1).var() / (tokens.var() / ROWS))
    assert np.mean(ratios) <= 1.1 and np.mean(places) <= 1.1


def test_split_sentences_are_noted_once(capsys):
    pipeline = made(DataConfig(sequence_format="full_sentences"))
    for step in range(0, 200, 20):
        pipeline.batch_at(step, range(ROWS))
    said = [line for line in capsys.readouterr().err.splitlines() if "sentences are" in line]
    assert len(said) == 1 and said[0].startswith("train: some sentences are longer")


def test_a_mixture_of_large_and_small_sources_is_the_same_for_any_hosts():
    def part(first: int, end: int) -> Split:
        starts = np.asarray(SPLIT.document_starts)[first : end + 1]
        sentences = SPLIT.sentence_starts[starts[0] : starts[-1] + 1]
        return dataclasses.replace(
            SPLIT, document_starts=starts - starts[0], sentence_starts=sentences
        )

    sources = {"large": part(0, 300), "small": part(300, 360)}
    assert len(Pieces(sources["large"], BLOCKS)) > 1
    options = DataConfig(source_weights="large=5,small=3")
    whole = made(options, sources=sources)
    steps = [0, 1, 90, 91, 500, 1200]
    expected = {step: whole.batch_at(step, range(ROWS)) for step in steps}
    for first, end in ((0, 5), (5, 16)):
        host = made(options, sources=sources)
        for step in reversed(steps):
            for name, array in host.batch_at(step, range(first, end)).items():
                assert np.array_equal(array, expected[step][name][first:end]), (step, name)
