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
NAME = "pod"
RUN = ("--project=p", "--zone=z", f"--name={NAME}")
_TYPES = {1: "v4-8", 2: "v4-16", 8: "v4-64"}


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
    """Returns what a script prints that has the functions of launch/lib."""
    parts = "; ".join(f". {ROOT}/launch/lib/{part}.sh" for part in ("common", "settings", "codes"))
    command = ["bash", "-c", f"{parts}; {script}", "-", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def unit_faults(unit: Path) -> list[str]:
    """Returns what systemd-analyze has against a unit, but not against those of this machine."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True)
    return [line for line in (done.stdout + done.stderr).splitlines() if unit.name in line]


def end(process) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def read_until(process, text: str) -> None:
    for line in process.stderr:
        if text in line:
            return
    raise AssertionError(f"it ended without saying {text!r}")


# What each creation's describe calls say in turn (the last one for ever), the exit codes of the
# trainer's starts, and events: the times-th call (or each) of a program, HOST PROGRAM ARGUMENT...,
# that matches fails, or loses its answer, or hosts are deaf to it, or the machine has other states.
_SCENARIO: dict[str, Any] = {
    "creations": [["ACTIVE"]],
    "trainer": [{"code": 0}],
    "events": [],
    # The codes of the doctor on each host; none: 0 on all; "real": the real one.
    "doctor": [],
    "real_trainer": False,
    "environment": {},
    "devices": 4,
    # Whether hosts execute the startup script when they are made; what the TPU API says to a host;
    # where all buckets lie.
    "boots": False,
    "api_code": 200,
    "location": "Z",
    # What there is: what the cloud will say of it in turn, and what it said last; its zone (none:
    # in any that is asked) and its run.
    "states": [],
    "current": "",
    "zone": "",
    "run": "",
    # How many files each rsync copies before it is interrupted.
    "rsync_limits": [],
}


def failing(match: str, *times: int, **how: object) -> dict[str, Any]:
    """Returns a scenario in which these calls, or all, that match do not go well."""
    return {"events": [{"match": match, **({"times": times} if times else {}), **how}]}


class Cloud:
    """A v4-8 has one host, a v4-16 two and a v4-64 eight, with four devices each."""

    def __init__(self, directory: Path, *, number_of_hosts: int = 2, **scenario: Any) -> None:
        self.directory = directory
        self.processes: list[subprocess.Popen[str]] = []
        self.hosts = tuple(f"pod-w-{number}" for number in range(number_of_hosts))
        kind = _TYPES[number_of_hosts]
        self.options = (*RUN, f"--type={kind}")
        # What is sent to hosts is small: a file of each part that no fake program reads.
        self.launcher = directory / "checkout/launch/tpu"
        for part in ("launch", "configs"):
            shutil.copytree(ROOT / part, directory / "checkout" / part,
                            ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip
        for part in ("bert_jax/__init__.py", "bert_jax_lab/__init__.py", "studies/electra.py",
                     "examples/smoke.sh", "tpu_setup.sh", "requirements-tpu.lock",
                     "pyproject.toml", "README.md", "LICENSE"):  # fmt: skip
            (directory / "checkout" / part).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / part, directory / "checkout" / part)
        fake_programs.install(directory / "bin")
        for folder in ("home", "buckets", *(f"hosts/{host}/dev" for host in self.hosts)):
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

    def boot(self, settings: dict[str, str] | None = None) -> None:
        """Google's agent executes the startup script on each host, as at any boot."""
        (self.directory / "boot_id").write_text(f"b007-{len(self.calls())}\n")
        assert self.run("boot", settings=settings).returncode == 0

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
            "RETRY_SECONDS": "0",
            "LC_ALL": "C.UTF-8",
        }

    def start(
        self, *command: str | Path, settings: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """With a stdin that is at its end: what asks a question gets no answer."""
        # What a shell has put into the background does not hear SIGINT, and below nohup no SIGHUP.
        heard = ("/usr/bin/env", "--default-signal=INT,HUP")
        process = subprocess.Popen(
            [str(word) for word in (*heard, *command)],
            env=self.environment | (settings or {}),
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def run(
        self, *command: str | Path, settings: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(*command, settings=settings)
        try:
            out, err = process.communicate(timeout=HUNG)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def tpu(self, command: str, *options: str, **settings: str):
        return self.run(self.launcher, command, *self.options, *options, settings=settings)

    def started(self, *options: str, **settings: str) -> subprocess.Popen[str]:
        """Returns a `launch/tpu run` whose hosts train."""
        run = self.start(self.launcher, "run", *self.options, *options, settings=settings)
        wait_until(lambda: len(self.state()["starts"]) == len(self.hosts), run)
        return run

    def on_host(self, *command: str | Path, **settings: str):
        """As on worker 0."""
        return self.run(*command, settings=self.environment_of("pod-w-0", settings))

    def calls(self) -> list[dict]:
        path = self.directory / "log.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def commands(self) -> list[str]:
        """Returns what changed something, in order: create, delete, copy, verbs of worker.sh."""
        found = []
        for call in self.calls():
            words = [w for w in call["argv"] if not w.startswith("--") and w != "alpha"]
            if call["program"] == "gcloud" and words[:2] == ["compute", "tpus"]:
                if words[3] in ("create", "delete", "scp"):
                    found.append(words[3])
                elif words[3] == "ssh":
                    line = next(w for w in call["argv"] if w.startswith("--command="))
                    for key, name in _LINES.items():
                        if key in line:
                            found.append(name)
            elif call["program"] == "curl" and "DELETE" in call["argv"]:
                found.append("deletes itself")
        return found

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

    def home(self, number: int = 0) -> Path:
        return self.directory / "hosts" / self.hosts[number]

    def close(self) -> None:
        """Ends what a test that failed has left: launchers, and units on the hosts."""
        for process in self.processes:
            if process.poll() is None:
                end(process)
        self.reset()
        shutil.rmtree(self.directory / "hosts")


_LINES = {
    "tpu_setup.sh": "setup",
    "worker.sh stage": "stage",
    "worker.sh start": "start",
    "worker.sh stop": "stop",
}
