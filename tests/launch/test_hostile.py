"""Values from outside: of a bucket, a setting, a cloud's answer. None is executed."""

import re
import subprocess

from tests import hostile
from tests.launch.cloud import ROOT
from tests.launch.test_life_cycles import end
from tests.launch.test_outages import wait_until

_RUN = ("--config=tiny_docs_cpu", "--corpus=/data/corpus", "--workdir=gs://b/run")
_OUTSIDE = ROOT / "launch/lib/outside.sh"


def run_of(here, *options: str) -> str:
    """Returns what the launcher calls the run of these options."""
    dry = here.tpu("supervise", *options, "--dry-run")
    (run,) = set(re.findall(r"start ([0-9a-f]{12})", dry.stdout))
    return run


def sign(here, text: str) -> None:
    place = here.directory / "buckets/b/run"
    place.mkdir(parents=True, exist_ok=True)
    (place / "launched_alive").write_text(text)


def test_a_sign_of_life_is_not_executed_by_the_launcher(cloud):
    here = cloud(number_of_hosts=1)
    mark = here.directory / "pwned"
    run = run_of(here, *_RUN)
    for value in ("ZONES[$(touch${IFS}MARK)]", "\0" * 3000, "x" * 3_000_000):
        sign(here, f"{run} {value} then\n".replace("MARK", str(mark)))
        ended = here.tpu("supervise", *_RUN, "--max-hours=1")
        assert not mark.exists()
        assert ended.returncode == 20 and here.commands() == [], ended.stderr
        assert ended.stderr.splitlines()[-1].count("launched_alive does not say how long") == 1
    sign(here, f"{run} 00060 then\n")
    assert here.tpu("supervise", *_RUN, "--max-hours=1").returncode == 25


def test_a_sign_of_life_is_not_executed_by_a_host(cloud):
    """Its guard counts the hours from here, and says so."""
    here = cloud(number_of_hosts=1, exists=["ACTIVE"])
    mark, place = here.directory / "pwned", here.home() / "bert-jax"
    (place / "log").mkdir(parents=True)
    (place / "run").write_text("0123456789ab\n")
    (place / "guard.env").write_text("export WORKDIR=gs://b/run MAX_MINUTES=60\n")
    text = f"0123456789ab ZONES[$(touch${{IFS}}{mark})] then\n"
    sign(here, text)
    settings = {"HOME": str(here.home()), "FAKE_HOST": "pod-w-0"}
    guard = here.start("bash", ROOT / "launch/worker.sh", "guard", settings=settings)
    alive = here.directory / "buckets/b/run/launched_alive"
    wait_until(lambda: alive.read_text() != text or mark.exists(), guard)
    end(guard)
    assert not mark.exists() and re.match(r"0123456789ab \d+ ", alive.read_text())
    assert "was not written by a run" in (place / "log/train.log").read_text()


def test_only_a_whole_number_is_one(tmp_path):
    """One shell for all of them: `whole` says which are numbers, and executes none."""
    values = [
        v for v in (*hostile.COMMANDS, *hostile.NUMBERS, *hostile.NAMES[:-4]) if "\0" not in v
    ]
    numbers = {"0": "0", "7": "7", "010": "10", "0008": "8", "000": "0", "9" * 15: "9" * 15}
    script = """exec 3>/dev/null; source "$0"
        for v in "$@"; do whole "$v" || printf no; echo; minutes_in "$v" x >&3; done"""
    words = [v.replace("MARK", str(tmp_path / "mark"))[:10_000] for v in (*values, *numbers)]
    done = subprocess.run(
        ["bash", "-c", script, _OUTSIDE, *words], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stderr == "" and list(tmp_path.iterdir()) == []
    found = done.stdout.splitlines()
    assert found == ["no"] * len(values) + [*numbers.values()]
