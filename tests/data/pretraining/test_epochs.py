"""A resumed run plans its own epoch alone, by sizes that are kept in the workdir."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from bert_jax.config import DataConfig, PhaseConfig
from bert_jax.data.pretraining.epochs import EPOCHS, EpochSizes, FirstEpoch
from bert_jax.data.pretraining.pipeline import Pipeline
from bert_jax.data.pretraining.sentence_pairs import SentencePairs
from bert_jax.data.tokenizer.tokenizer import Vocabulary
from bert_jax.errors import DataDamaged
from bert_jax.files import checksum_of
from bert_jax.objectives.mlm_nsp import MLM_NSP
from tests.synthetic_corpus import SPECIAL, random_split

SPLIT = random_split(60, mean_tokens=8)
ROWS = 16
PHASE = PhaseConfig(sequence_length=32, steps=400, global_batch_size=ROWS)
PACKED = DataConfig(packing="best_fit")


def sizes_in(directory: Path, corpus: str = "one", *, is_writer: bool = True) -> EpochSizes:
    return EpochSizes(directory, corpus=corpus, is_writer=is_writer)


def made(kept: EpochSizes | None, options: DataConfig | None = None, *, seed: int = 0) -> Pipeline:
    return Pipeline(
        SPLIT,
        collator=MLM_NSP,
        vocabulary=Vocabulary(SPECIAL, 1000),
        options=options or DataConfig(),
        phases=(PHASE, dataclasses.replace(PHASE, sequence_length=48)),
        seed=seed,
        kept=kept,
    )


def bits_of(pipeline: Pipeline, step: int) -> list[bytes]:
    return [array.tobytes() for array in pipeline.batch_at(step, range(ROWS)).values()]


@pytest.fixture
def planned(monkeypatch) -> list[int]:
    """The lengths of all plans that are made, in turn."""
    lengths: list[int] = []
    plan = SentencePairs.plan

    def counted(self, split, **kw):
        lengths.append(kw["sequence_length"])
        return plan(self, split, **kw)

    monkeypatch.setattr(SentencePairs, "plan", counted)
    return lengths


def within_an_epoch(pipeline: Pipeline, phase: int) -> int:
    """A step of the phase's third epoch or a later one, whose rows are all of one epoch, and that
    is not near the next one.
    """
    size = pipeline.rows_per_epoch(phase)
    step = -(-2 * size // ROWS) + 1
    assert step < PHASE.steps and (step * ROWS) // size == ((step + 1) * ROWS - 1) // size
    assert (step * ROWS) % size < 0.7 * size
    return phase * PHASE.steps + step


@pytest.mark.parametrize("options", [DataConfig(), PACKED], ids=["unpacked", "packed"])
@pytest.mark.parametrize("phase", [0, 1])
def test_a_resumed_run_plans_its_own_epoch_alone(tmp_path, planned, options, phase):
    first = made(sizes_in(tmp_path), options)
    step = within_an_epoch(first, phase)
    expected = bits_of(first, step)
    planned.clear()

    again = made(sizes_in(tmp_path), options)
    assert bits_of(again, step) == expected
    assert planned == [(32, 48)[phase]]
    assert again.rows_per_epoch(phase) == first.rows_per_epoch(phase)
    assert again.examples_per_epoch(phase) == first.examples_per_epoch(phase)
    if options is PACKED:
        assert again.fill(phase) == first.fill(phase)
    assert len(planned) == 1, "none of these has planned again"

    # As many as ever, where nothing is kept: a workdir from before.
    planned.clear()
    assert bits_of(made(None, options), step) == expected
    assert planned == 2 * [(32, 48)[phase]]


def test_all_batches_are_those_of_a_run_that_counts_itself(tmp_path):
    made(sizes_in(tmp_path)).batch_at(0, range(ROWS))
    counting, told = made(None), made(sizes_in(tmp_path))
    for step in (0, 3, 57, 120, 399, 400, 555, 799):
        assert bits_of(told, step) == bits_of(counting, step)


def test_what_is_kept_is_of_one_corpus_and_one_choice_of_options(tmp_path, planned, capsys):
    step = within_an_epoch(made(sizes_in(tmp_path)), 0)
    for kept, options, seed, said in (
        (sizes_in(tmp_path, "two"), None, 0, "it is of another corpus"),
        (sizes_in(tmp_path), None, 1, "phase 0 had other options"),
        (sizes_in(tmp_path), DataConfig(short_seq_prob=0.9), 0, "phase 0 had other options"),
        (sizes_in(tmp_path), PACKED, 0, "phase 0 had other options"),
    ):
        expected = bits_of(made(None, options, seed=seed), step)
        planned.clear()
        assert bits_of(made(kept, options, seed=seed), step) == expected
        assert len(planned) == 2
        made(sizes_in(tmp_path)).batch_at(0, range(ROWS))  # what it was before
        err = capsys.readouterr().err
        assert f"{tmp_path / EPOCHS} is not used, since {said}" in err
    # Threads and the like decide nothing.
    planned.clear()
    made(sizes_in(tmp_path), DataConfig(num_workers=7, prefetch=1)).batch_at(step, range(ROWS))
    assert len(planned) == 1 and not capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"corpus": "one", "phases": {}}',
        '{"corpus": "one", "phases": {"0": {"examples": 3}}, "checksum": 1}',
        "\udcff",
    ],
)
def test_a_damaged_file_is_said_and_written_anew(tmp_path, planned, capsys, text):
    first = made(sizes_in(tmp_path))
    step, whole = within_an_epoch(first, 0), (tmp_path / EPOCHS).read_text()
    (tmp_path / EPOCHS).write_bytes(text.encode(errors="surrogateescape"))
    planned.clear()
    assert bits_of(made(sizes_in(tmp_path)), step) == bits_of(first, step)
    assert len(planned) >= 2
    err = capsys.readouterr().err
    assert "is not used, since it is damaged: the first epoch is planned again" in err
    assert (tmp_path / EPOCHS).read_text() == whole


def test_a_flipped_digit_is_damage(tmp_path, capsys):
    sizes_in(tmp_path).put(0, "x", FirstEpoch(100, 100, 0))
    text = (tmp_path / EPOCHS).read_text()
    (tmp_path / EPOCHS).write_text(text.replace("100", "101", 1))
    assert sizes_in(tmp_path).get(0, "x") is None
    assert "it is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("options", [DataConfig(), PACKED], ids=["unpacked", "packed"])
def test_a_size_that_the_plan_has_not_is_an_error(tmp_path, options):
    """By whatever writes checksums as we do: it is seen where the first epoch is planned anyway."""
    rows = made(sizes_in(tmp_path), options).rows_per_epoch(0)
    values = json.loads((tmp_path / EPOCHS).read_text())
    del values["checksum"]
    values["phases"]["0"]["rows"] += 1
    if options is not PACKED:
        values["phases"]["0"]["examples"] += 1
    (tmp_path / EPOCHS).write_text(json.dumps(values | {"checksum": checksum_of(values)}))
    with pytest.raises(DataDamaged, match=rf"phase 0 has {rows + 1} rows, and it has {rows}: del"):
        made(sizes_in(tmp_path), options).batch_at(0, range(ROWS))


def test_one_process_writes(tmp_path):
    made(sizes_in(tmp_path, is_writer=False)).batch_at(0, range(ROWS))
    assert not (tmp_path / EPOCHS).exists()


def test_a_folder_that_takes_no_file_is_said(tmp_path, capsys):
    (tmp_path / f"{EPOCHS}.new").mkdir()
    batch = made(sizes_in(tmp_path)).batch_at(0, range(ROWS))
    assert np.count_nonzero(batch["input_ids"])
    assert "cannot be written (Is a directory)" in capsys.readouterr().err
