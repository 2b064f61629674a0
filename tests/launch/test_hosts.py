"""On a host: setting up, freeing the chips, staging a corpus, and the trainer's signals."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.cloud import ROOT, wait_until
from tests.limits import HUNG

_TYPE = "--type=v4-16"


@pytest.fixture
def home(tmp_path) -> Path:
    (tmp_path / "host" / "dev").mkdir(parents=True)
    return tmp_path / "host"


# --- tpu_setup.sh --------------------------------------------------------------------------------


def verbs(here) -> list[str]:
    calls = [call["argv"] for call in here.calls() if call["program"] == "uv"]
    return [word for argv in calls for word in ("venv", "sync", "install") if word in argv[:3]]


def test_setting_up_again_installs_what_is_another(cloud, home, tmp_path):
    """The package each time, the environment for another lock, and what has failed."""
    here = cloud(sync_code=1)
    copy = tmp_path / "checkout"
    for name in ("tpu_setup.sh", "requirements-tpu.lock", "launch/accelerators.tsv",
                 *(f"launch/lib/{part}.sh" for part in ("common", "outside", "unit"))):  # fmt: skip
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    assert here.setup(_TYPE, home=home, checkout=copy).returncode == 33
    here.scenario["sync_code"] = 0
    here.write_scenario()
    done = here.setup(_TYPE, home=home, checkout=copy)
    assert done.returncode == 0, done.stderr
    assert "JAX sees 4 devices" in done.stdout and done.stdout.endswith("ready\n")
    assert here.setup(_TYPE, home=home, checkout=copy).returncode == 0
    with (copy / "requirements-tpu.lock").open("a") as lock:
        lock.write("# another\n")
    assert here.setup(_TYPE, home=home, checkout=copy).returncode == 0
    whole = ["venv", "sync", "install"]
    assert verbs(here) == [*whole[:2], *whole, "install", *whole]
    # The check has the limits of the trainer: locked memory, for newer chips.
    checks = [call["argv"] for call in here.calls() if call["program"] == "systemd-run"]
    assert {"--wait", "--pipe", "--property=LimitMEMLOCK=infinity"} < set(checks[0])
    # A smoke test when asked for, on this host's own chips, with the environment that was set up.
    (copy / "examples").mkdir()
    for code in (0, 36):
        (copy / "examples" / "smoke.sh").write_text(
            f"echo smoke with $BIN on $JAX_PLATFORMS $TPU_PROCESS_BOUNDS $#; exit {code}\n"
        )
        done = here.setup("--smoke", "--type", "v4-16", home=home, checkout=copy)
        assert f"\nsmoke with {home}/bert-jax/venv/bin on tpu 1,1,1 0\n" in done.stdout
        assert (done.returncode, done.stdout.endswith("ready\n")) == (code, code == 0)


@pytest.mark.parametrize(
    ("code", "message", "scenario", "option"),
    [
        (2, "unknown option --frob; tpu_setup.sh --help", {}, "--frob"),
        (0, "34 a trainer is running", {}, "--help"),
        (2, "accelerator type 'v9-8' is not known", {}, "--type=v9-8"),
        (31, "pip cannot install uv", {"pip_fails": True}, _TYPE),
        (30, "this machine does not say that it is a TPU host", {}, "--smoke"),
        (32, "uv cannot get Python", {"python_fails": True}, _TYPE),
        (35, "JAX sees 3 devices on this host; a host of v4-8 has 4", {"devices": 3},
         "--type=v4-8"),
        # One of several was told to look at itself alone, which a good slice may refuse.
        (0, "warning: JAX sees 3 devices on this host; a host of v4-16 has 4", {"devices": 3},
         _TYPE),
    ],
)  # fmt: skip
def test_each_failure_has_its_code(cloud, home, code, message, scenario, option):
    done = cloud(**scenario).setup(option, home=home)
    assert done.returncode == code and message in done.stderr + done.stdout


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
    assert stale.wait(timeout=HUNG) == -end
    assert not (home / "libtpu_lockfile").exists()
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_somebody_elses_process_keeps_its_chips(cloud, home):
    theirs = hold(home / "dev" / "accel0", "polite", "their_program")
    done = cloud().setup(_TYPE, home=home)
    assert done.returncode == 34 and theirs.poll() is None
    assert f"held by process {theirs.pid} ({sys.executable}" in done.stderr
    theirs.kill()
    theirs.wait()


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


def stage(here, home: Path):
    settings = {"HOME": str(home), "FAKE_HOST": "pod-w-0", "STAGE_PAUSE_SECONDS": "0"}
    script = ROOT / "launch" / "worker.sh"
    return here.run(script, "stage", "gs://b/corpus", str(home / "corpus"), settings=settings)


def test_staging_copies_and_resumes(cloud, home, corpus):
    from bert_jax.data.corpus.store import open_corpus

    here = cloud(rsync_limits=[1, 1, 0, 0])
    done = stage(here, home)
    assert done.returncode == 4 and "cannot be copied: is it a corpus" in done.stdout
    shutil.copytree(corpus, here.directory / "buckets" / "b" / "corpus")
    # Copies that are interrupted: no corpus yet, but what came stays.
    done = stage(here, home)
    assert done.returncode == 4 and done.stdout.count("copying was interrupted") == 4
    assert {p.name for p in (home / "corpus").iterdir() if p.is_file()} == {"corpus.json.new"}
    assert sum(p.is_file() for p in (home / "corpus").rglob("*")) == 2 + 1
    done = stage(here, home)
    assert done.returncode == 0, done.stdout
    open_corpus(home / "corpus")
    # A file that lost its end is fetched again, alone.
    victim = next((home / "corpus" / "train").glob("*.tokens.npy"))
    victim.write_bytes(victim.read_bytes()[:-10])
    done = stage(here, home)
    assert done.returncode == 0 and done.stdout.count("copied") == 1
    open_corpus(home / "corpus")


_TRAINER = """#!/bin/bash
trap 'sleep 0.3; exit 42' TERM
echo "$@ port $JAX_COORDINATOR_PORT flags $LIBTPU_INIT_ARGS"
[[ $3 == doctor && $FOUND == waits ]] && touch "$HOME/looks" && sleep 60 & wait
[[ $3 == doctor ]] && exit "${FOUND:-0}"
[[ $* == *quick* ]] && exit 3
touch "$HOME/up"
for _ in {1..300}; do sleep 0.1; done
"""


def worker(here, home: Path, *arguments: str, **settings: str):
    settings = {"HOME": str(home), "FAKE_HOST": "t1v-n-0abc-w-5"} | settings
    script = home / "bert-jax" / "src" / "launch" / "worker.sh"
    return here.run(script, *arguments, settings=settings)


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
    ("found", "settings", "code"),
    [
        (4, {}, 4),  # what a run would end with: nothing is trained
        (1, {}, 3),  # the doctor is ill
        (124, {}, 3),  # or slow
        (4, {"DOCTOR": "0"}, 3),  # not asked
    ],
)
def test_the_doctor_is_asked_before_the_trainer_starts(cloud, home, found, settings, code):
    here, place = cloud(), set_up(home)
    done = worker(here, home, "start", "r1", "quick", FOUND=str(found), **settings)
    assert done.returncode == 0, done.stderr
    wait_until((place / "exit").exists)
    assert worker(here, home, "state", "r1").stdout == f"{code}\n"
    log = (place / "log" / "train.log").read_text()
    assert ("-m bert_jax doctor quick port 8476" in log) == (not settings)
    assert ("-m bert_jax pretrain quick port 8476" in log) == (code == 3)
    assert ("not started" in log) == (code == 4)


def test_who_is_stopped_while_the_doctor_looks_does_not_begin(cloud, home):
    here, place = cloud(), set_up(home)
    assert worker(here, home, "start", "r1", "a", FOUND="waits").returncode == 0
    wait_until((home / "looks").exists)
    os.kill(int((home / "unit.pid").read_text()), signal.SIGTERM)
    wait_until((place / "exit").exists)
    assert worker(here, home, "state", "r1").stdout == "143\n"
    assert "pretrain a port" not in (place / "log" / "train.log").read_text()


def test_the_unit_hands_on_sigterm_and_keeps_the_code(cloud, home):
    here, place = cloud(), set_up(home)
    assert worker(here, home, "state", "r1").stdout == "none\n"
    started = worker(
        here, home, "start", "r1", "a b", "--process-id", "%i", LIBTPU_INIT_ARGS="--xla_x=true"
    )
    assert started.returncode == 0, started.stderr
    wait_until((home / "up").exists)
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
    wait_until((place / "exit").exists)
    assert worker(here, home, "state", "r1").stdout == "42\n"
    assert worker(here, home, "state", "r2").stdout == "none\n"
    properties = next(c["argv"] for c in here.calls() if c["program"] == "systemd-run")
    assert {"--unit=bert-jax", "--property=KillMode=mixed", "--property=TimeoutStopSec=300",
            "--property=LimitMEMLOCK=infinity"} < set(properties)  # fmt: skip
    assert_systemd_knows(home, properties)
    # A trainer that ends by itself, and one whose host was reset.
    assert worker(here, home, "start", "r1", "quick").returncode == 0
    wait_until((place / "exit").exists)
    assert worker(here, home, "state", "r1").stdout == "3\n"
    (place / "exit").unlink()
    assert worker(here, home, "state", "r1").stdout == "137\n"


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


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
