"""Weights & Biases: the rows of metrics.jsonl, and nothing that stops training."""

import sys
from types import SimpleNamespace
from typing import ClassVar

import pytest

from bert_jax.__main__ import main
from bert_jax.errors import UsageError
from bert_jax.registry import TRACKERS
from bert_jax.workdir import trackers
from bert_jax.workdir.log_reader import read_rows
from bert_jax.workdir.metrics_log import MetricsLogger

_ROWS = (
    {"step": 10, "loss": 6.5, "learning_rate": 1e-4, "steps": 10, "time": 1.5},
    {"step": 20, "loss": 5.25, "learning_rate": 2e-4, "steps": 10, "time": 2.5},
    {"step": 20, "split": "validation", "mlm_loss": 5.5, "sequence_length": 32},
)
# As wandb receives them.
_TOLD = [
    {"step": 10, "train/loss": 6.5, "train/learning_rate": 1e-4},
    {"step": 20, "train/loss": 5.25, "train/learning_rate": 2e-4},
    {"step": 20, "validation/mlm_loss": 5.5},
]


def logged(workdir, *names: str) -> None:
    """A run that was interrupted after its first row, which is replayed."""
    workdir.mkdir(exist_ok=True)
    config = {"seed": 3, "name": "tiny"}
    logger = MetricsLogger(workdir, name="my-run", trackers=names, config=config)
    logger.open_curves(_ROWS[:1])
    for row in _ROWS[1:]:
        logger.row(**row)
    logger.close()


def test_weights_and_biases(tmp_path, monkeypatch):
    """wandb receives the name of the run and its rows, each with its step."""
    made, sent = [], []
    run = SimpleNamespace(
        define_metric=lambda *_, **__: None, log=sent.append, finish=lambda: sent.append("finish")
    )
    wandb = SimpleNamespace(
        init=lambda **options: made.append(options) or run, Settings=lambda **options: options
    )
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    logged(tmp_path / "run", "wandb")
    assert [(each["name"], each["config"]["seed"]) for each in made] == [("my-run", 3)]
    assert sent == [*_TOLD, "finish"]


class Kept:
    """A tracker that keeps what it receives."""

    package = "json"
    received: ClassVar[list] = []

    def __init__(self, name, config, directory):
        self.received[:] = [(name, config["seed"], directory.name)]

    def row(self, values):
        self.received.append(values)

    def close(self):
        self.received.append("closed")


def test_a_tracker_receives_the_rows_of_the_log(tmp_path, monkeypatch):
    monkeypatch.setitem(TRACKERS._entries, "kept", Kept)
    logged(tmp_path / "run", "kept")
    assert Kept.received == [("my-run", 3, "run"), *_ROWS, "closed"]
    assert read_rows(tmp_path / "run") == list(_ROWS[1:])  # the first row was there before


@pytest.mark.parametrize("where", ["__init__", "row", "close"])
@pytest.mark.parametrize("error", [OSError("no network"), SystemExit(1)])
def test_a_tracker_that_fails_is_named_once(tmp_path, monkeypatch, capsys, where, error):
    def fail(*_):
        raise error

    failing = type("Failing", (Kept,), {where: fail, "received": []})
    monkeypatch.setitem(TRACKERS._entries, "failing", failing)
    monkeypatch.setitem(TRACKERS._entries, "kept", Kept)
    logged(tmp_path / "run", "failing", "kept")
    assert Kept.received[1:-1] == list(_ROWS)
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert shown.startswith(f"tracker failing failed ({type(error).__name__} ")


def test_an_absent_package_is_one_line(monkeypatch, tmp_path, corpus, capsys):
    absent = type("Absent", (Kept,), {"package": "surely_not_installed"})
    monkeypatch.setitem(TRACKERS._entries, "absent", absent)
    with pytest.raises(UsageError, match="the package 'surely_not_installed' is not installed"):
        trackers.require_installed(["absent"])
    command = [
        "pretrain",
        "tiny_docs_cpu",
        "--corpus",
        str(corpus),
        "--workdir",
        str(tmp_path / "w"),
    ]
    assert main([*command, "--tracker", "absnt"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "trackers is 'absnt'; choose one of wandb" in said
    assert "Did you mean 'absent'?" in said and not (tmp_path / "w").exists()
