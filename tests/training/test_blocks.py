"""A run keeps the sizes by which it cuts a large corpus, whatever they are by then."""

import dataclasses
import json
from pathlib import Path

import pytest

from bert_jax.config import CheckpointConfig, EvaluationConfig, OptimizerConfig, PhaseConfig
from bert_jax.data.corpus.pieces import BLOCKS, Blocks
from bert_jax.data.corpus.prepare import prepare
from bert_jax.errors import UsageError
from bert_jax.training.pretrain import pretrain
from bert_jax.update.schedules import Constant
from bert_jax.workdir import log_reader, run_directory
from tests import tiny_corpus

SMALL = Blocks(tokens=700, lanes=4, pieces=4)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    text = tiny_corpus.write(folder / "tales.txt", number=60, seed=0)
    prepare([str(text)], folder / "tales", validation_fraction=0.2, workers=1, vocab_size=200)
    return folder / "tales"


def losses(corpus: Path, workdir: Path) -> list[float]:
    config = tiny_corpus.tiny_config(
        model=dataclasses.replace(tiny_corpus.tiny_config().model, num_hidden_layers=1),
        phases=(PhaseConfig(sequence_length=32, steps=4, global_batch_size=8, max_predictions=5),),
        evaluation=EvaluationConfig(every_steps=4, num_examples=16, batch_size=16),
        checkpoint=CheckpointConfig(every_steps=2),
        optimizer=OptimizerConfig(schedule=Constant(), warmup_steps=0),
    )
    pretrain(config, corpus_directory=corpus, workdir_path=workdir)
    return [
        row["loss"] for row in log_reader.read_rows(workdir) if row.get("split") != "validation"
    ]


def test_the_sizes_are_those_that_the_run_began_with(corpus, tmp_path, monkeypatch):
    with monkeypatch.context() as then:
        then.setattr(run_directory, "BLOCKS", SMALL)
        whole = losses(corpus, tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored["blocks"] == SMALL._asdict() != BLOCKS._asdict()
    (tmp_path / "checkpoints/4").rename(tmp_path / "last")  # as if it had been killed before
    assert losses(corpus, tmp_path) == whole
    assert run_directory.blocks_of(tmp_path / "another") == BLOCKS


@pytest.mark.parametrize(
    "sizes",
    [
        {"tokens": "1", "lanes": 4, "pieces": 4},
        {"tokens": 1, "lanes": 0, "pieces": 4},
        {"tokens": 1, "lanes": 4},
        "none",
        None,
    ],
)
def test_invalid_sizes_are_refused(tmp_path, sizes):
    (tmp_path / "config.json").write_text(json.dumps({"blocks": sizes}))
    with pytest.raises(UsageError, match=r"config\.json: blocks is .* must have tokens"):
        run_directory.blocks_of(tmp_path)
