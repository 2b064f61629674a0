"""The process pool: results in order, one error for a killed worker, shared work."""

import os
import signal
import time
from collections.abc import Callable

import pytest

from bert_jax.data.pool import Pool, count, offer
from bert_jax.errors import BertJaxError, UsageError
from tests.limits import HUNG


def _refuses(_: object, name: str) -> None:
    raise UsageError(f"tokenizer {name} is missing")


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_a_task_is_raised(workers):
    with Pool(workers) as pool, pytest.raises(UsageError, match="tokenizer a is missing"):
        list(pool.map(_refuses, [("a",)] * 9))


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _dies(_: object, number: int) -> int:
    time.sleep(0.01)  # all workers have begun by the time one dies
    if number == 60:
        _die()
    return number


class _Fatal:
    """Kills the process that runs it."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _die, ()


@pytest.mark.parametrize("shared", [None, _Fatal()], ids=["at work", "at its start"])
def test_a_killed_worker_is_reported(shared):
    """Raised once, and the pool can be left although the error is handled inside it."""
    message = "a worker process was killed"
    with Pool(2, shared) as pool, pytest.raises(BertJaxError, match=message) as raised:
        list(pool.map(_dies, ((number,) for number in range(1000))))
    assert raised.value.__context__ is None, "its frames would keep the buffers of messages"


def _sleeps(_: object, seconds: float) -> None:
    time.sleep(seconds)


def test_workers_end_at_once_with_an_error_here():
    """Even in a long task: a file of a hundred gigabytes is one task."""
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Pool(2) as pool:
        for _ in pool.map(_sleeps, [(0,), (HUNG,), (HUNG,)]):
            raise KeyboardInterrupt
    assert time.monotonic() - begun < HUNG / 2


def _offers_what_fails(_: object) -> None:
    until = time.monotonic() + HUNG
    while time.monotonic() < until:
        offer(_refuses, "a")
        time.sleep(0.01)


def test_an_error_of_an_offered_task_ends_a_long_task_here():
    begun = time.monotonic()
    with pytest.raises(UsageError, match="tokenizer a is missing"), Pool(2) as pool:
        list(pool.map(_offers_what_fails, [()], is_here=True))
    assert time.monotonic() - begun < HUNG / 2


def _counts(_: object, number: int) -> int:
    count(1, number)
    return number


@pytest.mark.parametrize(("workers", "is_here"), [(1, False), (2, False), (2, True)])
def test_results_come_in_order_and_counts_are_seen(workers, is_here):
    with Pool(workers) as pool:
        for _ in range(2):
            jobs = [(number,) for number in range(30)]
            found = pool.map(_counts, jobs, is_here=is_here)
            assert list(found) == [*range(30)]
            assert pool.counts == [30, sum(range(30)), 0]


def _splits(_: object, numbers: list[int]) -> list[tuple[int, int]]:
    left = [number for number in numbers if not offer(_squares, number)]
    return [each for number in left for each in _squares(None, number)]


def _squares(_: object, number: int) -> list[tuple[int, int]]:
    time.sleep(0.05)
    return [(number * number, os.getpid())]


@pytest.mark.parametrize("is_here", [False, True])
def test_a_task_hands_work_to_idle_processes(is_here):
    with Pool(3) as pool:
        results = pool.map(_splits, [([*range(40)],)], is_here=is_here)
        found = [each for result in results for each in result]
    assert sorted(square for square, _ in found) == [number * number for number in range(40)]
    assert len({process for _, process in found}) >= 3
