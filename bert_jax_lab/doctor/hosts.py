"""Checks between hosts: that they meet, that their clocks agree and their versions are equal.

They meet over a plain socket first: jax ends a process that waits for its peers in vain, and says
neither for whom nor why. After that it connects them as a run does.
"""

import contextlib
import json
import socket
import time
from typing import Any

from bert_jax.errors import Unreachable, UsageError
from bert_jax.runtime import distributed
from bert_jax.workdir.run_directory import versions
from bert_jax_lab.doctor.checked_run import Case
from bert_jax_lab.doctor.finding import Finding, failed, passed, warned

_MEETING_SECONDS, _ANSWER_SECONDS = 120.0, 10.0
# One second of skew is tolerable in logs; Google refuses tokens of clocks that are minutes off.
_SKEW_WARNED, _SKEW_FAILED = 1.0, 60.0


def hosts(case: Case) -> Finding:
    """All processes come to process 0's port, with equal clocks and versions."""
    assert case.connection is not None
    connection = case.connection.validate().resolved()
    met = meet(connection, {"versions": versions(), "token": case.token})
    case.connection.connect(seconds=_MEETING_SECONDS)
    case.token, case.met = met[0]["token"], True
    return judge(met, connection.coordinator or "")


def judge(met: list[dict[str, Any]], where: str) -> Finding:
    """Returns the finding for the answers of the processes, in the order of their numbers."""
    differing = [
        f"{name} {answer['versions'].get(name)} in process {rank}, {version} in process 0"
        for rank, answer in enumerate(met)
        for name, version in met[0]["versions"].items()
        if answer["versions"].get(name) != version
    ]
    if differing:
        return failed(
            "; ".join(differing), "install the same versions on every host (tpu_setup.sh does)"
        )
    skews = [abs(answer["skew"]) for answer in met]
    worst = max(skews)
    text = f"{len(met)} processes met at {where}; clocks within {worst:.2f} s, equal versions"
    if worst > _SKEW_WARNED:
        off = f"the clock of process {skews.index(worst)} is {worst:.0f} s off that of process 0"
        remedy = "let its system time be set by the network (timedatectl set-ntp true)"
        return (failed if worst > _SKEW_FAILED else warned)(off, remedy)
    return passed(text)


def meet(
    connection: distributed.Connection, words: dict[str, Any], *, seconds: float = _MEETING_SECONDS
) -> list[dict[str, Any]]:
    """Returns what every process says, with its `skew`: seconds that its clock is ahead of that of
    process 0.

    Raises Unreachable, with the port or the missing processes, where they do not meet in time, and
    UsageError where the port cannot be opened.
    """
    assert connection.coordinator is not None
    host, _, port = connection.coordinator.rpartition(":")
    ends_at = time.monotonic() + seconds
    if connection.process_id == 0:
        return _receive(int(port), words, connection.num_processes or 1, ends_at)
    return _go(host, int(port), words, connection.process_id or 0, ends_at)


def _receive(port: int, words: dict, number: int, ends_at: float) -> list[dict[str, Any]]:
    """Process 0: hears all, looks at their clocks, and tells all what it heard."""
    answers = {0: words | {"skew": 0.0}}
    with contextlib.ExitStack() as closing:
        try:
            server = closing.enter_context(socket.create_server(("", port)))
        except OSError as error:
            raise UsageError(
                f"port {port} of process 0 cannot be opened ({error.strerror}): end what holds it "
                f"(ss -ltnp 'sport = :{port}' names it), or choose another port in `coordinator`, "
                "or in JAX_COORDINATOR_PORT"
            ) from error
        streams: dict[int, Any] = {}
        while len(answers) < number:
            server.settimeout(max(ends_at - time.monotonic(), 0.01))
            try:
                peer = closing.enter_context(server.accept()[0])
                # Who comes answers at once; something that looks at ports may say nothing.
                peer.settimeout(min(max(ends_at - time.monotonic(), 0.01), _ANSWER_SECONDS))
                stream = closing.enter_context(peer.makefile("rw", encoding="utf-8"))
                heard = json.loads(stream.readline(2**16))
                before = time.time()
                _tell(stream, "what time is it?")
                theirs = json.loads(stream.readline(2**16))
                rank, skew = int(heard.pop("rank")), theirs - (before + time.time()) / 2
            except TimeoutError:
                if time.monotonic() < ends_at:
                    continue
                missing = [str(rank) for rank in range(number) if rank not in answers]
                raise Unreachable(
                    f"process {', '.join(missing)} did not come to port {port} of process 0 in "
                    "time: start the same command on every host; a firewall between them must let "
                    f"port {port} through"
                ) from None
            except (AttributeError, KeyError, TypeError, ValueError, OSError):
                continue  # something that looks at ports
            if rank in range(1, number):
                answers[rank] = heard | {"skew": skew}
                streams[rank] = stream  # of one that came again, the last
        met = [answers[rank] for rank in sorted(answers)]
        for stream in streams.values():
            _tell(stream, met)
    return met


def _go(host: str, port: int, words: dict, rank: int, ends_at: float) -> list[dict[str, Any]]:
    """Any other process: says who it is, what time it is, and hears of all."""
    while True:
        with contextlib.suppress(OSError, ValueError):
            left = max(ends_at - time.monotonic(), 0.01)
            with (
                socket.create_connection((host, port), timeout=left) as peer,
                peer.makefile("rw", encoding="utf-8") as stream,
            ):
                _tell(stream, words | {"rank": rank})
                stream.readline(2**16)
                _tell(stream, time.time())
                return json.loads(stream.readline())
        if time.monotonic() > ends_at:
            raise Unreachable(
                f"process 0 does not answer at {host}:{port}: start the same command on every "
                f"host; a firewall between them must let port {port} through, and `coordinator` "
                "must name the host of process 0"
            )
        time.sleep(0.2)


def _tell(stream: Any, value: Any) -> None:
    stream.write(json.dumps(value) + "\n")
    stream.flush()
