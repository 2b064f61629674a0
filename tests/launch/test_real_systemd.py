"""The machine limits its own cost: launch/boot.sh under a real systemd, which is booted and reset.

The lives of test_boot.py are repeated with real units: the unit of boot.sh and the unit of the
trainer. Time is a file, and the cloud is a server on loopback.
"""

from pathlib import Path

import pytest

from tests.launch.cloud import ROOT, wait_until
from tests.launch.fake_programs import program
from tests.launch.real_systemd import Systemd
from tests.launch.test_boot import LIVES, Machine

pytestmark = pytest.mark.chaos

# Replaces Python. After SIGTERM it "saves" until a file is removed.
_TRAINER = """#!/bin/bash
[[ $3 == doctor ]] && exit 0
trap 'while [ -e {saving} ]; do sleep 0.05; done; exit 42' TERM
while :; do sleep 0.05; done
"""


class RealMachine(Machine):
    """A host with a real systemd.

    In the lives of test_boot.py a boot does not start the trainer, so its unit is disabled first.
    """

    resumes = False

    def __init__(self, here, api) -> None:
        super().__init__(here, api)
        folder = here.directory
        self.saving, self.shims, self.place = folder / "saving", folder / "shims", folder / "place"
        self.exit = self.place / "last"  # the exit code that worker.sh writes
        program(self.place / "venv/bin/python", _TRAINER.format(saving=self.saving))
        (self.place / "src").symlink_to(ROOT)
        files = {"UPTIME_FILE": str(folder / "uptime"), "BOOT_ID_FILE": str(folder / "boot_id")}
        self.settings |= files | {"BERT_JAX_HOME": str(self.place)}
        # `shims` has the `date` of a clock that jumps.
        path = f"{self.shims}:/usr/sbin:/usr/bin:/sbin:/bin"
        self.settings |= {"PATH": path, "TICK_SECONDS": "0.05"}
        self.host = Systemd(folder.parent / "machine", folder, self.settings)
        self.disk = self.host.files / "var/lib/bert-jax"

    def run(self, *words: str | Path) -> None:
        found = self.host.run(*words, **self.settings)
        assert found.returncode == 0, found.stderr

    def off(self) -> None:
        if not self.resumes:
            self.host.run("systemctl", "disable", "bert-jax")
        self.host.reset()
        self.saving.unlink(missing_ok=True)

    def on(self) -> None:
        self.host.boot()

    def trains(self) -> None:
        self.run("bash", ROOT / "launch/worker.sh", "start", "run")
        self.look()

    def saves(self) -> None:
        self.saving.touch()
        self.run("systemctl", "--no-block", "stop", "bert-jax")

    def ends(self) -> None:
        self.saving.unlink(missing_ok=True)
        self.host.run("systemctl", "disable", "bert-jax")  # or systemd restarts it
        self.host.run("systemctl", "stop", "bert-jax")
        wait_until(lambda: self.state() not in ("active", "deactivating"))

    def state(self) -> str:
        return self.host.run("systemctl", "is-active", "bert-jax").stdout.strip()


@pytest.fixture(scope="session")
def is_bootable(tmp_path_factory):
    """Skips if no systemd can be booted here, as in most containers."""
    folder = tmp_path_factory.mktemp("bootable")
    host = Systemd(folder / "machine", folder, {})
    try:
        host.boot()
    except OSError as error:
        pytest.skip(f"no systemd can be booted here: {error}")
    finally:
        host.remove()


@pytest.fixture
def machine(is_bootable, cloud, api):
    here = RealMachine(cloud(number_of_hosts=1, states=["ACTIVE"]), api)
    yield here
    here.host.remove()


@pytest.mark.parametrize("life", LIVES)
def test_the_tpu_is_deleted_at_its_limit(machine, life):
    machine.play(LIVES[life])


def test_the_trainer_saves_before_the_deletion(machine):
    machine.play("boot trains")
    machine.saving.touch()
    machine.here.up(86_400)
    wait_until(lambda: "stopping the trainer, which saves" in machine.log())
    wait_until(lambda: machine.state() == "deactivating")
    assert not machine.deletes() and not machine.exit.exists()
    machine.saving.unlink()
    wait_until(machine.deletes)
    assert machine.exit.read_text() == "42\n"


def test_a_killed_unit_is_restarted(machine):
    machine.play("boot trains 5000-")
    machine.run("systemctl", "kill", "--signal=KILL", "--kill-who=all", "bert-jax-cap")
    machine.play("ends 5899- 5900+")  # after RestartSec


def test_a_shutdown_waits_until_the_trainer_has_saved(machine):
    """A preemption begins with a shutdown."""
    machine.play("boot trains")
    machine.saving.touch()
    machine.host.run("systemctl", "--no-block", "poweroff")
    wait_until(lambda: machine.state() == "deactivating")
    machine.saving.unlink()
    wait_until(lambda: machine.host.init() is None)
    assert machine.exit.read_text() == "42\n" and not machine.deletes()


def test_a_boot_after_a_reset_resumes_the_run(machine):
    machine.play("boot trains")
    machine.resumes = True
    machine.boot()
    wait_until(lambda: machine.state() == "active")
    # A killed trainer is restarted; a finished trainer is not started at a boot.
    log = machine.place / "log/train.log"
    machine.run("systemctl", "kill", "--signal=KILL", "--kill-who=main", "bert-jax")
    wait_until(lambda: "exit code 137" in log.read_text())
    wait_until(lambda: log.read_text().count(": pretrain run") == 3)
    (machine.place / "exit").write_text("3\n")
    machine.boot()
    assert machine.state() == "inactive"
