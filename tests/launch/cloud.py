"""A fake cloud for one test: installs fake programs, writes a scenario, runs launch scripts."""

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
_TYPES = {1: "v4-8", 2: "v4-16"}
# The launcher sends these files to the hosts. No fake program reads them, so one per part suffices.
_PARTS = ("bert_jax/__init__.py", "bert_jax_lab/__init__.py", "studies/electra.py",
          "examples/smoke.sh", "tpu_setup.sh", "requirements-tpu.lock", "pyproject.toml",
          "README.md", "LICENSE")  # fmt: skip


def wait_until(condition, process=None, seconds: float = HUNG) -> None:
    """Waits for a condition; fails when the process has ended before, or after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if (process and process.poll() is not None) or time.monotonic() > deadline:
            if process:
                process.kill()  # closes the pipes, which are read below
            pytest.fail(f"the condition was not met: {process and process.communicate()}")
        time.sleep(0.01)


def in_shell(script: str, *words: str) -> str:
    """Returns the output of a script that can call the functions of launch/common.sh."""
    command = ["bash", "-c", f". {ROOT}/launch/common.sh; {script}", "-", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def check_unit(unit: Path, text: str, setting: str) -> None:
    """systemd-analyze accepts this unit, and reports an unknown setting."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    for found, expected in ((text, False), (text.replace(setting, f"{setting}?"), True)):
        unit.write_text(found)
        done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True)
        # Its output also has problems of other units of this machine.
        assert (unit.name in done.stdout + done.stderr) == expected, done.stdout + done.stderr


_SCENARIO: dict[str, Any] = {
    "creations": [["ACTIVE"]],  # per request: the states of successive describe calls
    "trainer": [0],  # the exit code of each start, or a list with one per host
    "events": [],  # see `failing`
    "doctor": [0, 0],  # its exit code per host, or "real"
    "real_trainer": "",  # HOST:PORT of the coordinator of real trainers
    "environment": {},  # of the hosts
    "devices": 4,
    "boots": False,  # whether new hosts execute the startup script
    "api_code": 0,  # the HTTP code of the TPU API; 0: by the state
    "states": [],  # the next states of the resource; empty: no resource
    "current": "",  # the last state
    "rsync_limits": [],  # the files that each rsync copies before it fails
}


def failing(match: str, *times: int, **how: object) -> dict[str, Any]:
    """Returns a scenario in which calls that match fail: the calls of these numbers, or all.

    A call is HOST PROGRAM ARGUMENT..., and `how` is one of fails=MESSAGE, loses=True (the answer is
    lost), deaf=HOSTS (that do not answer), and states=STATES (of the machine from then on).
    """
    return {"events": [{"match": match, **({"times": times} if times else {}), **how}]}


class Cloud:
    """A v4-8 with one host, or a v4-16 with two, each with four devices."""

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
        """Sets the uptime of all hosts, in the format of /proc/uptime."""
        (self.directory / "uptime.new").write_text(f"{seconds}.00 1.0\n")
        (self.directory / "uptime.new").replace(self.directory / "uptime")

    def reset(self) -> None:
        """Powers the hosts off without a signal to their processes."""
        self.run("kill_units")

    def environment_of(self, host: str, settings: dict[str, str]) -> dict[str, str]:
        return fake_programs.environment_of(self.directory, host, self.environment | settings)

    @property
    def environment(self) -> dict[str, str]:
        """The whole environment of a script: only the plain programs of this machine."""
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
        """Starts a command with an empty stdin, so that a question gets no answer."""
        # A background process of a shell ignores SIGINT, and below nohup SIGHUP.
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
        """Runs a command; requires this exit code, and this text on stderr."""
        process = self.start(*command, settings=settings)
        out, err = process.communicate(timeout=HUNG)
        assert process.returncode == code and says in err, (process.returncode, err, out)
        return subprocess.CompletedProcess(command, code, out, err)

    def tpu(self, command: str, *options: str, code: int = 0, says: str = "", **settings: str):
        words = (self.launcher, command, *self.options, *options)
        return self.run(*words, settings=settings, code=code, says=says)

    def stop_units(self) -> None:
        """Shuts the hosts down: systemd stops the units, so trainers save."""
        # All at once: the first trainer that ends must not be restarted before the last stop.
        for number in range(len(self.hosts)):
            (self.home(number) / "unit.stopping").touch()
        for host in self.hosts:
            given = self.environment_of(host, {})
            self.run("systemctl", "stop", "bert-jax", settings=given)

    def started(self, *options: str) -> subprocess.Popen[str]:
        """Returns a `launch/tpu run` with trainers that run."""
        run = self.start(self.launcher, "run", *self.options, *WHAT, *options)
        wait_until(lambda: len(self.state()["starts"]) == len(self.hosts), run)
        return run

    def on_host(self, *command: str | Path, code: int = 0, **settings: str):
        """Runs a command on worker 0."""
        given = self.environment_of("pod-w-0", settings)
        return self.run(*command, settings=given, code=code)

    def calls(self) -> list[dict]:
        path = self.directory / "log.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def commands(self) -> list[str]:
        """Returns the calls that change something, in order."""
        lines = [" ".join(call["argv"]) for call in self.calls()]
        return [name for line in lines for part, name in _CHANGES.items() if part in line]

    def state(self) -> dict:
        return json.loads((self.directory / "state.json").read_text())

    def set_states(self, *states: str) -> None:
        """Replaces the next states of the resource."""
        self.change(states=states, current=(*states, "")[0])

    def change(self, **values: Any) -> None:
        with (self.directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (self.directory / "state.new").write_text(json.dumps(self.state() | values))
            (self.directory / "state.new").replace(self.directory / "state.json")

    def store(self, name: str, text: str) -> Path:
        """Writes an object BUCKET/PATH."""
        path = self.directory / "buckets" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def home(self, number: int = 0) -> Path:
        return self.directory / "hosts" / self.hosts[number]

    def close(self) -> None:
        """Ends the launchers and units that a failed test has left."""
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
