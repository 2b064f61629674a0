"""Checks of several processes: all are started, their clocks agree, and their versions are equal.

The processes meet over a plain socket before jax connects them, because jax aborts a process after
its timeout without naming the missing process.
"""

import contextlib
import json
import socket
import time
from collections.abc import Sequence
from typing import Any

from bert_jax.errors import Unreachable, UsageError
from bert_jax.runtime import distributed
from bert_jax.workdir.run_directory import versions
from bert_jax_lab.doctor.finding import Finding, failed, passed, warned

_MEETING_SECONDS, _ANSWER_SECONDS = 120.0, 10.0
# Seconds between clocks. The processes read their clocks some tenths of a second apart. Google
# rejects tokens from clocks that are wrong by minutes.
_SKEW_WARNED, _SKEW_FAILED = 5.0, 60.0
_PRESENT = b"present\n"


def hosts(connection: distributed.Connection) -> tuple[Finding, bool]:
    """All processes meet, with equal clocks and versions; returns True for connected processes."""
    connection = connection.validate()
    found = connection.resolved()
    assert found.coordinator is not None
    roll_call(found, seconds=_MEETING_SECONDS)
    connection.connect(seconds=_MEETING_SECONDS)
    own = json.dumps({"versions": versions(), "time": time.time()})
    answers = distributed.exchange("host", own, seconds=_MEETING_SECONDS)
    return judge([json.loads(answer) for answer in answers], found.coordinator), True


def judge(answers: Sequence[dict[str, Any]], where: str) -> Finding:
    """Returns the finding for the answers of the processes, in the order of their numbers."""
    differing = [
        f"{name} {answer['versions'].get(name)} in process {rank}, {version} in process 0"
        for rank, answer in enumerate(answers)
        for name, version in answers[0]["versions"].items()
        if answer["versions"].get(name) != version
    ]
    if differing:
        return failed("; ".join(differing), "install the same versions on every host")
    skews = [abs(answer["time"] - answers[0]["time"]) for answer in answers]
    worst = max(skews)
    if worst > _SKEW_WARNED:
        off = f"the clock of process {skews.index(worst)} is {worst:.0f} s off process 0's clock"
        remedy = "set the system time from the network (timedatectl set-ntp true)"
        return (failed if worst > _SKEW_FAILED else warned)(off, remedy)
    return passed(f"{len(answers)} processes met at {where}; clocks agree, versions are equal")


def roll_call(connection: distributed.Connection, *, seconds: float) -> None:
    """Returns when all processes have met at the port of process 0.

    Raises Unreachable, with the missing processes, if they do not come in time, and UsageError if
    the port cannot be opened.
    """
    host, _, port = (connection.coordinator or "").rpartition(":")
    ends_at = time.monotonic() + seconds
    if connection.process_id == 0:
        _wait_for_all(int(port), connection.num_processes or 1, ends_at)
        return
    while time.monotonic() < ends_at:
        left = max(ends_at - time.monotonic(), 0.01)
        with (
            contextlib.suppress(OSError),
            socket.create_connection((host, int(port)), timeout=left) as peer,
        ):
            peer.sendall(f"{connection.process_id}\n".encode())
            if peer.recv(len(_PRESENT)) == _PRESENT:
                return
        time.sleep(0.2)
    raise Unreachable(
        f"process 0 does not answer at {host}:{port}: start the same command on every host; a "
        f"firewall between them must let port {port} through, and `coordinator` must name the host "
        "of process 0"
    )


def _wait_for_all(port: int, number: int, ends_at: float) -> None:
    with contextlib.ExitStack() as closing:
        try:
            server = closing.enter_context(socket.create_server(("", port)))
        except OSError as error:
            raise UsageError(
                f"port {port} of process 0 cannot be opened ({error.strerror}): end the process "
                f"that uses it (ss -ltnp 'sport = :{port}' names it), or choose another port in "
                "`coordinator`, or in JAX_COORDINATOR_PORT"
            ) from error
        present: dict[int, socket.socket] = {}
        while len(present) < number - 1 and time.monotonic() < ends_at:
            left = max(ends_at - time.monotonic(), 0.01)
            server.settimeout(left)
            # A port scanner may connect and send nothing.
            with contextlib.suppress(ValueError, OSError):
                peer = closing.enter_context(server.accept()[0])
                peer.settimeout(min(left, _ANSWER_SECONDS))
                present[int(peer.recv(16).decode())] = peer
        if missing := [str(rank) for rank in range(1, number) if rank not in present]:
            raise Unreachable(
                f"process {', '.join(missing)} did not reach port {port} of process 0 in time: "
                "start the same command on every host; a firewall between them must let port "
                f"{port} through"
            )
        for peer in present.values():
            peer.sendall(_PRESENT)
