"""Words seen as a clock: which steps are kept, in whatever pieces a run is made."""

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from bert_jax.__main__ import main
from bert_jax.config import CheckpointConfig, EvaluationConfig, PhaseConfig
from bert_jax.data.corpus.store import open_corpus
from bert_jax.runtime.stop import Preemption
from bert_jax.training.pretrain import pipeline_of
from bert_jax.training.words_seen import steps_at_words, words_seen
from bert_jax.workdir import checkpoint
from tests import tiny_corpus
from tests.batches import mesh_of
from tests.test_end_to_end import last_row, numbers_of, rows_of

# 40 packed or unpacked steps of two phases; the last of the numbers is never reached.
_CONFIG = tiny_corpus.tiny_config(
    model=dataclasses.replace(tiny_corpus.tiny_config().model, num_hidden_layers=1),
    phases=(
        PhaseConfig(sequence_length=32, steps=30, global_batch_size=16, max_predictions=5),
        PhaseConfig(sequence_length=48, steps=10, global_batch_size=8, max_predictions=7),
    ),
    evaluation=EvaluationConfig(every_steps=0, num_examples=16, batch_size=16),
    checkpoint=CheckpointConfig(every_steps=9, keep_last=1, at_words=(1_000, 4_000, 10**9)),
)


def fake(words_per_step: int, words: int) -> tuple[Any, Any]:
    pipeline = SimpleNamespace(epochs=lambda step: {"": step * words_per_step / words})
    return pipeline, SimpleNamespace(sources={}, manifest={"counts": {"train": {"words": words}}})


@pytest.mark.parametrize(
    ("at_words", "steps"),
    [
        # The first step at which so many words were seen.
        ((1, 70, 71, 2_100), {1: 1, 70: 1, 71: 2, 2_100: 30}),
        # 40 steps see 2,800 words, which 2,828 is 1 % more than.
        ((2_800, 2_828), {2_800: 40, 2_828: 40}),
        ((2_829, 5_000), {}),
        ((140, 70, 70), {70: 1, 140: 2}),
        ((), {}),
    ],
    ids=str,
)
def test_the_step_of_a_number_of_words(at_words, steps):
    config = tiny_corpus.tiny_config(
        phases=_CONFIG.phases, checkpoint=CheckpointConfig(at_words=at_words)
    )
    assert steps_at_words(config, *fake(70, 997)) == steps


def test_an_epoch_has_all_words_of_the_training_split(corpus):
    opened = open_corpus(corpus)
    pipeline = pipeline_of(_CONFIG, opened)
    rows = [stream.epoch_rows for mixture in pipeline._mixtures for stream in mixture.streams]
    words = opened.manifest["counts"]["train"]["words"]
    assert words_seen(pipeline, opened, 0) == 0
    assert words_seen(pipeline, opened, 20) == round(20 * 16 / rows[0] * words)
    both = 30 * 16 / rows[0] + 5 * 8 / rows[1]
    assert words_seen(pipeline, opened, 35) == round(both * words)


def test_a_stopped_run_keeps_the_same_steps_and_bits(tmp_path, corpus):
    config = tiny_corpus.write_config(tmp_path / "tiny.json", _CONFIG)
    command = ["pretrain", str(config), "--corpus", str(corpus), "--workdir"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert main([*command, str(whole)]) == 0
    opened = open_corpus(corpus)
    marks = steps_at_words(_CONFIG, pipeline_of(_CONFIG, opened), opened)
    assert [*marks] == [1_000, 4_000] and 1 < marks[1_000] < marks[4_000] < 40
    assert checkpoint.steps(whole) == [*marks.values(), 40]
    # Before the first of them, and after it.
    for stop in (marks[1_000] - 1, marks[1_000] + 1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                Preemption, "requested", lambda self, stop=stop: last_row(stopped) >= stop
            )
            assert main([*command, str(stopped)]) == 42
    assert main([*command, str(stopped)]) == 0
    assert checkpoint.steps(stopped) == checkpoint.steps(whole)
    for step in marks.values():
        ours, theirs = (
            checkpoint.load_state(place, step=step, config=_CONFIG, mesh=mesh_of(8))
            for place in (stopped, whole)
        )
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            assert jax.device_get(a).tobytes() == jax.device_get(b).tobytes()
    assert numbers_of(stopped) == numbers_of(whole)

    rows = rows_of(whole)
    for words, step in marks.items():
        assert rows[step - 2]["words"] < words <= rows[step - 1]["words"]
    assert [row["epochs"] for row in rows] == sorted(row["epochs"] for row in rows)
    flops = [row["flops"] for row in rows]
    assert flops[29] == 30 * flops[0] and flops[39] == flops[29] + 10 * (flops[30] - flops[29])
    manifest = json.loads((corpus / "corpus.json").read_text(encoding="utf-8"))
    seen = rows[-1]["epochs"] * manifest["counts"]["train"]["words"]
    assert rows[-1]["words"] == round(seen)
