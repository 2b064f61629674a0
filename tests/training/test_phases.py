"""A run with different phases (rate, theta, mask rate, length, batch), also when interrupted."""

from pathlib import Path

import pytest

from bert_jax.__main__ import main
from bert_jax.config import (
    CheckpointConfig,
    DataConfig,
    EvaluationConfig,
    ModelConfig,
    PhaseConfig,
    TrainConfig,
)
from bert_jax.pretrained.load import load_checkpoint
from bert_jax.runtime.stop import Preemption
from bert_jax.update.schedules import Constant, WarmupStableDecay
from bert_jax.update.stable_adamw import StableAdamW
from bert_jax.workdir import log_reader
from tests import tiny_corpus
from tests.batches import mesh_of
from tests.states import arrays_of, assert_same_bits

# The last updates of the phases.
_ENDS = (3, 6, 8)


def long_config() -> TrainConfig:
    """Rows of 128, 256 and 2,048 tokens, as a ModernBERT is extended."""
    return tiny_corpus.tiny_config(
        objective="mlm",
        model=ModelConfig(
            vocab_size=240,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=16,
            hidden_dropout_prob=0.1,
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=2048,
            type_vocab_size=0,
            position_embedding_type="rotary",
            norm_placement="pre",
            attention_window=16,
        ),
        data=DataConfig(sequence_format="documents"),
        optimizer=StableAdamW(
            schedule=Constant(),
            learning_rate=5e-3,
            warmup_steps=2,
            clip_norm=0.0,
        ),
        phases=(
            PhaseConfig(sequence_length=128, steps=3, global_batch_size=8, masked_lm_prob=0.3),
            PhaseConfig(
                sequence_length=256,
                steps=3,
                global_batch_size=16,
                masked_lm_prob=0.15,
                learning_rate=2e-3,
                rope_theta=160_000.0,
            ),
            PhaseConfig(
                sequence_length=2048,
                steps=2,
                global_batch_size=2,
                schedule=WarmupStableDecay(decay_steps=2, min_lr_ratio=0.001),
                warmup_steps=0,
                learning_rate=1e-3,
            ),
        ),
        evaluation=EvaluationConfig(every_steps=0, num_examples=2, batch_size=2),
        checkpoint=CheckpointConfig(every_steps=1, keep_last=20),
    )


def rows_of(workdir: Path) -> dict[int, dict]:
    rows = log_reader.read_rows(workdir)
    return {row["step"]: row for row in rows if row.get("split", "train") == "train"}


def held_out(workdir: Path) -> dict[int, float]:
    rows = log_reader.read_rows(workdir)
    return {row["step"]: row["loss"] for row in rows if row.get("split") == "validation"}


@pytest.fixture(scope="module")
def config_file(tmp_path_factory) -> Path:
    return tiny_corpus.write_config(tmp_path_factory.mktemp("phases") / "long.json", long_config())


@pytest.fixture(scope="module")
def whole(config_file, corpus, tmp_path_factory) -> Path:
    workdir = tmp_path_factory.mktemp("whole") / "workdir"
    assert main([*command_of(config_file, corpus), str(workdir)]) == 0
    return workdir


def command_of(config: Path, corpus: Path) -> list[str]:
    return ["pretrain", str(config), "--corpus", str(corpus), "--workdir"]


def test_each_phase_has_its_own_rate_on_its_own_clock(whole):
    rates = [rows_of(whole)[step]["learning_rate"] for step in range(1, 9)]
    # A warm-up of two updates, which restarts with the rate of the second phase.
    constant = [0, 2.5e-3, 5e-3, 0, 1e-3, 2e-3]
    decay = [1e-3, 1e-3 * (0.001 + 0.999 * (1 - 0.5**0.5))]
    assert rates == pytest.approx([*constant, *decay], rel=1e-6)


def test_each_phase_is_compiled_once_and_evaluated_at_its_end(whole):
    compiled = [e["phase"] for e in log_reader.read_events(whole) if e["event"] == "compile"]
    assert compiled == [0, 1, 2]
    assert list(held_out(whole)) == list(_ENDS)


def test_what_computes_attention_is_logged_for_each_phase(whole):
    events = [e for e in log_reader.read_events(whole) if e["event"] == "attention"]
    assert [event["phase"] for event in events] == [0, 1, 2]
    last = ["fused"] * 2 + ["chunked"]  # the last layer computes only the positions that are read
    assert [e["by_layers"] for e in events] == [{"local": "local", "last": name} for name in last]


def test_what_a_phase_changes_is_logged_and_nothing_else(whole):
    events = [e for e in log_reader.read_events(whole) if e["event"] == "phase"]
    assert [event["phase"] for event in events] == [1, 2]
    first, last = (event["changes"] for event in events)
    # Room for predictions and sequences follows from rate and length.
    room = {"max_predictions", "max_sequences"}
    assert {n: c for n, c in first.items() if n not in room} == {
        "global_batch_size": [8, 16],
        "masked_lm_prob": [0.3, 0.15],
        "model.rope_theta": [10_000.0, 160_000.0],
        "optimizer.learning_rate": [5e-3, 2e-3],
        "sequence_length": [128, 256],
    }
    assert {n: c for n, c in last.items() if n not in room} == {
        "global_batch_size": [16, 2],
        "optimizer.learning_rate": [2e-3, 1e-3],
        "optimizer.schedule.decay_steps": [None, 2],
        "optimizer.schedule.kind": ["constant", "warmup_stable_decay"],
        "optimizer.schedule.min_lr_ratio": [None, 0.001],
        "optimizer.warmup_steps": [2, 0],
        "sequence_length": [256, 2048],
    }


def test_a_run_that_is_cut_in_and_at_each_boundary_has_the_same_bits(
    whole, config_file, corpus, tmp_path
):
    workdir, command = tmp_path / "workdir", command_of(config_file, corpus)
    for stop in (2, 3, 7):
        with pytest.MonkeyPatch.context() as patch:
            reached = lambda self, stop=stop: stop in saved(workdir)  # noqa: E731
            patch.setattr(Preemption, "requested", reached)
            assert main([*command, str(workdir)]) == 42
    assert main([*command, str(workdir)]) == 0
    assert held_out(workdir) == held_out(whole)
    for step in (*_ENDS, 7):
        assert_same_bits(arrays_of(whole, step), arrays_of(workdir, step))


def saved(workdir: Path) -> list[int]:
    folder = workdir / "checkpoints"
    return [int(p.name) for p in folder.iterdir() if p.name.isdigit()] if folder.is_dir() else []


def test_a_checkpoint_is_the_model_of_its_phase(whole):
    for step, theta in ((3, 10_000.0), (4, 160_000.0), (8, 160_000.0)):
        loaded = load_checkpoint(whole / "checkpoints" / str(step), mesh=mesh_of(1))
        assert loaded.config.model.rope_theta == theta
