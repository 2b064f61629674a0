"""Ctrl-C and SIGTERM: heard at once, saved, and told where the run goes on from."""

import os
import signal
import threading
import time

import pytest

from bert_jax.__main__ import main
from bert_jax.config import OptimizerConfig, PhaseConfig
from bert_jax.errors import Interrupted, Preempted
from bert_jax.runtime import distributed
from bert_jax.runtime.signals import Signals
from bert_jax.training.evaluate import HeldOut
from bert_jax.workdir import checkpoint, log_reader
from bert_jax.workdir.metrics_log import MetricsLogger
from tests import tiny_corpus


@pytest.fixture(autouse=True)
def interrupts():
    """In a process of a shell's background, an interrupt is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_that_is_ignored_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    heard = []
    with Signals((signal.SIGINT, signal.SIGTERM), heard.append):
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
    assert heard == []
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def wait_for(event) -> None:
    assert event.wait(10)


def test_a_signal_is_heard_while_the_main_thread_is_busy():
    heard = threading.Event()
    with Signals((signal.SIGTERM,), lambda number: heard.set()):
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(heard)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.set_wakeup_fd(-1) == -1


def test_a_second_interrupt_ends_at_once(monkeypatch, capsys):
    ended = threading.Event()
    codes = []
    monkeypatch.setattr(distributed.os, "_exit", lambda code: (codes.append(code), ended.set()))
    with distributed.Preemption() as preemption:
        assert not preemption.requested()
        os.kill(os.getpid(), signal.SIGINT)
        while not preemption.requested():
            time.sleep(0.01)
        farewell = preemption.farewell("step 3 is saved")
        assert isinstance(farewell, Interrupted) and farewell.exit_code == 130
        assert str(farewell) == "interrupted; step 3 is saved" and not codes
        os.kill(os.getpid(), signal.SIGINT)
        wait_for(ended)
    assert codes == [130]
    said = capsys.readouterr().err
    assert "saves after this step (a second Ctrl-C ends at once)" in said
    assert "interrupted again: ends without saving" in said
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_sigterm_is_told_at_once(capsys):
    with distributed.Preemption() as preemption:
        os.kill(os.getpid(), signal.SIGTERM)
        while not preemption.requested():
            time.sleep(0.01)
        assert type(preemption.farewell("")) is Preempted
    assert capsys.readouterr().err == "told to go (SIGTERM): saves after this step\n"


def test_ctrl_c_saves_and_an_evaluation_comes_after_the_save(tmp_path, corpus, capsys, monkeypatch):
    """Told in step 3, the run ends there; told in its last evaluation, all of it is saved."""
    phases = (PhaseConfig(sequence_length=32, steps=6, global_batch_size=16, max_predictions=5),)
    config = tiny_corpus.tiny_config(phases=phases, optimizer=OptimizerConfig(warmup_steps=1))
    config = tiny_corpus.write_config(tmp_path / "tiny.json", config)
    workdir = tmp_path / "run"
    command = ["pretrain", str(config), "--corpus", str(corpus), "--workdir", str(workdir)]
    written = MetricsLogger.row

    def row(self, **values):
        written(self, **values)
        if values["step"] == 3 and "split" not in values:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)

    monkeypatch.setattr(MetricsLogger, "row", row)
    assert main(command) == 130
    (step,) = checkpoint.steps(workdir)
    assert step in (3, 4)
    said = capsys.readouterr().err
    assert f"error: interrupted; step {step} is saved and the same command goes on from it" in said

    monkeypatch.setattr(MetricsLogger, "row", written)
    evaluated = HeldOut.run

    def run(self, params, *, cut_short=None):
        assert 6 in checkpoint.steps(workdir)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
        return evaluated(self, params, cut_short=cut_short)

    monkeypatch.setattr(HeldOut, "run", run)
    assert main(command) == 42
    assert "preempted; step 6 is saved" in capsys.readouterr().err
    monkeypatch.setattr(HeldOut, "run", evaluated)
    assert main(command) == 0
    held_out = [row for row in log_reader.read_rows(workdir) if row.get("split")]
    assert [row["step"] for row in held_out][-1] == 6
