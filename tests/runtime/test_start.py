"""A signal to one of several processes, before they have met and after that."""

import queue
import signal

import pytest

from bert_jax.errors import Interrupted
from bert_jax.runtime import distributed, start
from bert_jax.runtime.start import Start
from tests.limits import HUNG


@pytest.fixture
def heard(monkeypatch):
    """The acts of a process that a signal reaches: it passes it on, or ends with a code."""
    acts = queue.Queue()
    monkeypatch.setattr(start.host_allocator, "keep_freed_memory", lambda: None)
    monkeypatch.setattr(start, "_MEETING_SECONDS", 0.05)
    monkeypatch.setattr(start.os, "kill", lambda _, number: acts.put(f"passes {number.name} on"))
    monkeypatch.setattr(start.os, "_exit", lambda code: acts.put(f"ends with {code}"))
    monkeypatch.setattr(distributed.Connection, "connect", lambda self: None)
    monkeypatch.setattr(distributed, "disconnect", lambda: None)
    monkeypatch.setattr(distributed, "any_preempted", lambda is_leaving: is_leaving)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield acts
    signal.signal(signal.SIGINT, before)


def begun() -> Start:
    return Start("bert-jax pretrain", coordinator="here:1", num_processes=2, process_id=1)


def test_one_that_has_not_met_the_others_ends_with_them_or_alone(heard):
    with pytest.raises(Interrupted), begun() as one:
        signal.raise_signal(signal.SIGINT)
        assert heard.get(timeout=HUNG) == "ends with 130"
        one.connect()


def test_one_that_has_met_them_tells_them_and_lives_on(heard, capsys):
    with begun() as one:
        one.connect()
        signal.raise_signal(signal.SIGINT)
        assert heard.get(timeout=HUNG) == "passes SIGTERM on"
        with pytest.raises(queue.Empty):
            heard.get(timeout=0.2)
    assert (
        "interrupted; all processes save and end after their next step" in capsys.readouterr().err
    )


def test_a_signal_that_came_while_they_met_is_passed_on(heard, monkeypatch):
    with begun() as one:

        def any_preempted(is_leaving: bool) -> bool:
            signal.raise_signal(signal.SIGINT)
            while one._received is None:
                pass
            return is_leaving

        monkeypatch.setattr(start, "_MEETING_SECONDS", 0.3)
        monkeypatch.setattr(distributed, "any_preempted", any_preempted)
        one.connect()
        assert heard.get(timeout=HUNG) == "passes SIGTERM on"
        with pytest.raises(queue.Empty):
            heard.get(timeout=0.5)
