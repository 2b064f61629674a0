"""One process of two fails alone: its exit code survives, and the other one ends soon after it."""

import re
import subprocess
import time

import pytest

from tests.chaos import IS_LONG, long_form
from tests.chaos.runs import ROOT, Started

pytestmark = pytest.mark.chaos

_SECONDS = 20
# Before their first collective, gloo waits for 30 s for the processes to meet.
_MEETING_SECONDS = 30
# What a rank fails with, and the exit code of that.
_KINDS = {"4": 4, "5": 5, "7": 7, "os": 7, "uncaught": 1}
_CASES = [(kind, rank) for kind in _KINDS for rank in (0, 1)]
_SHORT = [("4", 0), ("uncaught", 1)]


@pytest.mark.parametrize(("kind", "rank"), _CASES if IS_LONG else _SHORT)
def test_the_guilty_code_survives(tmp_path, corpus, kind, rank):
    """In the middle of training: the other one is in a collective, or on its way to one."""
    ends_well(tmp_path, corpus, kind, rank, fault=f"fails={kind}:9")


@long_form
@pytest.mark.parametrize("rank", [0, 1])
def test_before_the_first_step(tmp_path, corpus, rank):
    """The other one waits to compare what they are about to do."""
    seconds = _SECONDS + _MEETING_SECONDS
    ends_well(tmp_path, corpus, "4", rank, fault="unopened=4", seconds=seconds)


def ends_well(tmp_path, corpus, kind, rank, *, fault, seconds=_SECONDS) -> None:
    run = Started(tmp_path / "run", corpus, faults_of={rank: [fault]}, processes=2)
    run.until(lambda: "chaos: fails" in run.log(rank))
    began = time.monotonic()
    codes = run.finish(120)
    assert time.monotonic() - began < seconds, codes
    assert codes[rank] == _KINDS[kind], run.log(rank)
    # The other one crashes for that, or is ended by jax (a signal, 134 to a shell).
    assert codes[1 - rank] in (1, -6), run.log(1 - rank)
    as_shell = [code if code >= 0 else 128 - code for code in codes]
    assert in_shell("verdict", *as_shell) == str(_KINDS[kind])


def in_shell(function: str, *codes: int) -> str:
    """Returns what a function of the supervisor makes of the hosts' codes."""
    report = "\n".join(f"host-{number} {code}" for number, code in enumerate(codes))
    script = f'. {ROOT}/launch/lib/supervise.sh; REPORT="$1"; {function}'
    done = subprocess.run(["bash", "-c", script, "-", report], capture_output=True, text=True)
    return done.stdout.strip()


def test_the_jobset_acts_on_the_same_codes():
    """Kubernetes ends the whole set for what the supervisor does not start again."""
    template = (ROOT / "launch" / "gke" / "jobset.yaml.tmpl").read_text()
    (values,) = re.findall(r"containerName: trainer\n.*\n\s+values: \[(.*)\]", template)
    kinds = in_shell("for code in {0..255}; do meaning $code; done").split()
    stops = {code for code, kind in enumerate(kinds) if kind == "stop"}
    assert {int(code) for code in values.split(",")} == stops
