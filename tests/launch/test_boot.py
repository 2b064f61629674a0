"""The machine ends its own costs: launch/boot.sh, by hand, where each host would run it.

Time is a file with the uptime, so that an hour takes no time; the metadata server and the TPU API
are a server on loopback, asked by the real curl.
"""

import contextlib
import http.server
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.cloud import ROOT

_HOUR, _MAX, _START, _END = 3600, 24 * 3600, 3600, 900
_TPU = "projects/p/locations/z"


class Google(http.server.ThreadingHTTPServer):
    """The metadata server and the TPU API, which keeps what it was asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.code, self.reachable = 200, True
        self.missing: set[str] = set()
        self.asked: list[tuple[str, str]] = []
        self.tokens = 0


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Google

    def answer(self) -> None:
        google, code, text = self.server, 200, b"{}"
        if not google.reachable:
            self.close_connection = True  # and not a word
            return
        if self.path.startswith("/computeMetadata/v1/instance/service-accounts/default/token"):
            assert self.headers["Metadata-Flavor"] == "Google"
            google.tokens += 1
            text = b'{"access_token":"ya29.t-1_x","expires_in":3000,"token_type":"Bearer"}'
        elif self.headers["Authorization"] != "Bearer ya29.t-1_x":
            code = 401
        else:
            google.asked.append((self.command, self.path))
            gone = self.path.partition("?")[0].removeprefix("/v2/") in google.missing
            code = 404 if gone else google.code
        self.send_response(code)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_DELETE = answer

    def log_message(self, format: str, *arguments: object) -> None:
        pass


# A systemd of one service: what is enabled is started at a boot; the trainer is active as long as
# its file is there.
_SYSTEMCTL = """#!/bin/bash
cd "$HOST" && echo "$*" >>systemctl.log
words=(); for word in "$@"; do [[ $word == --* ]] || words+=("$word"); done
unit=${words[1]}
case ${words[0]} in
    is-active) [[ -e trainer ]] && echo "$(<trainer)" || { echo inactive; exit 3; } ;;
    stop) rm -f "trainer" ;;
    enable) cp "units/$unit.service" enabled ;;
    start | restart)
        if [[ -e pid ]] && kill -0 "$(<pid)" 2>/dev/null; then
            [[ ${words[0]} == restart ]] || exit 0
            kill -KILL "$(<pid)"
        fi
        read -ra command < <(sed -n 's/^ExecStart=//p' "units/$unit.service")
        setsid "${command[@]}" >/dev/null 2>&1 </dev/null 3>&- & echo $! >pid ;;
esac
"""


class Host:
    """A machine whose request has this startup script; its disk outlives its boots."""

    def __init__(self, place: Path, google: Google, **values: object) -> None:
        self.place, self.google = place, google
        (place / "bin").mkdir(parents=True)
        (place / "bin/systemctl").write_text(_SYSTEMCTL)
        (place / "bin/systemctl").chmod(0o755)
        for name in ("bash", "cat", "mv", "sed", "date", "tee", "mkdir", "timeout", "sleep", "cp",
                     "curl", "setsid", "rm"):  # fmt: skip
            (place / "bin" / name).symlink_to(str(shutil.which(name)))
        self.write(**values)
        self.boots = 0

    def write(self, **values: object) -> None:
        settings = {"TPU": f"{_TPU}/pod", "MAX_SECONDS": _MAX, "START_SECONDS": _START,
                    "END_SECONDS": _END, "KEEP": 0} | values  # fmt: skip
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        script = (ROOT / "launch/boot.sh").read_text()
        (self.place / "startup").write_text(f"#!/usr/bin/env bash\n{text}{script}")

    @property
    def environment(self) -> dict[str, str]:
        server = f"127.0.0.1:{self.google.server_port}"
        return {
            "PATH": str(self.place / "bin"),  # no gcloud: its snap is mounted some time after
            "HOST": str(self.place), "CAP_AT": str(self.place / "disk"),
            "CAP_UNITS": str(self.place / "units"), "GCE_METADATA_HOST": server,
            "TPU_API": f"http://{server}/v2", "UPTIME_FILE": str(self.place / "uptime"),
            "BOOT_ID_FILE": str(self.place / "boot_id"), "TICK_SECONDS": "0.01",
            "AGAIN_SECONDS": "0.01", "LAST_SECONDS": "0",
        }  # fmt: skip

    def boot(self, *, uptime: int = 10, with_metadata: bool = True) -> None:
        """Power off as a reset does it, then systemd's enabled units, then Google's agent."""
        self.end()
        (self.place / "trainer").unlink(missing_ok=True)
        self.boots += 1
        (self.place / "boot_id").write_text(f"b007-{self.boots}\n")
        self.up(uptime)
        if (self.place / "enabled").exists():
            self.run("systemctl", "start", "bert-jax-cap")
        if with_metadata:
            self.run("bash", str(self.place / "startup"))
        self.look()

    def run(self, *words: str) -> str:
        done = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=20
        )
        assert done.returncode == 0, done
        return done.stdout

    def up(self, seconds: float) -> None:
        (self.place / "uptime.new").write_text(f"{seconds:.2f} 1.0\n")
        (self.place / "uptime.new").replace(self.place / "uptime")

    def at(self, uptime: int) -> int:
        """The requests to delete after the unit has seen this uptime."""
        self.up(uptime)
        return self.look()

    def look(self, times: int = 3) -> int:
        account, before = self.place / "disk/account", set()
        deadline = time.monotonic() + 20
        while len(before) <= times:
            assert time.monotonic() < deadline, self.log()
            if account.exists():
                before.add(account.stat().st_mtime_ns)
            time.sleep(0.003)
        return len(self.deletes())

    def deletes(self) -> list[str]:
        return [path for method, path in self.google.asked if method == "DELETE"]

    def log(self) -> str:
        log = self.place / "disk/log"
        return log.read_text() if log.exists() else ""

    def trains(self, state: str | None = "active") -> None:
        if state:
            (self.place / "trainer").write_text(state)
        else:
            (self.place / "trainer").unlink()
        self.look()

    def end(self) -> None:
        pid = self.place / "pid"
        if pid.exists():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(pid.read_text()), signal.SIGKILL)
            pid.unlink()


@pytest.fixture
def google() -> Iterator[Google]:
    with Google() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def host(tmp_path, google):
    made: list[Host] = []

    def make(**values) -> Host:
        made.append(Host(tmp_path / f"host{len(made)}", google, **values))
        return made[-1]

    yield make
    for one in made:
        one.end()


def test_a_machine_on_which_nothing_begins_goes_after_an_hour(host):
    """Set-up failed, ssh never got in, the laptop was shut while the request was granted."""
    here = host()
    here.boot()
    assert here.at(_START - 1) == 0
    assert here.at(_START) > 0
    assert set(here.deletes()) == {f"/v2/{_TPU}/queuedResources/pod?force=true"}
    assert "no trainer has begun for 60 minutes: deleting this TPU: HTTP 200" in here.log()


def test_its_hours_end_it_and_the_trainer_saves_first(host):
    here = host()
    here.boot()
    here.trains()
    assert here.at(_MAX - 1) == 0 and (here.place / "trainer").exists()
    assert here.at(_MAX) > 0 and not (here.place / "trainer").exists()
    assert "1440 of 1440 minutes are spent: stopping the trainer" in here.log()


@pytest.mark.parametrize("keep", [0, 1])
def test_a_run_that_has_ended_goes_after_a_quarter_of_an_hour(host, keep):
    here = host(KEEP=keep)
    here.boot()
    for state in ("active", "deactivating"):  # in the last it may be saving
        here.trains(state)
        assert here.at(5000) == 0
    here.at(9000)
    here.trains(None)
    assert here.at(9000 + _END - 1) == 0
    # Started again in time, it has all of its time again.
    here.trains()
    here.at(12_000)
    here.trains(None)
    assert here.at(12_000 + _END - 1) == 0
    assert (here.at(12_000 + _END) > 0) == (not keep)
    assert here.at(_MAX) > 0


def test_hours_go_on_over_reboots(host):
    """Host maintenance, with the laptop asleep: the trainer is gone, the account is not."""
    here = host()
    here.boot()
    here.trains()
    assert here.at(20 * _HOUR) == 0
    here.boot()
    here.trains()
    assert here.at(4 * _HOUR - 30) == 0
    assert here.at(4 * _HOUR) > 0
    assert "deleting" in here.log()


def test_a_reboot_starts_no_trainer_and_that_is_its_end(host):
    here = host()
    here.boot()
    here.trains()
    here.at(2 * _HOUR)
    here.boot(with_metadata=False)  # the enabled unit alone, with no startup script this time
    assert here.at(_END - 1) == 0
    assert here.at(_END + 1) > 0


def test_reboots_without_end_do_not_lengthen_it(host):
    here = host()
    for _ in range(6):
        here.boot()
        here.at(_START // 6 - 1)
        assert here.deletes() == []
    here.boot()
    assert here.look() > 0 or here.at(60) > 0


def test_an_account_that_is_lost_counts_from_boot(host):
    here = host()
    here.boot()
    here.trains()
    here.at(20 * _HOUR)
    for text in ("", "b007-1 $(touch x) 0 0 0\n", "b007-2 a[0] 08 9 1\n", "\0\0", "x" * 99_999):
        here.end()
        (here.place / "disk/account").write_text(text)
        here.boot()
        here.trains()
        assert here.at(_MAX - 60) == 0, text
    assert here.at(_MAX) > 0 and not list(here.place.glob("**/x"))


def test_what_was_said_since_outlives_a_reboot(host):
    """More hours for a machine that trains; the request's own text comes again at each boot."""
    here = host()
    here.boot()
    here.trains()
    first = (here.place / "startup").read_text()
    here.write(MAX_SECONDS=2 * _MAX)
    here.run("bash", str(here.place / "startup"), "again")
    (here.place / "startup").write_text(first)
    assert here.at(_MAX) == 0
    here.boot()
    here.trains()
    assert here.at(_MAX - 60) == 0 and here.at(_MAX) > 0


def test_no_clock_is_asked(host, tmp_path):
    """A clock that jumps, forward or back, by an hour or to 1970, neither ends nor saves it."""
    here = host()
    here.boot()
    date = here.place / "bin/date"
    for jump in ("1970-01-01 00:00:00", "2038-01-19 03:14:08"):
        date.unlink(missing_ok=True)
        date.write_text(f"#!/bin/sh\necho '{jump}'\n")
        date.chmod(0o755)
        os.utime(here.place / "disk/account", (0, 0))
        assert here.at(_START - 1) == 0
    assert here.at(_START) > 0
    assert not re.search(r"\bdate\b(?! '\+%F %T')", (ROOT / "launch/boot.sh").read_text())


def test_without_a_network_it_goes_on_asking(host, google):
    here = host()
    here.boot()
    google.reachable = False
    here.at(_START)
    for minute in range(1, 61, 10):
        assert here.at(_START + 60 * minute) == 0
    assert "deleting this TPU: HTTP 000" in here.log()
    google.reachable = True
    assert here.at(2 * _START + 60) > 0


def test_a_cloud_that_refuses_is_asked_again_and_named(host, google):
    here = host()
    google.code = 403
    here.boot()
    assert here.run("bash", str(here.place / "startup"), "may") == "403"
    here.at(_START)
    assert "HTTP 403: its service account needs the role of docs/launch.md" in here.log()
    google.code, before = 200, len(here.deletes())
    assert here.at(_START + 60) > before


def test_a_node_that_no_queued_resource_has_made(host, google):
    google.missing.add(f"{_TPU}/queuedResources/pod")
    here = host()
    here.boot()
    assert here.at(_START) > 0
    assert f"/v2/{_TPU}/nodes/pod" in here.deletes()


def test_a_disk_that_is_full_does_not_end_the_count(host):
    here = host()
    here.boot()
    account = here.place / "disk/account.new"
    account.mkdir()  # nothing can be written there
    here.up(_START)
    deadline = time.monotonic() + 20
    while not here.deletes():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_token_is_in_no_list_of_processes(host, google):
    here = host()
    curl = here.place / "bin/curl"
    curl.unlink()
    real = shutil.which("curl")
    curl.write_text(f'#!/bin/bash\necho "$*" >>{here.place}/curls\nexec {real} "$@"\n')
    curl.chmod(0o755)
    here.boot()
    assert here.at(_START) > 0
    assert "ya29" not in (here.place / "curls").read_text() + here.log()


def test_systemd_finds_no_fault_in_the_unit(host):
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    here = host()
    here.boot()
    unit = here.place / "units/bert-jax-cap.service"
    assert "enable bert-jax-cap" in (here.place / "systemctl.log").read_text()

    def faults() -> list[str]:
        done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True)
        # Faults of the machine's own units are not ours.
        return [s for s in (done.stdout + done.stderr).splitlines() if unit.name in s]

    assert faults() == []
    unit.write_text(unit.read_text().replace("RestartSec=10", "RestartSec=soon"))
    assert faults()
