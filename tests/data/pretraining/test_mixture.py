"""Batches of several sources: the source of each row, purity, and pairs within one source."""

import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from bert_jax.config import DataConfig, PhaseConfig
from bert_jax.data.corpus.several import mixed, open_corpora
from bert_jax.data.corpus.store import Corpus, Split
from bert_jax.data.pretraining import dealing, mixture
from bert_jax.data.pretraining.batch import Batch
from bert_jax.data.pretraining.pipeline import Pipeline
from bert_jax.data.tokenizer.tokenizer import Vocabulary
from bert_jax.errors import UsageError
from bert_jax.objectives.contrastive import CONTRASTIVE
from bert_jax.objectives.mlm_nsp import MLM_NSP
from bert_jax.objectives.objective import Objective
from tests.data.pretraining.test_pipeline import assert_same, restored
from tests.synthetic_corpus import FIRST_WORD, SPECIAL, random_split

ROWS, TOKENS = 20, 4000
PHASE = PhaseConfig(sequence_length=32, steps=40, global_batch_size=ROWS)
PLAIN, PACKED = DataConfig(), DataConfig(packing="best_fit")
_COUNTS = {"documents": 0, "sentences": 0, "tokens": 0}


def corpus_of(number: int, documents: int) -> Corpus:
    """Tokens of source k are distinct ids from k * TOKENS: a row shows its source."""
    split = random_split(documents, seed=number, mean_tokens=6, vocab_size=None, num_shards=2)
    assert split.tokens < TOKENS
    shards = tuple(shard + number * TOKENS for shard in split.shards)
    split = dataclasses.replace(split, shards=shards)
    return Corpus(
        directory=Path(f"corpus{number}"),
        manifest={
            "tokenizer": {},
            "counts": {"train": _COUNTS, "validation": _COUNTS},
            "options": {},
            "sources": [],
            "unigram_entropy_nats": float(number),
            "unknown_share": {"train": 0.0},
        },
        fingerprint=str(number),
        tokenizer_hash="the same",
        vocab_size=10**6,
        special=SPECIAL,
        begins_word=np.ones(1, bool),
        train=split,
        validation=dataclasses.replace(split, name="validation"),
    )


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealing, "_LONGEST", 256)


SOURCES = {name: corpus_of(i, 20 + 10 * i) for i, name in enumerate(("code", "talk", "wiki"))}


def made(
    sources: Mapping[str, Corpus] = SOURCES,
    options: DataConfig = PLAIN,
    phases: tuple[PhaseConfig, ...] = (PHASE,),
    each: list[DataConfig] | None = None,
    objective: Objective = MLM_NSP,
) -> Pipeline:
    whole = mixed(sources)
    return Pipeline(
        whole.train,
        collator=objective,
        vocabulary=Vocabulary(SPECIAL, 10**6),
        options=each or options,
        phases=phases,
        seed=3,
        sources={name: corpus.train for name, corpus in whole.sources.items()},
    )


def sources_in(batch: Batch) -> list[list[int]]:
    """The numbers of the sources of the words in each row."""
    ids = restored(batch).astype(np.int64) - FIRST_WORD
    return [np.unique(row[row >= 0] // TOKENS).tolist() for row in ids]


def counts(pipeline: Pipeline, steps: range, sources: int = 3) -> np.ndarray:
    found = []
    for step in steps:
        each = sources_in(pipeline.batch_at(step, range(ROWS)))
        assert all(len(row) == 1 for row in each), "pairs stay within their source"
        found.append(np.bincount(np.concatenate(each), minlength=sources))
    return np.array(found)


@pytest.mark.parametrize("options", [PLAIN, PACKED], ids=["unpacked", "packed"])
def test_a_batch_has_the_shares_and_no_row_two_sources(options):
    options = dataclasses.replace(options, source_weights="code=1,talk=2.5,wiki=4")
    found = counts(made(options=options), range(40))
    exact = ROWS * np.array([1, 2.5, 4]) / 7.5
    assert np.abs(found - exact).max() < 1
    assert np.abs(found.cumsum(0) - exact * np.arange(1, 41)[:, None]).max() < 1


def test_default_weights_are_sizes_smoothed_by_a_temperature():
    tokens = np.array([corpus.train.tokens for corpus in SOURCES.values()])
    for temperature in (1.0, 3.0, 1e9):
        total = counts(made(options=DataConfig(source_temperature=temperature)), range(40)).sum(0)
        share = tokens ** (1 / temperature)
        assert np.abs(total - 40 * ROWS * share / share.sum()).max() < 1.01
    assert np.ptp(total) <= 1


@pytest.mark.parametrize("options", [PLAIN, PACKED], ids=["unpacked", "packed"])
def test_any_hosts_at_any_time_make_the_same_batches(options):
    """For any earlier requests, ranges, and numbers of rows at once."""
    options = dataclasses.replace(options, source_weights="code=1,talk=3,wiki=7")
    expected = {step: made(options=options).batch_at(step, range(ROWS)) for step in (0, 7, 31)}
    again = made(options=options)
    for step in (31, 7, 0):
        for cuts in ((0, 20), (0, 1, 2, 20), (0, 5, 10, 15, 20)):
            parts = [again.batch_at(step, range(*ends)) for ends in itertools.pairwise(cuts)]
            joined = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
            assert_same(joined, expected[step])


@pytest.mark.parametrize("packing", ["none", "best_fit"])
def test_a_batch_of_pairs_has_one_source(packing):
    weights = "code=1,talk=2.5,wiki=4"
    options = DataConfig(sequence_format="crops", packing=packing, source_weights=weights)

    def pairs() -> Pipeline:
        return made(options=options, objective=CONTRASTIVE)

    pipeline, turns = pairs(), []
    for step in range(40):
        words = pipeline.batch_at(step, range(ROWS))["input_ids"].astype(np.int64) - FIRST_WORD
        (source,) = np.unique(words[words >= 0] // TOKENS)
        turns.append(np.arange(3) == source)
    exact = np.array([1, 2.5, 4]) / 7.5 * np.arange(1, 41)[:, None]
    assert np.abs(np.cumsum(turns, axis=0) - exact).max() < 1
    for step in (39, 11):
        assert_same(pairs().batch_at(step, range(ROWS)), pipeline.batch_at(step, range(ROWS)))


def test_many_sources_equal_separately_planned_sources(monkeypatch):
    many = {f"s{i:02}": corpus_of(i, 5 + i % 7) for i in range(60)}
    together = [made(many).batch_at(step, range(ROWS)) for step in (0, 1, 39)]
    monkeypatch.setattr(mixture, "_TOGETHER", 0)
    monkeypatch.setattr(
        mixture.Mixture, "take",
        lambda self, step, rows: self._plan((step, step + 1, rows.start, rows.stop))[0],
    )  # fmt: skip
    alone = made(many)
    for step, expected in zip((0, 1, 39), together, strict=True):
        assert_same(alone.batch_at(step, range(ROWS)), expected)


def test_the_first_source_has_the_same_rows_without_others():
    """Its k-th row equals the k-th row of a run with only this source, bit for bit."""
    plain = Pipeline(
        SOURCES["code"].train, collator=MLM_NSP, vocabulary=Vocabulary(SPECIAL, 10**6),
        options=DataConfig(), phases=(PHASE,), seed=3,
    )  # fmt: skip
    both = made(options=DataConfig(source_weights="code=1,talk=1,wiki=2"))
    rows = [both.batch_at(step, range(5)) for step in range(8)]
    for name, array in plain.batch_at(0, range(ROWS)).items():
        assert np.array_equal(np.concatenate([r[name] for r in rows])[:ROWS], array), name
    assert plain.epochs(40) == {"": 40 * ROWS / plain._mixtures[0].streams[0].epoch_rows}


def test_phases_may_have_weights_and_epochs_are_counted():
    phases = (PHASE, dataclasses.replace(PHASE, sequence_length=48))
    each = [DataConfig(source_weights=text) for text in ("code=1,talk=1", "code=0,talk=1")]
    two = {name: SOURCES[name] for name in ("code", "talk")}
    pipeline = made(two, phases=phases, each=each)
    assert (counts(pipeline, range(40), 2) == 10).all()
    assert (counts(pipeline, range(40, 80), 2) == [0, ROWS]).all()
    code, talk = (stream.epoch_rows for stream in pipeline._mixtures[0].streams)
    later = pipeline._mixtures[1].streams[1].epoch_rows
    assert pipeline.epochs(0) == {"code": 0, "talk": 0}
    assert pipeline.epochs(20) == {"code": 200 / code, "talk": 200 / talk}
    assert pipeline.epochs(60) == {"code": 400 / code, "talk": 400 / talk + 400 / later}
    assert pipeline.shares(1) == {"code": 0, "talk": 1}


def test_a_part_of_a_mixture_is_its_source():
    whole = mixed(SOURCES)
    assert list(whole.sources) == list(SOURCES)
    for name, source in whole.sources.items():
        for split in ("train", "validation"):
            part: Split = getattr(source, split)
            own: Split = getattr(SOURCES[name], split)
            tokens = np.concatenate(part.shards)
            assert part.tokens == own.tokens
            assert np.array_equal(part.document_starts, own.document_starts)
            assert np.array_equal(np.diff(part.sentence_starts), np.diff(own.sentence_starts))
            begin = part.sentence_starts[0]
            assert np.array_equal(tokens[begin : begin + own.tokens], np.concatenate(own.shards))
            assert part.name == f"{name} {split}"
    # The mean over held-out rows: each source has equally many, regardless of its tokens.
    assert whole.manifest["unigram_entropy_nats"] == pytest.approx(1)


@pytest.mark.parametrize("weights", ["code=1,talk=1", "code=1,talk=1,wiki=1,kode=2"])
def test_weights_must_name_the_sources(weights: str):
    with pytest.raises(UsageError, match=r"data\.source_weights .*the sources are "):
        made(options=DataConfig(source_weights=weights))


def test_compatible_corpora():
    one, other = SOURCES["code"], SOURCES["talk"]
    for change, said in (
        ({"tokenizer_hash": "another"}, "have different tokenizers"),
        ({"fingerprint": "0"}, "have the same text"),
    ):
        with pytest.raises(UsageError, match=rf"a \(corpus0\) and b \(corpus1\) {said}"):
            mixed({"a": one, "b": dataclasses.replace(other, **change)})


def test_a_mixture_without_corpora_is_rejected():
    with pytest.raises(UsageError, match="no corpus is named"):
        open_corpora({})
