"""The supervisor and what it cannot see: no healthy TPU is deleted, and one that is lost is."""

import time

import pytest

from tests.chaos import IS_LONG
from tests.launch.cloud import ROOT
from tests.launch.test_life_cycles import end, read_until

# Polls of an outage; of a repair. Ten polls of silence would cost a machine.
_HOSTS, _OUTAGES, _REPAIR = (8, (3, 12, 60), 30) if IS_LONG else (2, (12,), 12)
_RUN = ("--config=tiny_docs_cpu", "--corpus=/data/corpus", "--workdir=gs://b/run")
_UP = ["scp", "setup", "start"]
_NETWORK = "Failed to establish a new connection: [Errno 101] Network is unreachable"
_LOGIN = "There was a problem refreshing your current auth tokens: Reauthentication failed."


def wait_until(condition, process) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()  # or nobody would ever read the end of what it says
            pytest.fail(f"it never came to pass: {process.communicate()}")
        time.sleep(0.01)


def started(here, **settings):
    """A supervisor of hosts that train."""
    command = [ROOT / "launch" / "tpu", "supervise", *here.options, *_RUN]
    supervisor = here.start(*command, settings=settings)
    wait_until(lambda: len(here.state()["starts"]) == len(here.hosts), supervisor)
    return supervisor


def test_no_outage_is_a_reason_to_delete(cloud):
    """They train on. Every second call is a look at the hosts, the other at the cloud."""
    alive = {"GUARD_SECONDS": "0.05", "ALIVE_SECONDS": "0"}
    here = cloud(number_of_hosts=_HOSTS, trainer=[{"code": "waits"}], environment=alive)
    supervisor = started(here)
    for polls, words in (*((polls, _NETWORK) for polls in _OUTAGES), (12, _LOGIN)):
        here.cut(2 * polls, words)
        wait_until(lambda: here.cut_calls_left() == 0, supervisor)
    here.set_states(*["ACTIVE/REPAIRING"] * 2 * _REPAIR, "ACTIVE")  # two calls a poll
    wait_until(lambda: here.state()["current"] == "ACTIVE", supervisor)
    # The cloud is well and calls it ready, and only ssh does not get through.
    here.scenario["events"] = [
        {"match": "worker.sh state", "times": list(range(999)), "silent": True}
    ]
    here.write_scenario()
    read_until(supervisor, "left a sign of life")
    read_until(supervisor, "one more look")
    here.scenario["events"] = []
    here.write_scenario()
    (here.directory / "done").touch()
    _, err = supervisor.communicate(timeout=60)
    assert supervisor.returncode == 0, err
    assert here.commands() == ["create", *_UP]


def test_silence_for_certain_costs_the_machine(cloud):
    """Ready, but no host answers, and no sign of life comes: the run goes on on another."""
    here = cloud(
        trainer=[{"code": "waits"}, {"code": 0}],
        events=[{"match": "worker.sh state", "times": [3, 4, 5, 6, 7], "silent": True}],
    )
    done = here.tpu("supervise", *_RUN, UNKNOWN_POLLS="4")
    assert (done.returncode, here.commands()) == (0, ["create", *_UP, "delete", "create", *_UP])
    assert "one more look" in done.stderr and "the machine is lost" in done.stderr


def test_hosts_that_train_speak_for_one_that_is_silent(cloud):
    """Its sshd may be gone; if its trainer were, those of the others would end."""
    deaf = {"match": "worker.sh state", "times": list(range(3, 20)), "deaf": [1]}
    here = cloud(trainer=[{"code": "waits"}], events=[deaf])
    supervisor = started(here, UNKNOWN_POLLS="2")
    wait_until(lambda: here.state()["events"].get("0", 0) > 20, supervisor)
    (here.directory / "done").touch()
    assert supervisor.wait(timeout=60) == 0, supervisor.communicate()
    supervisor.communicate()
    assert here.commands() == ["create", *_UP]


def test_what_the_others_ended_with_counts_where_one_host_is_gone(cloud):
    deaf = {"match": "worker.sh state", "times": list(range(2, 99)), "deaf": [1]}
    here = cloud(exists=["ACTIVE"], trainer=[{"codes": [4, 134]}], events=[deaf])
    done = here.tpu("supervise", *_RUN, UNKNOWN_POLLS="2")
    assert (done.returncode, here.commands()) == (4, _UP), done.stderr


def test_without_a_bucket_nobody_can_tell(cloud):
    """No sign of life could come: it ends, and deletes nothing."""
    silent = {"match": "worker.sh state", "times": list(range(3, 99)), "silent": True}
    here = cloud(trainer=[{"code": "waits"}], events=[silent])
    done = here.tpu("supervise", *_RUN[:2], "--workdir=/shared/run", UNKNOWN_POLLS="2")
    assert (done.returncode, here.commands()) == (24, ["create", *_UP]), done.stderr
    assert "nothing is deleted" in done.stderr


def test_a_supervisor_that_begins_in_an_outage_says_so(cloud):
    """Nothing has ever answered: probably a setting, and worth an end. The login is named."""
    here = cloud(exists=["ACTIVE"])
    here.cut(99, _LOGIN)
    done = here.tpu("supervise", *_RUN)
    assert (done.returncode, here.commands()) == (20, [])
    assert "gcloud auth login" in done.stderr


def test_an_outage_while_a_machine_is_awaited(cloud):
    here = cloud(creations=[["WAITING_FOR_RESOURCES"]])
    supervisor = here.start(ROOT / "launch" / "tpu", "supervise", *here.options, *_RUN)
    read_until(supervisor, "pod: queued")
    here.cut(30, _NETWORK)
    wait_until(lambda: here.cut_calls_left() == 0, supervisor)
    read_until(supervisor, "pod: queued")
    end(supervisor)
    assert here.commands() == ["create"]
