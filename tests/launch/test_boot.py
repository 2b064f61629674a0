"""The machine limits its own cost: launch/boot.sh as each host runs it.

Time is a file with the uptime, so that an hour takes no time. The metadata server and the TPU API
are a server on loopback, called by the real curl. There is no gcloud, because its snap is mounted
some time after a boot.
"""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.launch.cloud import ROOT, Cloud, check_unit, wait_until
from tests.launch.fake_programs import program
from tests.launch.rest_api import Api

_SECONDS = {"MAX_SECONDS": 86_400, "KEEP": 0}
_TPU = "/v2/projects/p/locations/z"


class Machine:
    """A host with this startup script; its disk survives reboots."""

    def __init__(self, here: Cloud, api: Api) -> None:
        self.here, self.api = here, api
        self.disk, self.shims = here.home() / "cap", here.directory / "bin"
        for name in ("gcloud", "curl", "python3", "sudo"):
            (here.directory / "bin" / name).unlink()
        server = f"127.0.0.1:{api.server_port}"
        self.settings = {"GCE_METADATA_HOST": server, "TPU_API": f"http://{server}/v2",
                         "TICK_SECONDS": "0.01", "AGAIN_SECONDS": "0.01",
                         "LAST_SECONDS": "0"}  # fmt: skip
        self.write()
        self.trainer: subprocess.Popen | None = None
        api.resources["pod"] = {}

    def write(self, **values: object) -> None:
        settings = {"TPU": "projects/p/locations/z/pod"} | _SECONDS | values
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        script = f"#!/usr/bin/env bash\n{text}{(ROOT / 'launch/boot.sh').read_text()}"
        (self.here.directory / "startup").write_text(script)

    def run(self, *words: str | Path) -> None:
        self.here.on_host(*words, **self.settings)

    def startup(self, *words: str) -> None:
        self.run("bash", self.here.directory / "startup", *words)

    def boot(self, *, with_startup: bool = True) -> None:
        """Powers off without a signal; then starts the enabled units, then Google's agent."""
        self.off()
        (self.here.directory / "boot_id").write_text(f"b007-{time.monotonic_ns()}\n")
        self.here.up(10)
        self.on()
        if with_startup:
            self.startup()
        self.look()

    def off(self) -> None:
        self.ends()
        self.here.reset()

    def on(self) -> None:
        if (self.here.home() / "enabled.bert-jax-cap").exists():
            self.run("systemctl", "--no-block", "start", "bert-jax-cap")

    def look(self) -> list[str]:
        """Returns the requests to delete after three more checks of the unit."""
        account, seen = self.disk / "account", set()
        while len(seen) < 4:
            wait_until(lambda: account.exists() and account.stat().st_mtime_ns not in seen)
            seen.add(account.stat().st_mtime_ns)
        return self.deletes()

    def deletes(self) -> list[str]:
        return [path for method, path in self.api.requests if method == "DELETE"]

    def log(self) -> str:
        log = self.disk / "log"
        return log.read_text() if log.exists() else ""

    def trains(self) -> None:
        self.trainer = subprocess.Popen(["sleep", "600"])
        for name in ("unit.pid", "main.pid"):
            (self.here.home() / name).write_text(f"{self.trainer.pid}\n")
        self.look()

    def saves(self) -> None:
        """The unit is being stopped."""
        (self.here.home() / "unit.stopping").touch()

    def ends(self) -> None:
        (self.here.home() / "unit.stopping").unlink(missing_ok=True)
        if self.trainer:
            self.trainer.kill()
            self.trainer.wait()

    def play(self, life: str) -> None:
        """Plays words and uptimes: `600-` requires the TPU at 600 s, `601+` its deletion at 601."""
        for word in life.split():
            if word in ("boot", "trains", "saves"):
                getattr(self, word)()
            elif word == "unit":  # the enabled unit only: the agent has no metadata
                self.boot(with_startup=False)
            elif word == "ends":
                self.ends()
                self.look()
            elif word == "kept":
                self.write(KEEP=1)
            elif word == "more":  # `launch/tpu run --max-hours`; a boot still has the old script
                self.write(MAX_SECONDS=172_800)
                self.startup("again")
                self.write()
            elif word in ("1970-01-01", "2038-01-19"):
                program(self.shims / "date", f"#!/bin/sh\necho '{word} 03:14:08'\n")
                os.utime(self.disk / "account", (0, 0))
            elif word in ("offline", "online"):
                self.api.silent = word == "offline"
            else:
                self.here.up(int(word[:-1]))
                assert bool(self.look()) == (word[-1] == "+"), (word, self.log())


@pytest.fixture
def machine(cloud, api):
    here = Machine(cloud(number_of_hosts=1, states=["ACTIVE"]), api)
    yield here
    here.ends()


_HOUR_OFFLINE = " ".join(f"{3600 + 60 * minute}-" for minute in range(1, 61, 12))
LIVES = {
    "nothing begins": "boot 3599- 3600+",
    "nothing begins, and its boots have no end": "boot 590- " * 6 + "boot 3600+",
    "its hours, while it trains": "boot trains 86399- 86400+",
    "it ends": "boot trains 5000- ends 5899- 5900+",
    "it ends after it has saved": "boot trains saves 5000- 9000- ends 9899- 9900+",
    "it ends, and begins again": "boot trains 900- ends 1799- trains 1800- ends 2699- 2700+",
    "a reboot, after which it trains": "boot trains 72000- boot trains 14370- 14400+",
    "a reboot, after which nothing trains": "boot trains 7200- boot 899- 920+",
    "a reboot without metadata": "boot trains 7200- unit 899- 920+",
    "reboots on the way to nothing": "boot 1800- boot 1799- 1810+",
    "reboots in training": "boot trains 40000- boot trains 40000- boot trains 6399- 6400+",
    "more hours, which outlive a reboot": "boot trains more 86400- boot trains 86399- 86400+",
    "more hours, then its end": "boot trains more 90000- ends 90899- 90900+",
    "it is kept": "kept boot trains 9000- ends 9900- boot 900- 77400+",
    "a clock that jumps back": "boot 1970-01-01 3599- 3600+",
    "a clock that jumps ahead": "boot 2038-01-19 3599- 3600+",
    "a clock that jumps in training": "boot trains 2038-01-19 80000- 1970-01-01 86399- 86400+",
    "a clock that jumps at a boot": "boot trains 72000- 1970-01-01 boot trains 14399- 14400+",
    "no network for an hour": f"boot offline {_HOUR_OFFLINE} online 7300+",
    "no network at its end": "boot trains offline 86400- 86500- online 86600+",
    "no network at a boot": "boot trains 5000- offline boot 920- 1000- online 1100+",
}


@pytest.mark.parametrize("life", LIVES)
def test_the_tpu_is_deleted_at_its_limit(machine, life):
    machine.play(LIVES[life])


def test_an_end_limit_of_zero_does_not_end_a_trainer(machine):
    machine.write(END_SECONDS=0)
    machine.play("boot trains 5000- ends 5030+")


def test_requests_and_messages_of_a_deletion(machine, api):
    """The token is not in the list of processes, and a refused deletion is logged."""
    curl = machine.here.directory / "bin/curl"
    asked = machine.here.directory / "curls"
    program(curl, f'#!/bin/bash\necho "$*" >>{asked}\nexec {shutil.which("curl")} "$@"\n')
    machine.play("boot 3600+")
    wait_until(lambda: f"{_TPU}/nodes/pod" in machine.look())
    # Without a queued resource, the node is deleted.
    assert set(machine.look()) == {f"{_TPU}/queuedResources/pod?force=true", f"{_TPU}/nodes/pod"}
    assert "no trainer has started for 60 minutes: deleting this TPU: HTTP 200" in machine.log()
    assert api.tokens == {"Bearer host"}
    said = asked.read_text() + machine.log()
    assert "Bearer" not in said and "=host" not in said
    api.refusal = 403
    wait_until(
        lambda: "HTTP 403: the service account of this TPU may not delete it" in machine.log()
    )


def test_a_lost_account_counts_from_the_boot(machine):
    machine.play("boot trains 72000-")
    for text in ("", "b007-1 $(touch x) 0 0 0\n", "b007-2 a[0] 08 9 1\n", "\0\0", "x" * 99_999):
        machine.here.reset()
        (machine.disk / "account").write_text(text)
        machine.play("boot trains 86340-")
    machine.play("86400+")
    assert not list(machine.here.directory.glob("**/x"))


def test_a_full_disk_does_not_end_the_count(machine):
    machine.play("boot")
    (machine.disk / "account.new").mkdir()  # makes the write fail
    machine.here.up(3600)
    wait_until(machine.deletes)


def test_the_unit_is_valid(machine):
    # The clock is only used in log messages.
    assert not re.search(r"\bdate\b(?! '\+%F %T')", (ROOT / "launch/boot.sh").read_text())
    machine.play("boot")
    unit = machine.here.home() / "units/bert-jax-cap.service"
    check_unit(unit, unit.read_text(), "RestartSec=10")
