"""Packed pre-training rows: they rearrange unpacked rows, and sequences do not leak."""

import collections
import dataclasses
import functools
import itertools
import json

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.__main__ import main
from bert_jax.cli.training.pretrain import _print_closing
from bert_jax.config import (
    ComputeConfig,
    DataConfig,
    HeadConfig,
    ModelConfig,
    PhaseConfig,
    TrainConfig,
)
from bert_jax.config_checks import complete, validate
from bert_jax.data.corpus.store import open_corpus
from bert_jax.data.pretraining import packing
from bert_jax.data.pretraining.batch import Batch, Field
from bert_jax.data.pretraining.packing import best_fit, place
from bert_jax.data.pretraining.pipeline import EvaluationSet, Pipeline
from bert_jax.data.pretraining.stream import Stream
from bert_jax.data.tokenizer.tokenizer import Vocabulary
from bert_jax.errors import UsageError
from bert_jax.model import bert, sharding
from bert_jax.objectives.mlm_nsp import MLM_NSP
from bert_jax.objectives.objective import Objective
from bert_jax.registry import MASKINGS, OBJECTIVES, SEQUENCE_FORMATS
from bert_jax.training.evaluate import batch_shape
from bert_jax.training.pretrain import Pretraining
from bert_jax_lab.planning.padding import padding
from tests.batches import stream_of
from tests.models import random_params
from tests.synthetic_corpus import SPECIAL, random_split
from tests.tiny_corpus import tiny_config, write_config

LENGTH, VOCABULARY = 32, 48
PHASE = PhaseConfig(sequence_length=LENGTH, steps=1000, global_batch_size=8, max_sequences=5)
PACKED = DataConfig(packing="best_fit")
# Short documents, so that a row holds several.
SPLIT = random_split(120, mean_sentences=3, mean_tokens=5, vocab_size=VOCABULARY)
SPECIAL_IDS = Vocabulary(SPECIAL, VOCABULARY, np.arange(VOCABULARY) % 3 != 0)


def pipeline(
    options: DataConfig = PACKED, *phases: PhaseConfig, objective: str = "mlm+nsp"
) -> Pipeline:
    phases = phases or (PHASE,)
    if options.packing == "none":
        phases = tuple(dataclasses.replace(phase, max_sequences=-1) for phase in phases)
    return Pipeline(
        SPLIT,
        collator=OBJECTIVES[objective],
        vocabulary=SPECIAL_IDS,
        options=options,
        phases=phases,
        seed=3,
    )


def planned(options: DataConfig = PACKED, phase: PhaseConfig = PHASE) -> Stream:
    """Returns the stream of `pipeline`."""
    most = phase.max_sequences if options.packing != "none" else -1
    return stream_of(SPLIT, options, dataclasses.replace(phase, max_sequences=most), seed=3)


def joined(batches: list[Batch]) -> Batch:
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def rows_of(made: Pipeline, first: int, stop: int) -> Batch:
    """Returns the rows `first` to `stop` of `PHASE`, regardless of their steps."""
    size = PHASE.global_batch_size
    steps = range(first // size, -(-stop // size))
    whole = joined([made.batch_at(step, range(size)) for step in steps])
    return {name: array[first - steps[0] * size :][: stop - first] for name, array in whole.items()}


def sequences_of(batch: Batch, objective: str = "mlm+nsp") -> collections.Counter:
    """Returns all values of each sequence of a batch, at any position, as bytes."""
    fields, found = OBJECTIVES[objective].fields, collections.Counter()
    ids = batch["sequence_ids"]
    for row, number in ((r, n) for r in range(len(ids)) for n in range(1, ids[r].max() + 1)):
        here = ids[row] == number
        start = int(np.flatnonzero(here)[0])
        assert here[start : start + here.sum()].all(), "a sequence is in one piece"
        is_mine = (batch["mlm_weights"][row] > 0) & here[batch["mlm_positions"][row]]
        parts = []
        for name, field in fields.items():
            which = {"L": here, "M": is_mine, "P": slice(number - 1, number)}[field.size]
            part = batch[name][row, which]
            part = part > 0 if name == "sequence_ids" else part
            parts.append((part - start * name.endswith("_positions")).tobytes())
        found[tuple(parts)] += 1
    return found


# --- which sequences share a row -----------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 20), max_size=60), st.integers(1, 6))
def test_each_sequence_has_its_position(lengths, most):
    lengths = np.array(lengths, np.int64)
    packing = best_fit(lengths, length=20, most=most)
    assert sorted(packing.examples) == list(range(len(lengths)))
    for row in range(len(packing)):
        examples, (count,) = packing.take(np.array([row]))
        assert 1 <= count <= most and lengths[examples].sum() <= 20
    assert packing.starts[0] == 0 and packing.starts[-1] == len(lengths)
    # One after the other, each into the fullest row with enough space: gives the same rows.
    rows: list[int] = []
    for length in sorted(lengths.tolist(), reverse=True):
        fitting = [row for row in rows if row + length <= 20]
        if fitting:
            rows.remove(max(fitting))
        rows.append(max(fitting, default=0) + length)
    free = best_fit(lengths, length=20, most=max(len(lengths), 1))
    totals = [lengths[free.take(np.array([row]))[0]].sum() for row in range(len(free))]
    assert sorted(totals) == sorted(rows)


def test_rows_are_full():
    """The lengths of a corpus of short articles: two fifths fill a separate row."""
    draw = np.random.default_rng(0)
    lengths = np.where(draw.random(100_000) < 0.4, 512, draw.geometric(0.01, 100_000) + 4)
    lengths = np.minimum(lengths, 512)
    (most,) = {PhaseConfig(sequence_length=512).resolved(0.15, packing="best_fit").max_sequences}
    packing = best_fit(lengths, length=512, most=most)
    assert lengths.sum() / (512 * len(packing)) > 0.97
    assert len(packing) < 0.6 * len(lengths)


def test_the_share_of_padding_is_that_of_an_epoch():
    """Within the difference of two draws of the same documents."""
    found = padding(SPLIT, options=DataConfig(), phase=PHASE, seed=3)
    alone, packed = pipeline(DataConfig()), pipeline()
    rows = planned(DataConfig()).epoch_rows
    tokens = np.count_nonzero(rows_of(alone, 0, rows)["sequence_ids"])
    assert found.sequences == pytest.approx(rows, rel=0.15)
    assert found.unpacked == pytest.approx(1 - tokens / (rows * LENGTH), abs=0.03)
    assert found.packed_rows == pytest.approx(planned().epoch_rows, rel=0.15)
    assert found.packed == pytest.approx(1 - packed.fill(0).tokens / LENGTH, abs=0.03)
    few = padding(SPLIT, options=DataConfig(), phase=PHASE, seed=3, most_documents=30)
    assert few.sequences == pytest.approx(rows * 30 / 120, rel=0.3)
    assert few.unpacked == pytest.approx(found.unpacked, abs=0.1)


def test_show_rows(corpus, tmp_path, capsys):
    path = str(write_config(tmp_path / "tiny.json", tiny_config()))
    assert main(["config", "sequences", path, "--corpus", str(corpus), "--json"]) == 0
    phases = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [phase["sequence_length"] for phase in phases] == [32, 48]
    assert all(0 <= phase["packed"] <= phase["unpacked"] < 1 for phase in phases)
    assert main(["config", "sequences", path, "--corpus", str(corpus)]) == 0
    said = capsys.readouterr().out
    assert f"{phases[1]['unpacked']:.1%}" in said and "--set data.packing=best_fit packs" in said
    assert main(["config", "sequences", path]) == 2
    assert "config sequences needs --corpus DIR" in capsys.readouterr().err


# --- a rearrangement, bit for bit ----------------------------------------------------------------


def _kinds():
    """Every objective with suitable rows, and every mask."""
    for objective, rows in itertools.product(OBJECTIVES.names(), SEQUENCE_FORMATS.names()):
        is_ours = OBJECTIVES.is_builtin(objective) and SEQUENCE_FORMATS.is_builtin(rows)
        # Pairs of texts: tests/objectives/test_contrastive.py.
        is_ours = is_ours and OBJECTIVES[objective].texts == SEQUENCE_FORMATS[rows].texts == 1
        if is_ours and rows in (OBJECTIVES[objective].rows or (rows,)):
            yield objective, rows, "tokens"
    yield from (
        ("mlm+nsp", "sentence_pairs", mask) for mask in MASKINGS.names() if mask != "tokens"
    )


@pytest.mark.parametrize(("objective", "rows", "mask"), [*_kinds()])
def test_a_packed_epoch_is_the_unpacked_one(objective, rows, mask, monkeypatch):
    # Short sequences are masked in tables with fewer columns: this test has several widths.
    monkeypatch.setattr(packing, "_SHORT", 16)
    options = dataclasses.replace(PACKED, sequence_format=rows, masking=mask)
    packed = pipeline(options, objective=objective)
    alone = pipeline(dataclasses.replace(options, packing="none"), objective=objective)
    of_epoch = planned(options)
    size, number = of_epoch.unit_examples, of_epoch.unit_rows
    assert size == planned(dataclasses.replace(options, packing="none")).epoch_rows > number
    assert rows != "sentence_pairs" or size > 1.5 * number
    batch = rows_of(packed, 0, number)
    expected = sequences_of(rows_of(alone, 0, size), objective)
    assert sum(expected.values()) == size
    assert sequences_of(batch, objective) == expected
    # The rest of a row is padding without weight.
    fields = OBJECTIVES[objective].fields
    assert {name: array.dtype for name, array in batch.items()} == {
        name: np.dtype(field.dtype) for name, field in fields.items()
    }
    is_padding = batch["sequence_ids"] == 0
    assert (batch["input_ids"][is_padding] == SPECIAL.pad).all()
    for name, field in fields.items():
        if field.size == "L" and name != "input_ids":
            assert not batch[name][is_padding].any(), name
    # Another epoch may omit a few rows, and repeat a few.
    again = sequences_of(rows_of(packed, number, 2 * number), objective)
    expected = sequences_of(rows_of(alone, size, 2 * size), objective)
    assert again.keys() <= expected.keys()
    assert sum((expected - again).values()) < 0.1 * size


def test_every_row_has_slots_for_its_predictions():
    """Also if nearly every sequence is rounded up."""
    for rate, length in itertools.product((0.02, 0.1, 0.15, 0.3, 0.5), (16, 32, 128)):
        phase = PhaseConfig(sequence_length=length)
        packed = phase.resolved(rate, packing="best_fit")
        alone = packed.unpacked(rate)
        assert alone == phase.resolved(rate)
        most = packed.max_sequences
        wanted = [max(1, round(rate * n - 1e-12)) for n in range(length + 1)]
        # best[k][n]: the most predictions of k sequences with n tokens in all.
        best = np.zeros(length + 1, int)
        for _ in range(most):
            best = np.array(
                [
                    max([best[n]] + [best[n - m] + min(wanted[m], m - 2) for m in range(3, n + 1)])
                    for n in range(length + 1)
                ]
            )
        assert alone.max_predictions <= packed.max_predictions
        assert best[length] <= packed.max_predictions < alone.max_predictions + most


# --- nothing leaks -------------------------------------------------------------------------------

MODEL = ModelConfig(
    vocab_size=VOCABULARY,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=LENGTH,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


@functools.cache
def two_batches(objective: str) -> tuple[Batch, Batch]:
    """The same sequences in separate rows and packed, with the same number of slots."""
    kind = OBJECTIVES[objective]
    rows = (kind.rows or ("sentence_pairs",))[0]
    options = dataclasses.replace(PACKED, sequence_format=rows)
    planner = planned(options)
    assert planner.packings is not None
    packed = planner.packings.get(0)
    numbers, counts = packed.take(np.argsort(-np.diff(packed.starts), kind="stable")[[0, 9, 60]])
    assert len(set(counts)) > 1 < min(counts)
    phase = PHASE.resolved(options.masked_lm_prob, packing=options.packing)
    arguments = {
        "fields": kind.fields,
        "pad": SPECIAL.pad,
        "sequence_length": LENGTH,
        "max_predictions": phase.max_predictions,
        "max_sequences": phase.sequences,
    }
    unpacked = pipeline(dataclasses.replace(options, packing="none"), objective=objective)
    epoch = rows_of(unpacked, 0, planner.unit_examples)
    alone = {name: array[numbers] for name, array in epoch.items()}
    parts = [(np.arange(len(numbers)), alone)]
    apart = place(parts, np.ones(len(numbers), np.int64), **arguments)
    is_real = {"L": alone["sequence_ids"] > 0, "M": alone["mlm_weights"] > 0, "P": slice(None)}
    for name, array in alone.items():
        which = is_real[kind.fields[name].size]
        assert np.array_equal(apart[name][:, : array.shape[1]][which], array[which]), name
    together = place(parts, counts, **arguments)
    assert together["sequence_ids"].max(axis=1).tolist() == counts.tolist()
    more = len(numbers) - len(counts)  # rows of padding, so that one program computes both
    together = {name: np.pad(array, ((0, more), (0, 0))) for name, array in together.items()}
    return apart, together


def config_of(objective: str, block: str, compute: ComputeConfig) -> TrainConfig:
    model = dataclasses.replace(MODEL, **BLOCKS[block])
    config = complete(TrainConfig(objective=objective, model=model, compute=compute))
    return dataclasses.replace(config, head=HeadConfig(parts=OBJECTIVES[objective].parts))


@functools.cache
def compiled(objective: str, block: str, attention: str, states: bool):
    """Returns parameters, and a function from a batch to gradients and outputs."""
    compute = ComputeConfig(dtype="float32", attention=attention)
    config = config_of(objective, block, compute)
    kind = OBJECTIVES[objective]
    params = random_params(config.model, config.head)

    def loss(params, batch):
        arguments = {"config": config.model, "head": config.head, "compute": compute}
        outputs = bert.apply(params, batch, **arguments, hidden_states=states)
        if type(kind).forward is Objective.forward:
            sums = kind.sums(outputs, batch)
        else:  # more than one pass
            sums = kind.forward(params, batch, config=config, key=None)
        return kind.loss(sums, kind.counts(batch)), outputs

    return params, jax.jit(jax.grad(loss, has_aux=True))


# Fields of the model: all in which blocks differ from BERT's, and a learned bias of scores.
# tests/model/test_positions.py has rows of several sequences for each kind of position.
BLOCKS = {
    "bert": {},
    "modern": {"norm_placement": "pre", "norm": "rmsnorm", "feed_forward": "gated"},
    "t5": {"position_embedding_type": "t5"},
}


def _models():
    yield "mlm+nsp", "bert", "fused", True
    for objective in OBJECTIVES.names():
        if OBJECTIVES.is_builtin(objective) and OBJECTIVES[objective].texts == 1:
            yield objective, "bert", "fused", False
    yield from (("mlm+nsp", block, "fused", False) for block in BLOCKS if block != "bert")
    # The others are for windows or TPUs.
    for attention in ("plain", "chunked"):
        yield "mlm+nsp", "bert", attention, False


each_model = pytest.mark.parametrize(("objective", "block", "attention", "states"), [*_models()])
# The kind of each output's columns.
_COLUMNS = {"last_hidden_state": "L", "mlm_logits": "M", "nsp_logits": "P", "replaced_logits": "L"}


def outputs_of_sequences(outputs, batch: Batch) -> list[dict[str, np.ndarray]]:
    """Returns the outputs of each sequence, in the order of the rows."""
    found = []
    ids = batch["sequence_ids"]
    for row, number in ((r, n) for r in range(len(ids)) for n in range(1, ids[r].max() + 1)):
        here = ids[row] == number
        is_mine = (batch["mlm_weights"][row] > 0) & here[batch["mlm_positions"][row]]
        columns = _COLUMNS.keys() & outputs.keys()
        assert columns
        which = {"L": here, "M": is_mine, "P": number - 1}
        found.append({name: outputs[name][row, which[_COLUMNS[name]]] for name in columns})
    return found


@each_model
def test_outputs_and_gradients_equal_those_of_separate_rows(objective, block, attention, states):
    params, function = compiled(objective, block, attention, states)
    (apart, together) = two_batches(objective)
    results = [jax.device_get(function(params, batch)) for batch in (apart, together)]
    outputs = [
        outputs_of_sequences(result[1], batch)
        for result, batch in zip(results, (apart, together), strict=True)
    ]
    assert len(outputs[0]) == len(outputs[1]) == len(apart["input_ids"])
    for one, other in zip(*outputs, strict=True):
        for name, array in one.items():
            np.testing.assert_allclose(other[name], array, atol=1e-5, rtol=0, err_msg=name)
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(results[0][0]))
    assert largest > 0.01
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-5 * largest)
    jax.tree.map(close, results[1][0], results[0][0])


@each_model
def test_sequences_do_not_attend_to_each_other(objective, block, attention, states):
    """Other tokens in one sequence of a row do not change a bit of the other outputs."""
    params, function = compiled(objective, block, attention, states)
    _, batch = two_batches(objective)
    for number in (1, 2):
        here = batch["sequence_ids"] == number
        changed = batch | {
            "input_ids": np.where(here, VOCABULARY - 1 - batch["input_ids"], batch["input_ids"])
        }
        before, after = (
            outputs_of_sequences(jax.device_get(function(params, one)[1]), batch)
            for one in (batch, changed)
        )
        ids = batch["sequence_ids"]
        numbers = [n for row in range(len(ids)) for n in range(1, ids[row].max() + 1)]
        for n, one, other in zip(numbers, before, after, strict=True):
            for name, array in one.items():
                if n == number:
                    assert np.abs(array - other[name]).max() > 1e-3, name
                else:
                    assert array.tobytes() == other[name].tobytes(), (number, n, name)


# --- configs, evaluation -------------------------------------------------------------------------


def config(**phase) -> TrainConfig:
    phases = (PhaseConfig(sequence_length=128, **phase), PhaseConfig(sequence_length=512))
    return TrainConfig(data=PACKED, phases=phases)


def test_slots_scale_with_the_length():
    found = validate(complete(config())).phases
    assert [(p.max_sequences, p.max_predictions) for p in found] == [(3, 20), (8, 81)]
    assert complete(complete(config())) == complete(config())
    unpacked = dataclasses.replace(config(), data=DataConfig())
    assert [(p.max_sequences, p.max_predictions) for p in complete(unpacked).phases] == (
        [(-1, 20), (-1, 77)]
    )
    fields = MLM_NSP.fields["nsp_labels"]
    assert fields.columns(sequence_length=128, max_predictions=20, max_sequences=3) == 3


@pytest.mark.parametrize(
    ("phase", "packing", "message"),
    [
        ({"max_predictions": 19}, "best_fit", "max_predictions is 19, but a packed row"),
        ({"max_sequences": 0}, "best_fit", "max_sequences is 0; a packed row of 128 tokens holds"),
        ({"max_sequences": 43}, "best_fit", "max_sequences is 43; .* 1 to 42"),
        ({"max_sequences": 3}, "none", "max_sequences is 3, but data.packing is none"),
    ],
)
def test_invalid_settings_are_named(phase, packing, message):
    changed = dataclasses.replace(config(**phase), data=DataConfig(packing=packing))
    with pytest.raises(UsageError, match=rf"phases\.0\.{message}"):
        validate(complete(changed))


def test_arrays_that_cannot_be_packed_are_named():
    batch = {
        "sequence_ids": np.ones((2, 4), np.int32),
        "mlm_weights": np.ones((2, 3), np.float32),
        "extra": np.ones((2, 7), np.float32),
    }
    parts = [(np.arange(2), batch)]
    sizes = {"pad": 0, "sequence_length": 8, "max_predictions": 5, "max_sequences": 2}
    fields = {"sequence_ids": Field("L", np.int32), "mlm_weights": Field("M", np.float32)}
    with pytest.raises(UsageError, match=r"needs 6 columns of 'mlm_weights' but has 5"):
        place(parts, np.array([2]), fields=fields, **sizes)
    with pytest.raises(UsageError, match=r"'extra' of the objective has size 7, which cannot"):
        place(parts, np.array([1, 1]), fields=fields | {"extra": Field("7", np.float32)}, **sizes)


def test_evaluation_is_not_packed():
    """Its batches equal those of a run without packing, so that metrics are comparable."""
    packed = complete(config())
    unpacked = complete(dataclasses.replace(packed, data=DataConfig(), phases=config().phases))
    found = []
    for one in (packed, unpacked):
        shape = batch_shape(one, one.phases[0], devices=8)
        held_out = EvaluationSet(
            SPLIT,
            collator=MLM_NSP,
            vocabulary=SPECIAL_IDS,
            options=one.data,
            sequence_length=shape.sequence_length,
            max_predictions=shape.max_predictions,
            num_examples=50,
            batch_size=16,
            seed=0,
        )
        found.append((shape, held_out.batch_at(3, range(16))))
    assert found[0][0] == found[1][0]
    for name, array in found[0][1].items():
        assert array.tobytes() == found[1][1][name].tobytes(), name


def test_the_work_of_a_packed_run(corpus, capsys):
    """Its batches have the announced shape, and its log rows contain the number of sequences."""
    phases = (PhaseConfig(sequence_length=48, steps=2, global_batch_size=8),)
    data = dataclasses.replace(PACKED, short_seq_prob=1.0, prefetch=1)
    config = complete(tiny_config(phases=phases, data=data))
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    with jax.set_mesh(mesh):
        work = Pretraining(config, open_corpus(corpus), mesh, peak=1.0)
        batches = list(work.batches(0, 0, 2))
        for name, shape in work.abstract_batch(0).items():
            assert [(b[name].shape, b[name].dtype) for b in batches] == 2 * [
                (shape.shape, shape.dtype)
            ]
        speed = work.speed(0, 0.5)
    assert 9 < speed["sequences_per_step"] < 3 * 8 and 0 < speed["padding"] < 0.25
    assert speed["sequences_per_second"] == 2 * speed["sequences_per_step"]
    tokens = np.mean([np.count_nonzero(batch["sequence_ids"]) for batch in batches])
    assert speed["real_tokens_per_second"] == pytest.approx(2 * tokens, rel=0.2)
    assert speed["tokens_per_second"] == 2 * 8 * 48
    validation = {figure.name: 1.0 for figure in MLM_NSP.figures}
    closing = {"validation": validation, "unigram_entropy": 2.0, "objective": "mlm+nsp", "step": 2}
    closing["expected"] = {"mlm_loss": None, "published": [], "warnings": []}
    _print_closing("workdir", closing | speed)
    said = capsys.readouterr().out
    assert f"{speed['sequences_per_step']:.0f} per step; {speed['padding']:.1%} padding" in said
