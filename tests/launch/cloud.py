"""A fake cloud for one test: writes the fake programs and a scenario, runs launch scripts in it."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.launch import fake_programs
from tests.limits import HUNG

ROOT = Path(__file__).parents[2]
WHERE = ("--project=p", "--zone=z", "--name=pod")
WHAT = ("--config=bert_large_64core", "--corpus=/data/corpus", "--workdir=gs://b/run")
STAGED = (WHAT[0], "--corpus=gs://b/corpus", WHAT[2])  # from a bucket
_TYPES = {1: "v4-8", 2: "v4-16", 16: "v4-128"}
# What is sent to hosts is small: of most parts one file, since no fake program reads them.
_PARTS = ("bert_jax/__init__.py", "bert_jax_lab/__init__.py", "studies/electra.py",
          "examples/smoke.sh", "tpu_setup.sh", "requirements-tpu.lock", "pyproject.toml",
          "README.md", "LICENSE")  # fmt: skip


def wait_until(condition, process=None, seconds: float = HUNG) -> None:
    """Until it holds; a test fails where the process ends before, or the time does."""
    deadline = time.monotonic() + seconds
    while not condition():
        if (process and process.poll() is not None) or time.monotonic() > deadline:
            if process:
                process.kill()  # or nobody would ever read the end of what it says
            pytest.fail(f"it never came to pass: {process and process.communicate()}")
        time.sleep(0.01)


def in_shell(script: str, *words: str) -> str:
    """Returns what a script prints that has the functions of launch/common.sh."""
    command = ["bash", "-c", f". {ROOT}/launch/common.sh; {script}", "-", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def check_unit(unit: Path, text: str, setting: str) -> None:
    """systemd-analyze has nothing against this unit, and sees a setting that means nothing."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    for found, expected in ((text, False), (text.replace(setting, f"{setting}?"), True)):
        unit.write_text(found)
        done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True)
        # It speaks of the units of this machine, too.
        assert (unit.name in done.stdout + done.stderr) == expected, done.stdout + done.stderr


_SCENARIO: dict[str, Any] = {
    "creations": [["ACTIVE"]],  # what the describe calls of each say in turn, the last for ever
    "trainer": [0],  # the exit code of each of its starts, or a list of one for each host
    "events": [],  # see `failing`
    "doctor": [0, 0],  # its codes on each host, or "real" for the real one
    "real_trainer": "",  # HOST:PORT at which real trainers meet
    "environment": {},  # of the hosts
    "devices": 4,
    "boots": False,  # whether hosts execute the startup script when they are made
    "api_code": 0,  # what the TPU API says to a host; 0: by what there is
    "states": [],  # what there is: what the cloud will say of it in turn
    "current": "",  # and what it said last
    "rsync_limits": [],  # how many files each rsync copies before it is interrupted
}


def failing(match: str, *times: int, **how: object) -> dict[str, Any]:
    """Returns a scenario in which these calls, or all, that match do not go well.

    A call is HOST PROGRAM ARGUMENT..., and `how` is one of fails=MESSAGE, loses=True (its answer),
    deaf=HOSTS (to it), and states=STATES (that the machine has from then on).
    """
    return {"events": [{"match": match, **({"times": times} if times else {}), **how}]}


class Cloud:
    """A v4-8 has one host, a v4-16 two and a v4-128 sixteen, with four devices each."""

    def __init__(self, directory: Path, *, number_of_hosts: int = 2, **scenario: Any) -> None:
        self.directory = directory
        self.processes: list[subprocess.Popen[str]] = []
        self.hosts = tuple(f"pod-w-{number}" for number in range(number_of_hosts))
        kind = _TYPES[number_of_hosts]
        self.bucket = directory / "buckets/b/run"  # the workdir of WHAT
        self.options = (*WHERE, f"--type={kind}")
        self.launcher = directory / "checkout/launch/tpu"
        for part in ("launch", "configs"):
            shutil.copytree(ROOT / part, directory / "checkout" / part)
        for part in _PARTS:
            (directory / "checkout" / part).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / part, directory / "checkout" / part)
        fake_programs.install(directory / "bin")
        for folder in ("home", "buckets", *(f"hosts/{host}" for host in self.hosts)):
            (directory / folder).mkdir(parents=True)
        assert scenario.keys() <= _SCENARIO.keys()
        counts = {"created": 0, "happened": {}, "starts": {}}
        values = _SCENARIO | {"hosts": self.hosts, "type": kind} | counts | scenario
        (directory / "state.json").write_text(json.dumps(values))
        self.up(10)
        (directory / "boot_id").write_text("b007-1\n")

    def up(self, seconds: int) -> None:
        """How long all hosts have been up, as /proc/uptime would say."""
        (self.directory / "uptime.new").write_text(f"{seconds}.00 1.0\n")
        (self.directory / "uptime.new").replace(self.directory / "uptime")

    def reset(self) -> None:
        """Power off, as a reset does it: nothing runs there any more."""
        self.run("kill_units")

    def environment_of(self, host: str, settings: dict[str, str]) -> dict[str, str]:
        return fake_programs.environment_of(self.directory, host, self.environment | settings)

    @property
    def environment(self) -> dict[str, str]:
        """All that a script gets: nothing of the machine but its plain programs."""
        return {
            "PATH": f"{self.directory / 'bin'}:/usr/bin:/bin",
            "HOME": str(self.directory / "home"),
            "FAKE_CLOUD": str(self.directory),
            "TMPDIR": str(self.directory),
            "POLL_SECONDS": "0.02",
            "LC_ALL": "C.UTF-8",
        }

    def start(
        self, *command: str | Path, settings: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """With a stdin that is at its end: what asks a question gets no answer."""
        # What a shell has put into the background does not hear SIGINT, and below nohup no SIGHUP.
        heard = ("/usr/bin/env", "--default-signal=INT,HUP")
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [str(word) for word in (*heard, *command)],
            env=self.environment | (settings or {}), cwd=self.directory, text=True,
            stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def run(
        self,
        *command: str | Path,
        settings: dict[str, str] | None = None,
        code: int = 0,
        says: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Runs it to its end, which has to be with this code, and with this on stderr."""
        process = self.start(*command, settings=settings)
        out, err = process.communicate(timeout=HUNG)
        assert process.returncode == code and says in err, (process.returncode, err, out)
        return subprocess.CompletedProcess(command, code, out, err)

    def tpu(self, command: str, *options: str, code: int = 0, says: str = "", **settings: str):
        words = (self.launcher, command, *self.options, *options)
        return self.run(*words, settings=settings, code=code, says=says)

    def stop_units(self) -> None:
        """The hosts shut down: systemd stops the units, which may save."""
        for host in self.hosts:
            given = self.environment_of(host, {})
            self.run("systemctl", "stop", "bert-jax", settings=given)

    def started(self, *options: str) -> subprocess.Popen[str]:
        """Returns a `launch/tpu run` whose hosts train."""
        run = self.start(self.launcher, "run", *self.options, *WHAT, *options)
        wait_until(lambda: len(self.state()["starts"]) == len(self.hosts), run)
        return run

    def on_host(self, *command: str | Path, code: int = 0, **settings: str):
        """As on worker 0."""
        given = self.environment_of("pod-w-0", settings)
        return self.run(*command, settings=given, code=code)

    def calls(self) -> list[dict]:
        path = self.directory / "log.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def commands(self) -> list[str]:
        """Returns what changed something, in order."""
        lines = [" ".join(call["argv"]) for call in self.calls()]
        return [name for line in lines for part, name in _CHANGES.items() if part in line]

    def state(self) -> dict:
        return json.loads((self.directory / "state.json").read_text())

    def set_states(self, *states: str) -> None:
        """Sets what the cloud says of the resource from now on, whatever it was about to say."""
        self.change(states=states, current=(*states, "")[0])

    def change(self, **values: Any) -> None:
        with (self.directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (self.directory / "state.new").write_text(json.dumps(self.state() | values))
            (self.directory / "state.new").replace(self.directory / "state.json")

    def store(self, name: str, text: str) -> Path:
        """Makes an object of a bucket, BUCKET/PATH."""
        path = self.directory / "buckets" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def home(self, number: int = 0) -> Path:
        return self.directory / "hosts" / self.hosts[number]

    def close(self) -> None:
        """Ends what a test that failed has left: launchers, and units on the hosts."""
        for process in self.processes:
            with process:  # which closes its pipes
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        self.reset()
        shutil.rmtree(self.directory / "hosts")


_CHANGES = {
    " queued-resources create ": "create",
    " queued-resources delete ": "delete",
    " tpu-vm scp ": "scp",
    "tpu_setup.sh": "setup",
    "worker.sh stage": "stage",
    "worker.sh start": "start",
    " -X DELETE ": "deletes itself",
}
