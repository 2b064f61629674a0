"""Two trainers of one run, at once and after a kill, in a folder and in a bucket: one trains."""

import itertools
import json
import multiprocessing
import re
import time
from pathlib import Path

import pytest

from bert_jax.__main__ import main
from bert_jax.workdir import lease, location
from bert_jax.workdir.location import LEASE
from tests import tiny_corpus
from tests.chaos import IS_LONG, long_form
from tests.chaos.holder import hold
from tests.chaos.runs import CONFIG, Started, lines, losses
from tests.faulty_bucket import control, environment, reached
from tests.limits import HUNG

pytestmark = pytest.mark.chaos

_TRIALS = 50 if IS_LONG else 1
# Of the trials in a bucket, each such one goes on from another machine, and waits for it.
_ELSEWHERE_EVERY = 10
_REFUSED_SECONDS = 10
_NAMED = r"process \d+ on \S+ trains in \S+ since [0-9: -]+ UTC; wait until it has ended"
_SKEWS = itertools.cycle([(-60, 60), (0, 0), (60, -60), (60, 0)])


# Its processes have imported the package already: each is a real one, and begins at once.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.chaos.holder"])


class Holder:
    """A process of tests/chaos/holder.py, and when it said what."""

    def __init__(self, workdir: str, *, skew: float = 0, cache: Path | None = None, address=""):
        variables = {"BERT_JAX_CACHE": str(cache)} if cache else {}
        if address:
            variables |= environment(address)
        self._mouth, ear = _PROCESSES.Pipe()
        self.process = _PROCESSES.Process(target=hold, args=(workdir, skew, variables, ear))
        self.process.start()
        ear.close()
        self.began = 0.0

    def says(self) -> tuple[float, str]:
        """Returns when it said its next line after "begins", and that."""
        while True:
            assert self._mouth.poll(HUNG), "it says nothing"
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
def test_of_two_at_once_one_holds_it(tmp_path, address, place):
    control(address, faults={}, latency=0.0, stream=0.0)
    refused, after_kill, elsewhere = [], [], []
    for trial in range(_TRIALS):
        one, other = tmp_path / f"{trial}-one", tmp_path / f"{trial}-other"
        workdir = str(one / "run") if place == "folder" else f"gs://bucket/trial-{trial}"
        at = {"address": address} if place == "bucket" else {}
        skews = next(_SKEWS)
        two = [Holder(workdir, skew=skews[0], cache=one, **at),
               Holder(workdir, skew=skews[1], cache=other, **at)]  # fmt: skip
        said = [holder.says() for holder in two]
        winner = next(i for i, (_, line) in enumerate(said) if line == "trains")
        loser = 1 - winner
        assert re.match(_NAMED, said[loser][1]), said
        assert two[loser].ends() == 2
        refused.append(said[loser][0] - max(two[loser].began, said[winner][0]))
        assert two[winner].process.is_alive()

        killed = time.monotonic()
        two[winner].kill()
        is_elsewhere = place == "bucket" and trial % _ELSEWHERE_EVERY == _ELSEWHERE_EVERY - 1
        cache = [one, other][loser if is_elsewhere else winner]
        third = Holder(workdir, skew=skews[loser], cache=cache, **at)
        begins, line = third.says()
        assert line == "trains", line
        (elsewhere if is_elsewhere else after_kill).append(begins - third.began)
        assert not is_elsewhere or begins - killed > 10, "it was not waited for"
        assert third.ends() == 0
        if place == "folder":
            assert not (Path(workdir) / LEASE).exists(), "it is given back"
    print(json.dumps({"place": place, "trials": _TRIALS, "refused after": max(refused),
                      "held again, same machine": max(after_kill),
                      "held again, another one": max(elsewhere, default=None)}))  # fmt: skip
    assert max(refused) < _REFUSED_SECONDS
    assert max(after_kill) < 10
    assert not elsewhere or max(elsewhere) < lease.SECONDS + 5


@long_form
@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_of_two_runs_one_trains(tmp_path, corpus, address, place):
    """The real command; the one that trains is killed, and the next one goes on."""
    control(address, faults={}, latency=0.0, stream=0.0)
    own = {"workdir": str(tmp_path / "run")}
    if place == "bucket":
        own = {"workdir": "gs://bucket/two-runs"}

    def start(name: str) -> Started:
        variables = environment(address) | {"BERT_JAX_CACHE": str(tmp_path / name)}
        return Started(tmp_path / name, corpus, faults=["step=0.3"], variables=variables, **own)

    two = [start("one"), start("other")]
    while all(run.processes[0].poll() is None for run in two):
        time.sleep(0.05)
    loser = next(i for i, run in enumerate(two) if run.processes[0].poll() is not None)
    assert two[loser].finish() == [2], two[loser].log()
    (said,) = [line for line in two[loser].log().splitlines() if "error: " in line]
    assert re.search(_NAMED, said)
    assert f"process {two[1 - loser].processes[0].pid} " in said
    winner = two[1 - loser]
    winner.until(lambda: "new run" in winner.log())
    winner.kill()
    third = start(winner.directory.name)
    third.until(lambda: third.log().count("parameters,") == 2)
    third.kill()


def test_a_trainer_that_lost_its_lease_writes_nothing(tmp_path, corpus):
    """At its next save it ends with code 2, and names the other one."""
    run = Started(tmp_path, corpus, faults=["step=0.2"])
    run.until(lambda: '"event": "save"' in (run.workdir / "events.jsonl").read_text()
              if (run.workdir / "events.jsonl").exists() else False)  # fmt: skip
    path = run.workdir / LEASE
    other = json.loads(path.read_text()) | {"token": "other", "process": 7, "host": "other"}
    path.write_text(json.dumps(other))
    assert run.finish() == [2], run.log()
    assert re.search(r"error: process 7 on other trains in .*: this process had not", run.log())
    assert json.loads(path.read_text()) == other, "the other's lease stays"
    saves = [
        line["step"] for line in lines(run.workdir / "events.jsonl") if line["event"] == "save"
    ]
    names = {int(path.name) for path in (run.workdir / "checkpoints").iterdir()}
    assert max(names) == max(saves) < 40


@long_form
def test_several_processes_wait_for_a_dead_one(tmp_path, corpus, address):
    """Process 0 waits for a minute, and the others for it."""
    control(address, faults={}, latency=0.0, stream=0.0)
    variables = environment(address) | {"BERT_JAX_CACHE": str(tmp_path / "one")}
    dead = Holder("gs://bucket/several", cache=tmp_path / "dead", address=address)
    assert dead.says()[1] == "trains"
    dead.kill()
    run = Started(tmp_path / "run", corpus, processes=2, variables=variables,
                  workdir="gs://bucket/several")  # fmt: skip
    assert run.finish() == [0, 0], run.log()
    assert "waiting up to" in run.log()


def test_other_commands_cost_no_row(tmp_path, corpus, finished, monkeypatch):
    """The command is started twenty times more while a run in a bucket trains, in turn on the same
    machine and on another one: each time it ends with code 2, and the logs stay whole."""
    workdir, held, caches = "gs://bucket/again", tmp_path / "held", (tmp_path / "1", tmp_path / "2")
    config = str(tiny_corpus.write_config(tmp_path / "config.json", CONFIG))
    monkeypatch.setattr(lease, "_HERE_SECONDS", 0.1)
    held.touch()
    with reached() as address:
        variables = environment(address) | {"BERT_JAX_CACHE": str(caches[0])}
        faults = ["step=0.5", f"held=38:{held}"]
        run = Started(tmp_path / "run", corpus, faults=faults, variables=variables, workdir=workdir)
        run.until(lambda: LEASE in location.at(workdir).names())
        monkeypatch.setenv("BERT_JAX_CACHE", str(caches[0]))
        logs = location._stand_in(workdir, "process-0")
        rows: list[tuple] = []
        for number in range(20):
            monkeypatch.setenv("BERT_JAX_CACHE", str(caches[number % 2]))
            assert main(["pretrain", config, "--corpus", str(corpus), "--workdir", workdir]) == 2
            before, rows = rows, [tuple(row.items()) for row in lines(logs / "metrics.jsonl")]
            assert rows[: len(before)] == before, f"rows are lost after command {number}"
            time.sleep(0.5)
        held.unlink()
        assert run.finish() == [0], run.log()
        assert losses(logs) == losses(finished)
        events = [line["event"] for line in lines(logs / "events.jsonl")]
        assert events.count("start") == 1, events
        for name in ("metrics.jsonl", "events.jsonl"):
            assert location.at(workdir).read_text(name) == (logs / name).read_text()
