"""On a host: setting up, freeing the chips, staging a corpus, and the trainer's signals."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launch.cloud import ROOT, check_unit, failing, wait_until
from tests.launch.fake_programs import program
from tests.limits import HUNG

_TYPE = "--type=v4-16"


# --- tpu_setup.sh --------------------------------------------------------------------------------


def set_up(here, *options: str, code: int = 0):
    script = here.launcher.parents[1] / "tpu_setup.sh"
    return here.on_host(script, *(options or [_TYPE]), code=code)


def test_setting_up_again_installs_what_is_another(cloud):
    """The package each time, the environment for another lock, and what has failed."""
    here = cloud(**failing("uv .* sync ", fails="no"))
    copy = here.launcher.parents[1]
    set_up(here, code=33)
    here.change(events=[])
    done = set_up(here)
    assert "JAX sees 4 devices" in done.stdout and done.stdout.endswith("ready\n")
    set_up(here)
    with (copy / "requirements-tpu.lock").open("a") as lock:
        lock.write("# another\n")
    set_up(here)
    calls = [call["argv"] for call in here.calls() if call["program"] == "uv"]
    whole = ["venv", "sync", "install"]
    verbs = [word for argv in calls for word in whole if word in argv[:3]]
    assert verbs == [*whole[:2], *whole, "install", *whole]
    # The check has the limits of the trainer: locked memory, for newer chips.
    checks = [call["argv"] for call in here.calls() if call["program"] == "systemd-run"]
    assert {"--wait", "--pipe", "--property=LimitMEMLOCK=infinity"} < set(checks[0])
    # A smoke test when asked for, on this host's own chips, with the environment that was set up.
    for code in (0, 36):
        (copy / "examples" / "smoke.sh").write_text(
            f"echo smoke with $BIN on $JAX_PLATFORMS $TPU_PROCESS_BOUNDS $#; exit {code}\n"
        )
        done = set_up(here, "--smoke", "--type", "v4-16", code=code)
        assert f"\nsmoke with {here.home()}/bert-jax/venv/bin on tpu 1,1,1 0\n" in done.stdout
        assert done.stdout.endswith("ready\n") == (code == 0)


@pytest.mark.parametrize(
    ("code", "message", "scenario", "option"),
    [
        (2, "unknown option --frob; tpu_setup.sh --help", {}, "--frob"),
        (0, "34 a trainer is running", {}, "--help"),
        (2, "accelerator type 'v9-8' is not known", {}, "--type=v9-8"),
        (31, "pip cannot install uv", failing("-m pip install", fails="no"), _TYPE),
        (30, "this machine does not say that it is a TPU host", {}, "--smoke"),
        (32, "uv cannot get Python", failing("uv .* venv ", fails="no"), _TYPE),
        (35, "sees 3 devices on this host; a host of v4-8 has 4", {"devices": 3}, "--type=v4-8"),
        # One of several was told to look at itself alone, which a good slice may refuse.
        (0, "warning: JAX sees 3 devices on this host; a host of v4-16", {"devices": 3}, _TYPE),
    ],
)  # fmt: skip
def test_each_failure_has_its_code(cloud, code, message, scenario, option):
    done = set_up(cloud(**scenario), option, code=code)
    assert message in done.stderr + done.stdout


_HOLDER = """
import signal, sys, time
held = open(sys.argv[1], "w")
if sys.argv[2] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(flush=True)
time.sleep(60)
"""


@pytest.fixture
def hold() -> Iterator[Callable[..., subprocess.Popen]]:
    """Starts processes that have a file open, as a stale trainer has a chip."""
    with contextlib.ExitStack() as stack:

        def start(path: Path, manner: str = "polite", name: str = "bert_jax") -> subprocess.Popen:
            command = [sys.executable, "-S", "-c", _HOLDER, str(path), manner, name]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            stack.callback(process.kill)
            assert process.stdout and process.stdout.readline()
            return process

        yield start


@pytest.mark.parametrize(
    ("device", "manner", "end"),
    [("accel0", "polite", signal.SIGTERM), ("vfio/7", "stubborn", signal.SIGKILL)],
)
def test_stale_holders_of_chips_are_ended(cloud, hold, device, manner, end):
    here = cloud()
    home = here.home()
    (home / "libtpu_lockfile").touch()
    (home / "dev/vfio").mkdir()
    bystander, stale = hold(home / "other"), hold(home / "dev" / device, manner)
    set_up(here)
    assert stale.wait(timeout=HUNG) == -end and bystander.poll() is None
    assert not (home / "libtpu_lockfile").exists()


def test_what_is_somebody_elses_or_trains_is_left_alone(cloud, hold):
    here = cloud()
    theirs = hold(here.home() / "dev" / "accel0", name="their_program")
    done = set_up(here, code=34)
    assert f"held by process {theirs.pid} ({sys.executable}" in done.stderr
    trainer = hold(here.home() / "other")
    (here.home() / "unit.pid").write_text(f"{trainer.pid}\n")
    assert "stop it first" in set_up(here, code=34).stderr
    assert theirs.poll() is trainer.poll() is None


# --- worker.sh -----------------------------------------------------------------------------------


def test_staging_copies_and_resumes(cloud, corpus):
    from bert_jax.data.corpus.store import open_corpus

    here = cloud(rsync_limits=[1, 1, 0, 0])
    home = here.home()

    def stage(code: int = 0) -> str:
        words = (ROOT / "launch/worker.sh", "stage", "gs://b/corpus", home / "corpus")
        return here.on_host(*words, code=code, STAGE_PAUSE_SECONDS="0").stdout

    assert "cannot be copied: is it a corpus" in stage(4)
    shutil.copytree(corpus, here.directory / "buckets" / "b" / "corpus")
    # Copies that are interrupted: no corpus yet, but what came stays.
    assert stage(4).count("copying was interrupted") == 4
    assert {p.name for p in (home / "corpus").iterdir() if p.is_file()} == {"corpus.json.new"}
    assert sum(p.is_file() for p in (home / "corpus").rglob("*")) == 2 + 1
    stage()
    open_corpus(home / "corpus")
    # A file that lost its end is fetched again, alone.
    victim = next((home / "corpus" / "train").glob("*.tokens.npy"))
    victim.write_bytes(victim.read_bytes()[:-10])
    assert stage().count("copied") == 1
    open_corpus(home / "corpus")


def test_two_that_stage_at_once_do_not_disturb_each_other(cloud, corpus):
    """An interrupted command may have left one. Several corpora are copied in turn."""
    here = cloud(rsync_limits=[0])
    for name in ("one", "two"):
        shutil.copytree(corpus, here.directory / "buckets/b" / name)
    target = here.home() / "corpora"
    words = (ROOT / "launch/worker.sh", "stage", "gs://b/one", target / "one",
             "gs://b/two", target / "two")  # fmt: skip
    env = here.environment_of("pod-w-0", {"STAGE_PAUSE_SECONDS": "0.5"})
    first = here.start(*words, settings=env)
    wait_until((target / "one/corpus.json.new").exists, first)
    second = here.on_host(*words)
    assert first.wait(timeout=HUNG) == 0
    assert f"another copy to {target}/one is under way" in second.stdout
    assert second.stdout.count("staged gs://b/") == 2
    assert {path.name for path in target.iterdir()} == {"one", "one.lock", "two", "two.lock"}


_TRAINER = """#!/bin/bash
trap 'sleep 0.3; exit 42' TERM
echo "$@ port $JAX_COORDINATOR_PORT flags $LIBTPU_INIT_ARGS"
[[ $3 == doctor && $FOUND == waits ]] && touch "$HOME/looks" && sleep 60 & wait
[[ $3 == doctor ]] && exit "${FOUND:-0}"
[[ $* == *quick* ]] && exit 3
touch "$HOME/up"
for _ in {1..300}; do sleep 0.1; done
"""


def worker(here, *arguments: str, **settings: str):
    script = here.home() / "bert-jax/src/launch/worker.sh"
    return here.on_host(script, *arguments, FAKE_HOST="t1v-n-0abc-w-5", **settings)


def with_trainer(here) -> Path:
    """Returns the place of a host, with a checkout and, for its Python, the trainer above."""
    place = here.home() / "bert-jax"
    shutil.copytree(ROOT / "launch", place / "src" / "launch")
    program(place / "venv/bin/python", _TRAINER)
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
def test_the_doctor_is_asked_before_the_trainer_starts(cloud, found, settings, code):
    here = cloud()
    place = with_trainer(here)
    worker(here, "start", "r1", "quick", FOUND=str(found), **settings)
    wait_until((place / "exit").exists)
    assert worker(here, "state", "r1").stdout == f"{code}\n"
    log = (place / "log" / "train.log").read_text()
    assert ("-m bert_jax doctor quick port 8476" in log) == (not settings)
    assert ("-m bert_jax pretrain quick port 8476" in log) == (code == 3)
    assert ("not started" in log) == (code == 4)


def test_who_is_stopped_while_the_doctor_looks_does_not_begin(cloud):
    here = cloud()
    place = with_trainer(here)
    worker(here, "start", "r1", "a", FOUND="waits")
    wait_until((here.home() / "looks").exists)
    os.kill(int((here.home() / "unit.pid").read_text()), signal.SIGTERM)
    wait_until((place / "exit").exists)
    assert worker(here, "state", "r1").stdout == "143\n"
    assert "pretrain a port" not in (place / "log" / "train.log").read_text()


def test_the_unit_hands_on_sigterm_and_keeps_the_code(cloud):
    here = cloud()
    place = with_trainer(here)
    assert worker(here, "state", "r1").stdout == "none\n"
    worker(here, "start", "r1", "a b", "--process-id", "%i", LIBTPU_INIT_ARGS="--xla_x=true")
    wait_until((here.home() / "up").exists)
    log = (place / "log" / "train.log").read_text()
    assert "pretrain a b --process-id 5 port 8476 flags --xla_x=true" in log
    assert worker(here, "state", "r1").stdout == "running\n"
    assert worker(here, "state", "r2").stdout == "other\n"
    # While it is being stopped, which may be while it saves, it runs.
    (here.home() / "unit.stopping").touch()
    assert worker(here, "state", "r1").stdout == "running\n"
    (here.home() / "unit.stopping").unlink()
    # Starting what runs is nothing.
    assert "running already" in worker(here, "start", "r1", "a").stdout
    # What systemd does as the host shuts down; the trainer takes its time and keeps its code.
    pid = int((here.home() / "unit.pid").read_text())
    os.kill(pid, signal.SIGTERM)
    wait_until((place / "exit").exists)
    assert worker(here, "state", "r1").stdout == "42\n"
    assert worker(here, "state", "r2").stdout == "none\n"
    properties = next(c["argv"] for c in here.calls() if c["program"] == "systemd-run")
    assert {"--unit=bert-jax", "--property=KillMode=mixed", "--property=TimeoutStopSec=300",
            "--property=LimitMEMLOCK=infinity"} < set(properties)  # fmt: skip
    # A trainer that ends by itself, and one whose host was reset.
    worker(here, "start", "r1", "quick")
    wait_until((place / "exit").exists)
    assert worker(here, "state", "r1").stdout == "3\n"
    (place / "exit").unlink()
    assert worker(here, "state", "r1").stdout == "137\n"


def test_systemd_finds_no_fault_in_the_unit_of_the_trainer(cloud):
    """As a file, which has what systemd-run is told."""
    here = cloud()
    with_trainer(here)
    worker(here, "start", "r1", "quick")
    argv = next(c["argv"] for c in here.calls() if c["program"] == "systemd-run")
    told = [word.partition("=")[2] for word in argv if word.startswith("--property=")]
    about, service = told[2:4], told[:2] + told[4:]
    assert [word.partition("=")[0] for word in about] == ["Wants", "After"] and len(service) == 4
    text = "\n".join(["[Unit]", *about, "[Service]", *service, "ExecStart=/bin/true", ""])
    check_unit(here.home() / "bert-jax.service", text, "LimitMEMLOCK=infinity")


@pytest.mark.parametrize(("key", "left"), [("SHA256:theirs", "none"), ("SHA256:google", "agent")])
def test_an_agent_without_googles_key_is_put_aside(cloud, key, left):
    """gcloud's ssh to several hosts refuses to begin beside it."""
    here = cloud()
    program(here.directory / "bin/ssh-add", f"#!/bin/sh\necho 256 {key} me@laptop\n")
    program(here.directory / "bin/ssh-keygen", "#!/bin/sh\necho 2048 SHA256:google its_own\n")
    script = (
        f". {ROOT}/launch/lib/common.sh && . {ROOT}/launch/lib/cloud.sh && forget_agent && "
        'echo "${SSH_AUTH_SOCK:-none}"'
    )
    done = here.run("bash", "-c", script, settings={"SSH_AUTH_SOCK": "agent"})
    assert done.stdout == f"{left}\n"
