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
    for name in (
        "bert_jax/__init__.py", "bert_jax_lab/__init__.py", "configs/bert_base.py",
        "studies/ladder.py",
        "launch/accelerators.tsv", "launch/lib/unit.sh",
    ):  # fmt: skip
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
        (
            35,
            "JAX sees 3 devices on this host; a host of v4-8 has",
            {"devices": 3},
            "--type=v4-8",
        ),
    ],
)
def test_each_failure_has_its_code(cloud, home, code, message, scenario, option):
    done = cloud(**scenario).setup(option, home=home)
    assert done.returncode == code and message in done.stderr


def test_one_host_of_several_that_does_not_see_its_chips_alone_is_warned_of(cloud, home):
    """It was told to look at itself alone, which a good slice may refuse."""
    done = cloud(devices=3).setup(_TYPE, home=home)
    assert done.returncode == 0, done.stderr
    assert "warning: JAX sees 3 devices on this host; a host of v4-16 has 4" in done.stdout


def test_the_check_has_the_limits_of_the_trainer(cloud, home):
    """Locked memory, without which the drivers of newer chips do not start."""
    here = cloud()
    assert here.setup(_TYPE, home=home).returncode == 0
    (check,) = [c["argv"] for c in here.calls() if c["program"] == "systemd-run"]
    assert {"--wait", "--pipe", "--property=LimitMEMLOCK=infinity"} < set(check)


@pytest.mark.parametrize("code", [0, 1])
def test_a_smoke_test_runs_when_asked_for(cloud, home, tmp_path, code):
    """On this host's own chips, with the environment that was set up."""
    copy = tmp_path / "checkout"
    for name in (
        "tpu_setup.sh", "requirements-tpu.lock", "pyproject.toml",
        "bert_jax/__init__.py", "bert_jax_lab/__init__.py",
        "configs/bert_base.py", "studies/ladder.py", "launch/accelerators.tsv",
        "launch/lib/unit.sh",
    ):  # fmt: skip
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    (copy / "examples").mkdir()
    (copy / "examples" / "smoke.sh").write_text(
        f"echo smoke with $BIN on $JAX_PLATFORMS $TPU_PROCESS_BOUNDS $#; exit {code}\n"
    )
    settings = {"HOME": str(home), "DEVICES_AT": str(home / "dev"),
                "LIBTPU_LOCKFILE": str(home / "lock")}  # fmt: skip
    here = cloud()
    done = here.run(copy / "tpu_setup.sh", "--smoke", _TYPE, settings=settings)
    assert f"\nsmoke with {home}/bert-jax/venv/bin on tpu 1,1,1 0\n" in done.stdout
    assert done.returncode == (36 if code else 0)
    assert done.stdout.endswith("ready\n") == (code == 0)
    done = here.run(copy / "tpu_setup.sh", "--type", "v4-16", settings=settings)
    assert done.returncode == 0 and "smoke" not in done.stdout


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


def hold(path: Path, manner: str, name: str = "bert_jax") -> subprocess.Popen:
    """A process that has a file open, as a stale trainer has a chip."""
    path.parent.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", _HOLDER, str(path), manner, name], stdout=subprocess.PIPE
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


def test_somebody_elses_process_keeps_its_chips(cloud, home):
    """It is named, and ended only by those who say so."""
    here = cloud()
    theirs = hold(home / "dev" / "accel0", "polite", "their_program")
    done = here.setup(_TYPE, home=home)
    assert done.returncode == 34 and theirs.poll() is None
    assert f"held by process {theirs.pid} (" in done.stderr and "FREE_CHIPS=all" in done.stderr
    assert here.setup(_TYPE, home=home, FREE_CHIPS="all").returncode == 0
    assert theirs.wait(timeout=10) == -signal.SIGTERM


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
    from bert_jax.data.corpus.store import open_corpus

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
[[ $3 == doctor ]] && exit "${FOUND:-0}"
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


def assert_systemd_knows(home: Path, argv: list[str]) -> None:
    """The unit that systemd-run would make, as a file, has no fault that systemd-analyze finds."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return  # systemd itself would say so, at the first start
    ends = next(i for i, word in enumerate(argv) if not word.startswith("--"))
    known = dict(word.partition("=")[2].split("=", 1) for word in argv[:ends] if "property" in word)
    about = [f"{name}={known.pop(name)}" for name in ("Wants", "After")]
    assert set(known) == {"KillMode", "TimeoutStopSec", "LimitMEMLOCK", "LimitNOFILE"}
    service = [f"{name}={value}" for name, value in known.items()]
    unit = home / "bert-jax.service"
    unit.write_text("\n".join(["[Unit]", *about, "[Service]", *service,
                               f"ExecStart={' '.join(argv[ends:])}", ""]))  # fmt: skip
    done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True)
    # Faults of the machine's own units are not ours.
    ours = [line for line in (done.stdout + done.stderr).splitlines() if unit.name in line]
    assert not ours, ours
    unit.write_text(unit.read_text().replace("LimitMEMLOCK=infinity", "LimitMEMLOCK=much"))
    bad = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True)
    assert "much" in bad.stdout + bad.stderr


def set_up(home: Path) -> Path:
    """A host with a checkout, and an environment whose Python is the trainer above."""
    place = home / "bert-jax"
    shutil.copytree(ROOT / "launch", place / "src" / "launch")
    (place / "venv" / "bin").mkdir(parents=True)
    (place / "venv" / "bin" / "python").write_text(_TRAINER)
    (place / "venv" / "bin" / "python").chmod(0o755)
    return place


@pytest.mark.parametrize(
    ("found", "settings", "code", "state"),
    [
        (4, {}, 4, "4"),  # what a run would end with: nothing is started
        (1, {}, 0, "3"),  # the doctor is ill
        (124, {}, 0, "3"),  # or slow
        (4, {"DOCTOR": "0"}, 0, "3"),  # not asked
    ],
)
def test_the_doctor_is_asked_before_the_trainer_starts(cloud, home, found, settings, code, state):
    here, place = cloud(), set_up(home)
    done = worker(here, home, "start", "r1", "quick", FOUND=str(found), **settings)
    assert done.returncode == code, done.stderr
    wait_for(place / "exit")
    assert worker(here, home, "state", "r1").stdout == f"{state}\n"
    log = (place / "log" / "train.log").read_text()
    assert ("-m bert_jax doctor quick port 8476" in log) == (not settings)
    assert ("-m bert_jax pretrain quick port 8476" in log) == (code == 0)
    if found == 4 and not settings:
        assert "not started" in done.stdout and "launch/tpu logs" in done.stdout


def test_the_unit_hands_on_sigterm_and_keeps_the_code(cloud, home):
    here, place = cloud(), set_up(home)
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
            "--property=LimitMEMLOCK=infinity"} < set(properties)  # fmt: skip
    assert_systemd_knows(home, properties)
    # A trainer that ends by itself, and one whose host was reset.
    assert worker(here, home, "start", "r1", "quick").returncode == 0
    wait_for(place / "exit")
    assert worker(here, home, "state", "r1").stdout == "3\n"
    (place / "exit").unlink()
    assert worker(here, home, "state", "r1").stdout == "137\n"


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


_DISKS = {
    # The names, types and file systems of lsblk; what is to be mounted.
    "whole": ("/dev/sda disk \n/dev/sda1 part ext4 sda\n/dev/sdb disk ext4", "/dev/sdb"),
    "partition": (
        "/dev/nvme0n1 disk \n/dev/nvme0n1p1 part ext4 nvme0n1\n/dev/nvme0n2 disk \n"
        "/dev/nvme0n2p1 part xfs nvme0n2", "/dev/nvme0n2p1",
    ),
    "none": ("/dev/sda disk \n/dev/sda1 part ext4 sda\n/dev/loop0 loop squashfs", None),
}  # fmt: skip


@pytest.mark.parametrize("kind", _DISKS)
def test_the_data_disk_is_the_one_beside_the_boot_disk(cloud, home, kind):
    listed, expected = _DISKS[kind]
    here = cloud()
    boot = "nvme0n1" if "nvme" in listed else "sda"
    # One call asks for the parent of the root's device, the other lists.
    program(here.directory / "bin/lsblk",
            f"[ $1 = -no ] && echo {boot} || printf '%s\\n' '{listed}'")  # fmt: skip
    program(here.directory / "bin/findmnt", f"echo /dev/{boot}1")
    program(here.directory / "bin/mountpoint", f"[ -e {home}/mounted ]")
    program(here.directory / "bin/mount", f'echo "$@" >>{home}/mounted')
    settings = {"HOME": str(home), "FAKE_HOST": "pod-w-0", "DATA_DISK_AT": str(home / "data")}
    script = ROOT / "launch" / "worker.sh"
    done = here.run(script, "mount", settings=settings)
    if expected is None:
        assert done.returncode == 7 and "no data disk" in done.stdout
        return
    assert done.returncode == 0, done.stderr
    assert (home / "mounted").read_text() == f"-o ro,noload {expected} {home}/data\n"
    assert "is mounted already" in here.run(script, "mount", settings=settings).stdout


@pytest.mark.parametrize(("key", "left"), [("SHA256:theirs", "none"), ("SHA256:google", "agent")])
def test_an_agent_without_googles_key_is_put_aside(cloud, key, left):
    """gcloud's ssh to several hosts refuses to begin beside it."""
    here = cloud()
    program(here.directory / "bin/ssh-add", f"echo 256 {key} me@laptop")
    program(here.directory / "bin/ssh-keygen", "echo 2048 SHA256:google google_compute_engine")
    script = (
        f". {ROOT}/launch/lib/common.sh && . {ROOT}/launch/lib/cloud.sh && forget_agent && "
        'echo "${SSH_AUTH_SOCK:-none}"'
    )
    done = here.run("bash", "-c", script, settings={"SSH_AUTH_SOCK": "agent"})
    assert (done.returncode, done.stdout) == (0, f"{left}\n"), done.stderr
