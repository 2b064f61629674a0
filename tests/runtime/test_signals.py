"""Ctrl-C and SIGTERM: heard at once, saved, and told where the run goes on from."""

import os
import queue
import signal
import threading
import time
from concurrent.futures import Future

import jax
import pytest
from jax.experimental import multihost_utils

from bert_jax import progress
from bert_jax.__main__ import main
from bert_jax.config import OptimizerConfig, PhaseConfig
from bert_jax.errors import Interrupted, Preempted
from bert_jax.runtime import preemption as preemptions
from bert_jax.runtime.preemption import Preemption
from bert_jax.runtime.signals import Signals
from bert_jax.training.evaluate import HeldOut
from bert_jax.workdir import checkpoint, log_reader
from bert_jax.workdir.metrics_log import MetricsLogger
from tests import tiny_corpus
from tests.limits import HUNG


@pytest.fixture(autouse=True)
def interrupts():
    """In a process of a shell's background an interrupt is ignored, by nohup a closed terminal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    hung_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, before)
    signal.signal(signal.SIGHUP, hung_up)


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


class _EndsLate(Future):
    """Ends when it was waited for in vain, before it is asked whether it has ended."""

    def __init__(self, end):
        super().__init__()
        self._end = end

    def result(self, timeout=None):
        try:
            return super().result(timeout)
        except TimeoutError:
            if not self.done():
                self._end(self)
            raise


def test_what_ends_between_two_looks_is_waited_for():
    """A run ended with "the network fails" where its batch came at the end of a tenth of a
    second.
    """
    with Preemption() as preemption:
        assert preemption.wait(_EndsLate(lambda work: work.set_result("batch"))) == "batch"
        failed = _EndsLate(lambda work: work.set_exception(TimeoutError("the server is away")))
        with pytest.raises(TimeoutError, match="the server is away"):
            preemption.wait(failed)


def test_a_signal_is_heard_while_the_main_thread_is_busy():
    heard = threading.Event()
    with Signals((signal.SIGTERM,), lambda number: heard.set()):
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(heard)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.set_wakeup_fd(-1) == -1


@pytest.fixture
def codes(monkeypatch):
    """The codes that the process would have ended with, in a thread."""
    ended = queue.Queue()
    monkeypatch.setattr(progress.os, "_exit", ended.put)
    monkeypatch.setattr(preemptions, "_PATIENCE_SECONDS", 0.05)
    return ended


def test_a_second_interrupt_ends_at_once(codes, capsys):
    with Preemption() as preemption:
        preemption.kept = lambda: "step 3 is saved"
        preemption.kept_by_now = lambda: "step 2 is saved"
        preemption.step_seconds = 360.0
        assert not preemption.requested()
        os.kill(os.getpid(), signal.SIGINT)
        while not preemption.requested():
            time.sleep(0.01)
        preemption_error = preemption.preemption_error()
        assert isinstance(preemption_error, Interrupted) and preemption_error.exit_code == 130
        assert str(preemption_error) == "interrupted; step 3 is saved" and codes.empty()
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)
        assert codes.get(timeout=HUNG) == 130
    said = capsys.readouterr().err
    assert (
        "interrupted: saves and ends after this: the step in hand (a step takes 6 min); Ctrl-C "
        "again ends at once, without saving\n"
    ) in said
    assert "interrupted again: ends without saving; step 2 is saved\n" in said
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGTERM, "received SIGTERM"), (signal.SIGHUP, "the terminal was closed (SIGHUP)")],
)
def test_what_ends_at_once_says_so_once(number, words, codes, capsys):
    """SIGTERM and SIGHUP are one thing. Where nothing is to be saved, a process ends by itself."""
    said = f"{words}; nothing is lost, and the same command goes on"
    with Preemption() as preemption:
        os.kill(os.getpid(), number)
        while not preemption.requested():
            time.sleep(0.01)
        error = preemption.preemption_error()
        assert type(error) is Preempted and str(error) == said
    time.sleep(0.2)
    assert codes.empty() and capsys.readouterr().err == ""
    with Preemption() as preemption:
        preemption.is_idle = True
        os.kill(os.getpid(), number)
        assert codes.get(timeout=HUNG) == 42
    assert capsys.readouterr().err.startswith(
        f"{words}; nothing is lost, and the same command goes on\n"
    )


def test_what_takes_long_is_left_behind():
    mesh, going = jax.make_mesh((1,), ("x",)), threading.Event()
    with Preemption() as preemption:
        assert preemption.cut_short(jax.sharding.get_mesh, mesh=mesh) == mesh
        with pytest.raises(ZeroDivisionError):
            preemption.cut_short(lambda: 1 // 0, mesh=mesh)
        os.kill(os.getpid(), signal.SIGTERM)
        assert preemption.cut_short(lambda: going.wait(60), mesh=mesh) is None
    going.set()


def test_the_next_run_of_a_process_asks_with_the_next_number(monkeypatch):
    """A sweep makes its runs in one process: jax waits for the number after the last one asked."""
    asked = []
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(multihost_utils, "reached_preemption_sync_point", asked.append)
    for _ in range(2):
        with Preemption() as preemption:
            assert not preemption.requested() and not preemption.requested()
    assert asked == list(range(asked[0], asked[0] + 4))


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
    assert f"error: interrupted; step {step} is saved and the same command resumes from it" in said

    monkeypatch.setattr(MetricsLogger, "row", written)
    evaluated = HeldOut.run

    def run(self, params, *, cut_short=None):
        assert 6 in checkpoint.steps(workdir)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
        return evaluated(self, params, cut_short=cut_short)

    monkeypatch.setattr(HeldOut, "run", run)
    assert main(command) == 42
    assert "received SIGTERM; step 6 is saved" in capsys.readouterr().err
    monkeypatch.setattr(HeldOut, "run", evaluated)
    assert main(command) == 0
    held_out = [row for row in log_reader.read_rows(workdir) if row.get("split")]
    assert [row["step"] for row in held_out][-1] == 6
