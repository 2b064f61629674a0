"""Two trainers of one run, at once and after a kill, in a folder and in a bucket: one trains."""

import itertools
import json
import multiprocessing
import re
import shutil
import time

import pytest

from bert_jax.__main__ import main
from bert_jax.workdir import checkpoint, location, lock, log_reader
from bert_jax.workdir.location import OWNER
from tests import tiny_corpus
from tests.chaos import IS_LONG, long_form
from tests.chaos.holder import hold
from tests.chaos.runs import CONFIG, Started, losses
from tests.faulty_bucket import control, environment, reached
from tests.limits import HUNG

pytestmark = pytest.mark.chaos

_TRIALS = 50 if IS_LONG else 1
_REFUSED_SECONDS = 10
_NAMED = r"process \d+ on \S+ trains in \S+; wait until it has ended"
_SKEWS = itertools.cycle([(-60, 60), (0, 0), (60, -60), (60, 0)])


# Processes of a fork server start at once, because the package is already imported.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.chaos.holder"])


class Holder:
    """A process of tests/chaos/holder.py, and the times of its reports."""

    def __init__(self, workdir: str, *, skew: float = 0, address=""):
        variables = environment(address) if address else {}
        self._mouth, ear = _PROCESSES.Pipe()
        self.process = _PROCESSES.Process(target=hold, args=(workdir, skew, variables, ear))
        self.process.start()
        ear.close()
        self.began = 0.0

    def reports(self) -> tuple[float, str]:
        """Returns the time and the text of its next line after "begins"."""
        while True:
            assert self._mouth.poll(HUNG), "it reports nothing"
            at, line = self._mouth.recv()
            if line != "begins":
                return at, line
            self.began = at

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def ends(self) -> int | None:
        self._mouth.close()
        self.process.join(HUNG)
        return self.process.exitcode


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_one_of_two_trainers_holds_the_workdir(tmp_path, address, place):
    """After a kill, a folder is free at once, and a bucket when the lock has expired."""
    control(address, faults={}, latency=0.0, stream=0.0)
    refused, after_kill = [], []
    for trial in range(_TRIALS if place == "folder" else (_TRIALS + 4) // 5):
        workdir = str(tmp_path / f"{trial}") if place == "folder" else f"gs://bucket/trial-{trial}"
        at = {"address": address} if place == "bucket" else {}
        skews = next(_SKEWS)
        two = [Holder(workdir, skew=skew, **at) for skew in skews]
        reported = [holder.reports() for holder in two]
        winner = next(i for i, (_, line) in enumerate(reported) if line == "trains")
        loser = 1 - winner
        assert re.match(_NAMED, reported[loser][1]), reported
        assert two[loser].ends() == 2
        refused.append(reported[loser][0] - max(two[loser].began, reported[winner][0]))
        assert two[winner].process.is_alive()

        killed = time.monotonic()
        two[winner].kill()
        third = Holder(workdir, skew=skews[loser], **at)
        begins, line = third.reports()
        assert line == "trains", line
        after_kill.append(begins - killed)
        assert third.ends() == 0
    print(json.dumps({"place": place, "refused after": max(refused),
                      "held again": [min(after_kill), max(after_kill)]}))  # fmt: skip
    assert max(refused) < _REFUSED_SECONDS
    if place == "folder":
        assert max(after_kill) < 10
    else:
        assert min(after_kill) > 10 and max(after_kill) < lock.SECONDS + 10


@long_form
def test_several_processes_wait_for_a_dead_one(tmp_path, corpus, address):
    """Process 0 waits for a minute, and the other processes wait for process 0."""
    control(address, faults={}, latency=0.0, stream=0.0)
    dead = Holder("gs://bucket/several", address=address)
    assert dead.reports()[1] == "trains"
    dead.kill()
    run = Started(tmp_path / "run", corpus, processes=2, variables=environment(address),
                  workdir="gs://bucket/several")  # fmt: skip
    assert run.finish() == [0, 0], run.log()
    assert "waiting up to" in run.log()


def test_rejected_commands_lose_no_row(tmp_path, corpus, finished, monkeypatch):
    """The command is repeated twenty times while a run in a bucket trains. Each repetition ends
    with code 2, and the logs stay complete. Every process has its own local folder, as on another
    machine."""
    workdir, held = "gs://bucket/again", tmp_path / "held"
    config = str(tiny_corpus.write_config(tmp_path / "config.json", CONFIG))
    monkeypatch.setattr(lock, "_GRACE_SECONDS", 0.1)
    held.touch()
    with reached() as address:
        faults = ["step=0.5", f"held=38:{held}"]
        run = Started(tmp_path / "run", corpus, faults=faults, variables=environment(address),
                      workdir=workdir)  # fmt: skip
        run.until(lambda: OWNER in location.at(workdir).names())
        rows: list[dict] = []
        for number in range(20):
            assert main(["pretrain", config, "--corpus", str(corpus), "--workdir", workdir]) == 2
            before, rows = rows, log_reader.read_rows(location.opened(workdir).path)
            assert rows[: len(before)] == before, f"rows are lost after command {number}"
        held.unlink()
        assert run.finish() == [0], run.log()
        copy = location.opened(workdir).path
        assert losses(copy) == losses(finished)
        events = [event["event"] for event in log_reader.read_events(copy)]
        assert events.count("start") == 1, events


@pytest.mark.parametrize("number", range(20 if IS_LONG else 2))
def test_kills_between_parts(tmp_path, corpus, finished, number):
    """SIGKILL at the upload of a part; another machine resumes. Its logs are complete: each row
    once, with the bits of an undisturbed run."""
    workdir = f"gs://bucket/killed-{number}"
    where = ("storage:write_version", "manifest:write", "location:Location._upload")[number % 3]
    with reached() as address:
        (own := tmp_path / "own").mkdir()
        variables = environment(address) | {"TMPDIR": str(own)}
        fault = f"killed=bert_jax.workdir.{where}:{2 + number // 3}"
        run = Started(tmp_path / "run", corpus, faults=[fault], variables=variables,
                      workdir=workdir)  # fmt: skip
        assert run.finish() == [-9], run.log()
        shutil.rmtree(own)
        own.mkdir()
        again = Started(tmp_path / "again", corpus, faults=["stale=2"], variables=variables,
                        workdir=workdir)  # fmt: skip
        assert again.finish() == [0], again.log()
        copy = location.opened(workdir).path
        assert losses(copy) == losses(finished)
        events = [event["event"] for event in log_reader.read_events(copy)]
        assert events.count("stop") == 1, events
        assert checkpoint.steps(copy) == [36, 40], "older steps are removed in the bucket"
        assert list(own.iterdir()) == [], "the local folder is removed"
