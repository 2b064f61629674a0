"""On a host: setting up, freeing the chips, staging a corpus, and the trainer's signals."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launch.cloud import ROOT

_TYPE = "--type=v4-16"


@pytest.fixture
def home(tmp_path) -> Path:
    (tmp_path / "host" / "dev").mkdir(parents=True)
    return tmp_path / "host"


# --- tpu_setup.sh --------------------------------------------------------------------------------


def test_setting_up_twice_installs_once(cloud, home):
    here = cloud()
    first = here.setup(_TYPE, home=home)
    assert first.returncode == 0, first.stderr
    assert "JAX sees 4 devices" in first.stdout and first.stdout.endswith("ready\n")
    installs = [c for c in here.calls() if c["program"] == "uv" or "pip" in c["argv"]]
    assert len(installs) >= 4
    files = {p: p.stat().st_mtime_ns for p in home.rglob("*") if p.name != "check.log"}
    number = len(installs)
    second = here.setup(_TYPE, home=home)
    assert second.returncode == 0, second.stderr
    assert len([c for c in here.calls() if c["program"] == "uv" or "pip" in c["argv"]]) == number
    files.pop(home / "bert-jax" / "setup.lock")
    assert all(path.stat().st_mtime_ns == time for path, time in files.items())


def test_another_lock_or_source_is_installed_anew(cloud, home, tmp_path):
    """The environment for a new lock, only the package for new source."""
    here = cloud()
    copy = tmp_path / "checkout"
    for name in ("tpu_setup.sh", "requirements-tpu.lock", "pyproject.toml"):
        copy.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, copy)
    for name in ("bert_jax/__init__.py", "configs/bert_base.py", "launch/accelerators.tsv"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    settings = {
        "HOME": str(home), "DEVICES_AT": str(home / "dev"), "FAKE_HOST": "pod-w-0",
        "LIBTPU_LOCKFILE": str(home / "lock"),
    }  # fmt: skip

    def verbs() -> list[str]:
        before = len(here.calls())
        done = here.run(copy / "tpu_setup.sh", _TYPE, settings=settings)
        assert done.returncode == 0, done.stderr
        calls = [c["argv"] for c in here.calls()[before:] if c["program"] == "uv"]
        return [word for argv in calls for word in ("venv", "sync", "install") if word in argv[:3]]

    assert verbs() == ["venv", "sync", "install"]
    assert verbs() == []
    (copy / "bert_jax" / "__init__.py").write_text("__version__ = '9'\n")
    assert verbs() == ["install"]
    with (copy / "requirements-tpu.lock").open("a") as lock:
        lock.write("# another\n")
    assert verbs() == ["venv", "sync", "install"]


@pytest.mark.parametrize(
    ("code", "message", "scenario", "option"),
    [
        (2, "unknown argument --frob", {}, "--frob"),
        (2, "accelerator type 'v9-8' is not in", {}, "--type=v9-8"),
        (31, "pip cannot install uv", {"pip_fails": True}, _TYPE),
        (32, "uv cannot get Python", {"python_fails": True}, _TYPE),
        (33, "requirements-tpu.lock", {"sync_code": 1}, _TYPE),
        (35, "JAX sees 3 devices on this host; a host of v4-16 has 4", {"devices": 3}, _TYPE),
    ],
)
def test_each_failure_has_its_code(cloud, home, code, message, scenario, option):
    done = cloud(**scenario).setup(option, home=home)
    assert done.returncode == code and message in done.stderr


def test_a_failed_install_is_tried_again(cloud, home):
    here = cloud(sync_code=1)
    assert here.setup(_TYPE, home=home).returncode == 33
    here.scenario["sync_code"] = 0
    here.write_scenario()
    assert here.setup(_TYPE, home=home).returncode == 0


_HOLDER = """
import signal, sys, time
held = open(sys.argv[1], "w")
if sys.argv[2] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(flush=True)
time.sleep(60)
"""


def hold(path: Path, manner: str) -> subprocess.Popen:
    """A process that has a file open, as a stale trainer has a chip."""
    path.parent.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", _HOLDER, str(path), manner], stdout=subprocess.PIPE
    )
    assert process.stdout
    process.stdout.readline()
    process.stdout.close()
    return process


@pytest.mark.parametrize("device", ["accel0", "vfio/7"])
@pytest.mark.parametrize("manner", ["polite", "stubborn"])
def test_stale_holders_of_chips_are_ended(cloud, home, device, manner):
    here = cloud()
    (home / "libtpu_lockfile").touch()
    bystander = hold(home / "other", "polite")
    stale = hold(home / "dev" / device, manner)
    done = here.setup(_TYPE, home=home)
    assert done.returncode == 0, done.stderr
    end = signal.SIGTERM if manner == "polite" else signal.SIGKILL
    assert stale.wait(timeout=10) == -end
    assert not (home / "libtpu_lockfile").exists()
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_a_running_trainer_is_left_alone(cloud, home):
    here = cloud()
    unit = subprocess.Popen(["sleep", "60"])
    (home / "unit.pid").write_text(f"{unit.pid}\n")
    done = here.setup(_TYPE, home=home)
    assert done.returncode == 34 and "stop it first" in done.stderr
    assert unit.poll() is None
    unit.kill()
    unit.wait()


# --- worker.sh -----------------------------------------------------------------------------------


@pytest.fixture
def bucket(corpus):
    """Puts the tiny corpus into a cloud's bucket, and says where it is."""

    def put(here) -> Path:
        place = here.directory / "buckets" / "b" / "corpus"
        shutil.copytree(corpus, place)
        return place

    return put


def stage(here, home: Path):
    settings = {"HOME": str(home), "FAKE_HOST": "pod-w-0", "STAGE_PAUSE_SECONDS": "0"}
    script = ROOT / "launch" / "worker.sh"
    return here.run(script, "stage", "gs://b/corpus", str(home / "corpus"), settings=settings)


def test_staging_copies_checks_and_resumes(cloud, home, bucket):
    from bert_jax.data.store import open_corpus

    here = cloud(rsync_limits=[2, 1, 0])
    bucket(here)
    # Three copies that are interrupted: no corpus yet, but what came stays.
    assert stage(here, home).returncode == 4
    assert not (home / "corpus" / "corpus.json").exists()
    assert sum(p.is_file() for p in (home / "corpus").rglob("*")) == 3 + 1
    done = stage(here, home)
    assert done.returncode == 0, done.stdout
    open_corpus(home / "corpus")
    # Again: nothing to do. A file that lost its end is fetched again, alone.
    assert "staged already" in stage(here, home).stdout
    victim = next((home / "corpus" / "train").glob("*.tokens.npy"))
    victim.write_bytes(victim.read_bytes()[:-10])
    done = stage(here, home)
    assert done.returncode == 0 and done.stdout.count("copied") == 1
    open_corpus(home / "corpus")


def test_staging_what_is_no_corpus_or_damaged(cloud, home, bucket):
    here = cloud()
    assert stage(here, home).returncode == 4
    place = bucket(here)
    victim = next((place / "validation").glob("*.tokens.npy"))
    victim.write_bytes(victim.read_bytes()[:-10])
    done = stage(here, home)
    assert done.returncode == 4 and f"validation/{victim.name} among them" in done.stdout
    assert not (home / "corpus" / "corpus.json").exists()


_TRAINER = """#!/bin/bash
trap 'sleep 0.3; exit 42' TERM
echo "$@ port $JAX_COORDINATOR_PORT flags $LIBTPU_INIT_ARGS"
[[ $* == *quick* ]] && exit 3
touch "$HOME/up"
for _ in {1..300}; do sleep 0.1; done
"""


def worker(here, home: Path, *arguments: str, **settings: str):
    settings = {"HOME": str(home), "FAKE_HOST": "t1v-n-0abc-w-5"} | settings
    script = home / "bert-jax" / "src" / "launch" / "worker.sh"
    return here.run(script, *arguments, settings=settings)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.01)


def test_the_unit_hands_on_sigterm_and_keeps_the_code(cloud, home):
    here = cloud()
    place = home / "bert-jax"
    shutil.copytree(ROOT / "launch", place / "src" / "launch")
    (place / "venv" / "bin").mkdir(parents=True)
    (place / "venv" / "bin" / "python").write_text(_TRAINER)
    (place / "venv" / "bin" / "python").chmod(0o755)
    assert worker(here, home, "state", "r1").stdout == "none\n"
    started = worker(
        here, home, "start", "r1", "a b", "--process-id", "%i", LIBTPU_INIT_ARGS="--xla_x=true"
    )
    assert started.returncode == 0, started.stderr
    wait_for(home / "up")
    log = (place / "log" / "train.log").read_text()
    assert "pretrain a b --process-id 5 port 8476 flags --xla_x=true" in log
    assert worker(here, home, "state", "r1").stdout == "running\n"
    assert worker(here, home, "state", "r2").stdout == "other\n"
    # While it is being stopped, which may be while it saves, it runs.
    (home / "unit.stopping").touch()
    assert worker(here, home, "state", "r1").stdout == "running\n"
    (home / "unit.stopping").unlink()
    # Starting what runs is nothing.
    assert "running already" in worker(here, home, "start", "r1", "a").stdout
    # What systemd does as the host shuts down; the trainer takes its time and keeps its code.
    pid = int((home / "unit.pid").read_text())
    os.kill(pid, signal.SIGTERM)
    wait_for(place / "exit")
    assert worker(here, home, "state", "r1").stdout == "42\n"
    assert worker(here, home, "state", "r2").stdout == "none\n"
    properties = next(c["argv"] for c in here.calls() if c["program"] == "systemd-run")
    assert {"--unit=bert-jax", "--property=KillMode=mixed", "--property=TimeoutStopSec=300",
            "--property=After=network-online.target"} < set(properties)  # fmt: skip
    # A trainer that ends by itself, and one whose host was reset.
    assert worker(here, home, "start", "r1", "quick").returncode == 0
    wait_for(place / "exit")
    assert worker(here, home, "state", "r1").stdout == "3\n"
    (place / "exit").unlink()
    assert worker(here, home, "state", "r1").stdout == "137\n"
