"""A list of runs: its order, what is left out, what waits, and what ends it."""

import contextlib
from dataclasses import dataclass

import pytest

from bert_jax.workdir import run_list


@dataclass
class Listed:
    name: str


def runs(*names: str) -> list[Listed]:
    return [Listed(name) for name in names]


def test_each_run_is_made_once_in_order_and_a_failed_one_is_left():
    listed, done, made = runs("a", "b", "c"), {"b"}, []

    def make(run, held, left):
        made.append((run.name, held, [each.name for each in left]))
        done.update({run.name} - {"a"})  # a fails
        return True

    progress = run_list.make_missing(lambda: [r for r in listed if r.name not in done], make)
    assert made == [("a", run_list.NO_LOCK, ["a", "c"]), ("c", run_list.NO_LOCK, ["c"])]
    assert progress.made == ["a", "c"] and progress.left == listed[:1] and not progress.is_stopped


def test_a_run_waits_for_those_it_needs_and_for_those_of_others(monkeypatch):
    """The first is another process's for a while, which makes it then; the second needs it."""
    listed, done, made, looks = runs("a", "b"), set(), [], []

    @contextlib.contextmanager
    def hold(run):
        looks.append(run.name)
        if looks.count("a") == 3:
            done.add("a")
        yield None if looks.count("a") < 3 else 7

    def make(run, held, left):
        done.add(run.name)
        made.append((run.name, held))
        return True

    def is_ready(run, left):
        return run.name == "a" or "a" in done

    monkeypatch.setattr(run_list.time, "sleep", lambda seconds: None)
    arguments = lambda: [r for r in listed if r.name not in done], make
    options = {"is_ready": is_ready, "hold": hold}
    progress = run_list.make_missing(*arguments, **options, waits=False)
    assert progress.held == listed[:1] and progress.left == listed and not made
    progress = run_list.make_missing(*arguments, **options)
    assert made == [("b", 7)] and not progress.held and not progress.left


@pytest.mark.parametrize("by", ["a signal", "the run"])
def test_nothing_is_made_after_a_stop(by):
    listed, done = runs("a", "b", "c"), []

    def make(run, held, left):
        has_ended = run.name == "a" or by == "a signal"
        done.extend([run.name] * has_ended)
        return has_ended

    progress = run_list.make_missing(
        lambda: [r for r in listed if r.name not in done],
        make,
        is_stopped=lambda run: by == "a signal" and run.name == "b",
    )
    assert progress.is_stopped and progress.made == ["a"] and progress.left == listed[1:]
