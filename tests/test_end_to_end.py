"""From text to a filled-in word and out of the house; and a run that is stopped ends the same."""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import bert_jax
from bert_jax.__main__ import main
from bert_jax.config import CheckpointConfig, OptimizerConfig, PhaseConfig
from bert_jax.data.corpus.store import open_corpus
from bert_jax.runtime.stop import Preemption
from bert_jax.workdir import checkpoint
from tests import tiny_corpus
from tests.batches import mesh_of
from tests.limits import HUNG
from tests.tiny_corpus import tiny_config

pytestmark = pytest.mark.core

_CONFIG = tiny_config()
# What differs from run to run; everything else in a row is a function of config and corpus.
_TIMING = ("tokens_per_second", "step_seconds", "mfu", "steps", "time", "data_wait_seconds")


def rows_of(workdir: Path, split: str = "train") -> list[dict]:
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row.get("split", "train") == split]


def numbers_of(workdir: Path) -> list[str]:
    """Every row as JSON text, which has all the bits of a number, without what is measured."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    rows = [{k: v for k, v in json.loads(line).items() if k not in _TIMING} for line in lines]
    # A row of training and one of evaluation may have the same step.
    return [json.dumps(row) for row in sorted(rows, key=lambda row: (row["step"], len(row)))]


def events_of(workdir: Path, name: str) -> list[dict]:
    events = map(json.loads, (workdir / "events.jsonl").read_text().splitlines())
    return [event for event in events if event["event"] == name]


# --- one run, and what comes of it ---------------------------------------------------------------


def test_the_held_out_loss_falls_below_the_unigram_entropy(trained, corpus):
    losses = {row["step"]: row["mlm_loss"] for row in rows_of(trained, "validation")}
    assert list(losses) == [40, 80, 120, 160, 200]
    assert losses[160] < losses[40] - 0.4  # of one phase: the rows of the other are longer
    assert losses[200] < open_corpus(corpus).manifest["unigram_entropy_nats"]


def test_what_is_in_a_workdir(trained):
    assert {p.name for p in trained.iterdir()} == {
        "config.json", "tokenizer", "checkpoints", "metrics.jsonl", "events.jsonl", "tensorboard",
    }  # fmt: skip
    assert checkpoint.steps(trained) == [120, 160, 200]
    rows = rows_of(trained)
    assert [row["step"] for row in rows] == list(range(1, 201))
    for row in rows:
        assert row.keys() >= {
            "step", "loss", "mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy", "learning_rate",
            "grad_norm", "tokens_per_second", "step_seconds", "mfu",
        }  # fmt: skip
        assert all(math.isfinite(value) for value in row.values())
    assert {row["sequence_length"] for row in rows_of(trained, "validation")} == {32, 48}
    assert [event["phase"] for event in events_of(trained, "compile")] == [0, 1]
    assert [event["step"] for event in events_of(trained, "save")] == [40, 80, 120, 160, 200]


def test_the_schedule_goes_through_the_phases_unbroken(trained):
    rates = [row["learning_rate"] for row in rows_of(trained)]
    peak, warmup, total = 5e-3, 10, 200
    expected = [peak * n / warmup if n < warmup else peak * (1 - n / total) for n in range(total)]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)


def test_tensorboard_has_the_curve_of_all_phases(trained):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def curves(split: str) -> EventAccumulator:
        folder = trained / "tensorboard" / trained.name / split
        return EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()

    # One name in two runs: TensorBoard draws them in one chart.
    train, validation = curves("train"), curves("validation")
    losses = train.Scalars("loss")
    assert "time" not in train.Tags()["scalars"]
    assert [e.step for e in losses] == list(range(1, 201))
    assert [e.step for e in validation.Scalars("mlm_loss")] == [40, 80, 120, 160, 200]
    assert [e.value for e in losses] == [row["loss"] for row in rows_of(trained)]


def evaluated(capsys, source: Path, *arguments: object) -> dict:
    capsys.readouterr()
    assert main(["evaluate", "--json", str(source), *map(str, arguments)]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_run_and_its_export_have_the_same_figures(trained, exported, corpus, capsys):
    """`evaluate` gives the figures that the run logged; the export is scored on its rows."""
    result = evaluated(capsys, trained, "--corpus", corpus)
    last = rows_of(trained, "validation")[-1]
    names = ("loss", "mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy", "perplexity")
    assert [result[name] for name in names] == [last[name] for name in names]
    assert (result["step"], result["sequence_length"]) == (200, 48)
    out = evaluated(capsys, exported, "--eval-set-from", trained, "--corpus", corpus)
    assert out["sequence_length"] == 48
    for name in names:
        assert out[name] == pytest.approx(result[name], rel=1e-6)


def test_fill_mask_prints_a_table(trained, capsys):
    text = "At noon [MASK] goes to the stable."
    assert main(["fill-mask", str(trained), "--top", "3", text]) == 0
    out = capsys.readouterr().out
    assert text in out and "probability" in out
    assert len([line for line in out.splitlines() if line.startswith("│")]) == 3


def test_a_new_run_starts_from_another_checkpoint(tmp_path, trained, exported, corpus):
    """From a workdir or a Hugging Face directory: the same parameters, a fresh schedule, a score
    of what it begins with; what is frozen keeps its bits.
    """
    config = tiny_config(
        phases=(PhaseConfig(sequence_length=32, steps=5, global_batch_size=16, max_predictions=5),),
        optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=2, frozen_layers=1),
        checkpoint=CheckpointConfig(every_steps=5),
    )
    path = tiny_corpus.write_config(tmp_path / "further.json", config)
    runs = []
    for source in (trained, exported):
        workdir = tmp_path / f"from-{source.name}"
        arguments = ["--corpus", str(corpus), "--workdir", str(workdir), "--init-from", str(source)]
        assert main(["pretrain", str(path), *arguments]) == 0
        assert json.loads((workdir / "config.json").read_text())["init_from"] == str(source)
        runs.append(workdir)
    assert numbers_of(runs[0]) == numbers_of(runs[1])
    rows = rows_of(runs[0])
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert rows[0]["learning_rate"] == 0.0
    # Where the first run ended, not where it began.
    assert rows[0]["mlm_loss"] < rows_of(trained)[0]["mlm_loss"] - 1
    before, after = (rows_of(run, "validation") for run in (trained, runs[0]))
    assert [row["step"] for row in after] == [0, 5]
    (same,) = (row for row in before if row["step"] == 160)
    assert after[0]["mlm_loss"] == pytest.approx(same["mlm_loss"], abs=0.2)
    encoders = [bert_jax.load(run).params["encoder"] for run in (trained, runs[0])]
    for name in ("embeddings", "layer_0"):
        jax.tree.map(np.testing.assert_array_equal, *(encoder[name] for encoder in encoders))
    kernels = [np.asarray(encoder["layer_1"]["query"]["kernel"]) for encoder in encoders]
    assert (kernels[0] != kernels[1]).any()


# --- rows 10 and 11 of the acceptance table ------------------------------------------------------


def start(
    config: Path, corpus: Path, workdir: Path, *, devices: int, log: Path
) -> subprocess.Popen:
    """The real command."""
    arguments = [str(config), "--corpus", str(corpus), "--workdir", str(workdir)]
    with log.open("a") as stream:
        return subprocess.Popen(
            [sys.executable, "-m", "bert_jax", "pretrain", *arguments],
            env={**os.environ, "JAX_NUM_CPU_DEVICES": str(devices)},
            stdout=stream,
            stderr=stream,
        )


def wait_for(process: subprocess.Popen, log: Path, condition) -> None:
    deadline = time.monotonic() + HUNG
    while not condition():
        assert process.poll() is None, f"ended early:\n{log.read_text()}"
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.005)


def last_row(workdir: Path) -> int:
    """Step of the last whole row."""
    path = workdir / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    lines = text[: text.rfind("\n") + 1].splitlines()
    return json.loads(lines[-1])["step"] if lines else 0


def state_of(workdir: Path, step: int):
    assert max(checkpoint.steps(workdir)) == step
    return jax.device_get(
        checkpoint.load_state(workdir, step=step, config=_CONFIG, mesh=mesh_of(8))
    )


def test_a_run_that_is_stopped_twice_ends_with_the_same_bits(tmp_path, trained, corpus):
    """As SIGTERM stops it, once in each phase's neighbourhood; chaos/test_kills.py has SIGKILL."""
    config = tiny_corpus.write_config(tmp_path / "tiny.json", _CONFIG)
    workdir = tmp_path / "stopped"
    command = ["pretrain", str(config), "--corpus", str(corpus), "--workdir", str(workdir)]
    for stop in (45, 170):
        with pytest.MonkeyPatch.context() as patch:
            # Told of it in the next step.
            patch.setattr(
                Preemption, "requested", lambda self, stop=stop: last_row(workdir) >= stop
            )
            assert main(command) == 42
        assert stop <= last_row(workdir) < stop + 5
    assert main(command) == 0

    # Every row of the one run is in the other, bit for bit, once and in order.
    assert numbers_of(workdir) == numbers_of(trained)
    resumed = [event["step"] for event in events_of(workdir, "resume")]
    assert len(resumed) == 2 and 45 <= resumed[0] < resumed[1]
    ours, theirs = state_of(workdir, 200), state_of(trained, 200)
    assert int(ours.step) == 200
    for (path, a), b in zip(jax.tree.leaves_with_path(ours), jax.tree.leaves(theirs), strict=True):
        assert a.tobytes() == b.tobytes(), jax.tree_util.keystr(path)


@pytest.mark.chaos
def test_one_device_and_eight_give_the_same_losses(tmp_path, corpus):
    config = tiny_corpus.write_config(tmp_path / "tiny.json", _CONFIG)
    rows = {}
    for devices in (1, 8):
        workdir, log = tmp_path / str(devices), tmp_path / f"{devices}.txt"
        process = start(config, corpus, workdir, devices=devices, log=log)
        wait_for(process, log, lambda workdir=workdir: last_row(workdir) >= 20)
        process.kill()
        process.wait()
        assert events_of(workdir, "start")[0]["devices"] == devices
        rows[devices] = rows_of(workdir)[:20]
        assert [row["step"] for row in rows[devices]] == list(range(1, 21))
    for name in ("loss", "mlm_loss", "nsp_loss"):
        np.testing.assert_allclose(
            [row[name] for row in rows[1]], [row[name] for row in rows[8]], rtol=1e-5
        )
