"""A run without next sentences, from the command line: all that RoBERTa changed in rows and masks.

It is trained, interrupted, resumed to the same bits, evaluated and reported.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.config import CheckpointConfig, EvaluationConfig, OptimizerConfig, PhaseConfig
from bert_jax.data.corpus.store import open_corpus
from bert_jax.runtime.stop import Preemption
from bert_jax.training import initialization
from tests import tiny_corpus
from tests.states import arrays_of, assert_same_bits
from tests.test_end_to_end import numbers_of, rows_of
from tests.tiny_corpus import tiny_config

_STEPS = 12
_CONFIG = tiny_config(
    phases=(PhaseConfig(sequence_length=32, steps=_STEPS, global_batch_size=8),),
    optimizer=OptimizerConfig(learning_rate=5e-3, warmup_steps=2),
    evaluation=EvaluationConfig(every_steps=0, num_examples=16, batch_size=16),
    checkpoint=CheckpointConfig(every_steps=6),
)
_SET = (
    "objective=mlm", "data.sequence_format=full_sentences", "model.type_vocab_size=1",
    "model.num_hidden_layers=1", "phases.0.masked_lm_prob=0.3", "optimizer.z_loss=1e-4",
    "output_bias=log_frequency",
)  # fmt: skip


def test_it_trains_is_interrupted_resumes_evaluates_and_reports(
    corpus, tmp_path, monkeypatch, capsys
):
    config = tiny_corpus.write_config(tmp_path / "tiny.json", _CONFIG)
    whole, cut = tmp_path / "whole", tmp_path / "cut"

    def pretrain(workdir: Path) -> int:
        command = ["pretrain", str(config), "--corpus", str(corpus), "--workdir", str(workdir)]
        return main([*command, *(word for change in _SET for word in ("--set", change))])

    assert pretrain(whole) == 0
    with monkeypatch.context() as patch:
        asked = iter(range(1000))
        patch.setattr(Preemption, "requested", lambda self: next(asked) >= 9)
        assert pretrain(cut) == 42
    with monkeypatch.context() as patch:
        # The corpus is counted for a new run only.
        patch.setattr(initialization, "token_counts", None)
        assert pretrain(cut) == 0
    events = [json.loads(line) for line in (cut / "events.jsonl").read_text().splitlines()]
    (resumed,) = (e["step"] for e in events if e["event"] == "resume")
    assert 6 < resumed < _STEPS
    assert numbers_of(cut) == numbers_of(whole)
    assert_same_bits(arrays_of(whole, _STEPS), arrays_of(cut, _STEPS))

    # The bias is all that a fresh model knows.
    entropy = open_corpus(corpus).manifest["unigram_entropy_nats"]
    first = rows_of(whole)[0]["mlm_loss"]
    assert abs(first - entropy) < 0.25 < np.log(240) - entropy
    capsys.readouterr()
    assert main(["evaluate", "--json", str(whole), "--corpus", str(corpus)]) == 0
    figures = json.loads(capsys.readouterr().out)
    last = rows_of(whole, "validation")[-1]
    assert figures["mlm_loss"] == pytest.approx(last["mlm_loss"], rel=1e-6)
    assert main(["report", str(whole), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == _STEPS
    stored = json.loads((whole / "config.json").read_text())["config"]
    assert stored["phases"][0]["max_predictions"] == 10
