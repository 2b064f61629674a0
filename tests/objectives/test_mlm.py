"""A run without next sentences, from the command line: what RoBERTa changed in rows and masks."""

import json

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.config import CheckpointConfig, EvaluationConfig, OptimizerConfig, PhaseConfig
from bert_jax.data.corpus.store import open_corpus
from tests import tiny_corpus
from tests.test_end_to_end import rows_of
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


def test_it_trains_evaluates_and_reports(corpus, tmp_path, capsys):
    config, run = tiny_corpus.write_config(tmp_path / "tiny.json", _CONFIG), tmp_path / "run"
    command = ["pretrain", str(config), "--corpus", str(corpus), "--workdir", str(run)]
    assert main([*command, *(word for change in _SET for word in ("--set", change))]) == 0
    # The bias is all that a fresh model knows.
    entropy = open_corpus(corpus).manifest["unigram_entropy_nats"]
    first = rows_of(run)[0]["mlm_loss"]
    assert abs(first - entropy) < 0.25 < np.log(240) - entropy
    capsys.readouterr()
    assert main(["evaluate", "--json", str(run), "--corpus", str(corpus)]) == 0
    figures = json.loads(capsys.readouterr().out)
    last = rows_of(run, "validation")[-1]
    assert figures["mlm_loss"] == pytest.approx(last["mlm_loss"], rel=1e-6)
    assert main(["report", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == _STEPS
    stored = json.loads((run / "config.json").read_text())["config"]
    assert stored["phases"][0]["max_predictions"] == 10
