"""Ctrl-C, SIGTERM and SIGHUP: the run is saved, and the message names the saved step."""

import os
import queue
import signal
import time
from concurrent.futures import Future

import jax
import pytest
from jax.experimental import multihost_utils

from bert_jax import progress
from bert_jax.__main__ import main
from bert_jax.config import OptimizerConfig, PhaseConfig
from bert_jax.errors import Interrupted, Preempted
from bert_jax.runtime import distributed, stop
from bert_jax.runtime.stop import Preemption, Signals, Start
from bert_jax.training.evaluate import HeldOut
from bert_jax.workdir import checkpoint, log_reader
from bert_jax.workdir.metrics_log import MetricsLogger
from tests import tiny_corpus
from tests.limits import HUNG


@pytest.fixture(autouse=True)
def handlers():
    """A shell's background ignores interrupts, and nohup SIGHUP."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    hung_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, before)
    signal.signal(signal.SIGHUP, hung_up)


@pytest.fixture
def codes(monkeypatch):
    """The codes with which the process would have ended at once."""
    ended = queue.Queue()
    monkeypatch.setattr(progress.os, "_exit", ended.put)
    return ended


def test_an_ignored_interrupt_stays_ignored_and_handlers_are_restored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    heard = []
    with Signals((signal.SIGINT, signal.SIGTERM), heard.append):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


# --- a run ---------------------------------------------------------------------------------------


class _EndsLate(Future):
    """Ends between the timeout of a wait and the question whether it has ended."""

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


def test_work_that_ends_at_the_end_of_a_poll_is_not_lost():
    with Preemption() as preemption:
        assert preemption.wait(_EndsLate(lambda work: work.set_result("batch"))) == "batch"
        failed = _EndsLate(lambda work: work.set_exception(TimeoutError("the server is away")))
        with pytest.raises(TimeoutError, match="the server is away"):
            preemption.wait(failed)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (signal.SIGINT, Interrupted),
        (signal.SIGTERM, Preempted),
        (signal.SIGHUP, Preempted),
    ],
)
def test_a_signal_is_a_request_that_interrupts_a_wait(number, kind, codes, capsys):
    with Preemption() as preemption:
        preemption.kept = lambda: "step 3 is saved"
        assert not preemption.requested()
        signal.raise_signal(number)
        assert preemption.requested()
        with pytest.raises(kind, match="; step 3 is saved") as caught:
            preemption.wait(Future())
        assert type(caught.value) is kind and codes.empty()
    assert "saving and ending after the current step" in capsys.readouterr().err


def test_a_second_interrupt_ends_at_once(codes, capsys):
    with Preemption() as preemption:
        preemption.kept = lambda: "step 2 is saved"
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert codes.empty()
        signal.raise_signal(signal.SIGINT)
        assert codes.get(timeout=HUNG) == 130
    assert "interrupted again: ending without saving; step 2 is saved\n" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(("number", "code"), [(signal.SIGHUP, 42), (signal.SIGINT, 130)])
def test_a_run_with_nothing_to_save_ends_at_once(number, code, codes):
    with Preemption() as preemption:
        preemption.is_idle = True
        signal.raise_signal(number)
        assert codes.get(timeout=HUNG) == code


def test_the_next_run_of_a_process_asks_with_the_next_number(monkeypatch):
    """A sweep makes its runs in one process: jax waits for the number after the last one asked."""
    asked = []
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(
        multihost_utils, "reached_preemption_sync_point", lambda n: asked.append(n) or False
    )
    for _ in range(2):
        with Preemption() as preemption:
            assert not preemption.requested() and not preemption.requested()
    assert asked == list(range(asked[0], asked[0] + 4))


def test_ctrl_c_saves_and_an_evaluation_comes_after_the_save(tmp_path, corpus, capsys, monkeypatch):
    """Interrupted after step 3, the run ends there. Preempted in its last evaluation, the run is
    saved, and the next process makes up for the evaluation.
    """
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
        return evaluated(self, params, cut_short=cut_short)

    monkeypatch.setattr(HeldOut, "run", run)
    assert main(command) == 42
    assert "received SIGTERM; step 6 is saved" in capsys.readouterr().err
    monkeypatch.setattr(HeldOut, "run", evaluated)
    assert main(command) == 0
    held_out = [row for row in log_reader.read_rows(workdir) if row.get("split")]
    assert [row["step"] for row in held_out][-1] == 6


# --- one of several processes, before and after they have met -------------------------------------


@pytest.fixture
def acts(monkeypatch):
    """The acts of a process that gets a signal: it passes the signal on, or ends with a code."""
    found = queue.Queue()
    monkeypatch.setattr(stop.host_allocator, "keep_freed_memory", lambda: None)
    monkeypatch.setattr(stop, "_MEETING_SECONDS", 0.05)
    monkeypatch.setattr(stop.os, "kill", lambda _, number: found.put(f"passes {number.name} on"))
    monkeypatch.setattr(stop.os, "_exit", lambda code: found.put(f"ends with {code}"))
    monkeypatch.setattr(distributed.Connection, "connect", lambda self: None)
    monkeypatch.setattr(distributed, "disconnect", lambda: None)
    monkeypatch.setattr(distributed, "any_preempted", lambda is_leaving: is_leaving)
    return found


def begun() -> Start:
    return Start("bert-jax pretrain", coordinator="here:1", num_processes=2, process_id=1)


def test_a_process_that_has_not_met_the_others_ends_with_them_or_after_a_time(acts):
    with pytest.raises(Interrupted), begun() as one:
        signal.raise_signal(signal.SIGINT)
        assert acts.get(timeout=HUNG) == "ends with 130"
        one.connect()


@pytest.mark.parametrize("is_late", [False, True])
def test_a_process_that_has_met_the_others_tells_them_and_continues(acts, monkeypatch, is_late):
    monkeypatch.setattr(stop, "_MEETING_SECONDS", 0.3)

    def any_preempted(is_leaving: bool) -> bool:
        if is_late:  # after the processes were asked
            signal.raise_signal(signal.SIGINT)
        return is_leaving

    monkeypatch.setattr(distributed, "any_preempted", any_preempted)
    with begun() as one:
        one.connect()
        if not is_late:
            signal.raise_signal(signal.SIGINT)
        assert acts.get(timeout=HUNG) == "passes SIGTERM on"
        time.sleep(0.4)
        assert acts.empty()
