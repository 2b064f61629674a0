"""One of several processes fails: its exit code is reported, and the other processes end soon.

Each way of launching acts on this code.
"""

import re
import time

import pytest

from tests.chaos import IS_LONG, long_form
from tests.chaos.runs import ROOT, Started
from tests.launch.cloud import in_shell

pytestmark = pytest.mark.chaos

_SECONDS = 20
# With more than two processes gloo may miss a lost process; the heartbeat does not.
_HEARTBEAT_SECONDS = 20
# Before their first collective, gloo waits for 30 s for the processes to meet.
_MEETING_SECONDS = 30
# Kinds of failure, and their exit codes in a shell.
_KINDS = {"4": 4, "5": 5, "7": 7, "2": 2, "6": 6, "8": 8, "os": 7, "uncaught": 1, "kill": 137}
# Number of processes, kind of failure, failing rank.
_CASES = [(2, kind, rank) for kind in ("4", "5", "7", "os", "uncaught") for rank in (0, 1)]
_CASES += [(4, kind, rank) for kind in _KINDS for rank in (0, 3)]
_SHORT = [(2, "4", 0), (2, "uncaught", 1)]
# Exit codes of the other processes: a crash, or ended by jax.
_FOLLOWERS = {1, 134}


@pytest.mark.parametrize(("processes", "kind", "rank"), _CASES if IS_LONG else _SHORT)
def test_the_code_of_the_failed_rank_is_reported(tmp_path, corpus, processes, kind, rank):
    """During training: the other processes are in a collective, or about to enter one."""
    seconds = _SECONDS if processes == 2 else _SECONDS + 2 * _HEARTBEAT_SECONDS
    fault = f"fails={kind}:9"
    ends_well(tmp_path, corpus, kind, rank, fault=fault, processes=processes, seconds=seconds)


@long_form
@pytest.mark.parametrize("rank", [0, 1])
def test_before_the_first_step(tmp_path, corpus, rank):
    """The other process waits for the comparison of programs."""
    seconds = _SECONDS + _MEETING_SECONDS
    ends_well(tmp_path, corpus, "4", rank, fault="unopened=4", seconds=seconds)


def ends_well(tmp_path, corpus, kind, rank, *, fault, seconds=_SECONDS, processes=2) -> None:
    run = Started(
        tmp_path / "run",
        corpus,
        faults=[f"heartbeat={_HEARTBEAT_SECONDS}"],
        faults_of={rank: [fault]},
        processes=processes,
    )
    run.until(lambda: "chaos: fails" in run.log(rank))
    began = time.monotonic()
    ended = run.finish(120)
    took = time.monotonic() - began
    codes = [code if code >= 0 else 128 - code for code in ended]
    print(f"rank {rank} of {processes} by {kind}: {codes} after {took:.1f} s")
    assert took < seconds, codes
    guilty = _KINDS[kind]
    assert codes[rank] == guilty, run.log(rank)
    others = [code for other, code in enumerate(codes) if other != rank]
    assert set(others) <= _FOLLOWERS, codes
    # A killed process has no exit code of the trainer.
    report = "\n".join(f"host-{number} {code}" for number, code in enumerate(codes))
    assert int(in_shell('verdict "$1"', report)) in (
        {guilty, *others} if guilty == 137 else {guilty}
    )


def test_all_ways_of_launching_act_on_the_same_codes():
    """JobSet fails for the codes that end a TPU VM's run; JobSet and SkyPilot restart after the
    same codes without counting, and so does the unit of a TPU VM."""
    template = (ROOT / "launch/jobset.yaml").read_text()
    (acted_on,) = re.findall(r"containerName: trainer.*values: \[(.*)\]", template)
    (pattern,) = re.findall(
        r"MessagePatterns: \['failed with exit code (\S+) matching'\]", template
    )
    stops = {code for code in numbers(acted_on) if re.fullmatch(pattern, str(code))}
    assert stops == set(range(2, 9))
    (sky,) = re.findall(r"recover_on_exit_codes: \[(.*)\]", (ROOT / "launch/sky.yaml").read_text())
    (unit,) = re.findall(r"^RESTART='([\d ]+) SIG", (ROOT / "launch/worker.sh").read_text(), re.M)
    restarts = {int(code) for code in unit.split()}
    assert numbers(acted_on) - stops == numbers(sky) == {42, 75, 200} <= restarts
    assert restarts - numbers(sky) == {134, 137, 143} and not restarts & stops


def numbers(text: str) -> set[int]:
    return {int(number) for number in text.split(",")}
