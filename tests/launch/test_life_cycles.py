"""Whole lives of a TPU on the fake cloud: where each ends, and that a second run does nothing."""

import itertools
import os
import signal
import time

import pytest

from tests.chaos import IS_LONG
from tests.launch.cloud import ROOT

_RUN = ("--config=bert_large_64core", "--corpus=/data/corpus", "--workdir=gs://b/run")
_CAPACITIES = ("on-demand", "spot", "reserved")
_UP = ["scp", "setup", "start"]
_PREEMPTED = ["SUSPENDING", "SUSPENDED"]

# A scenario, the settings, the exit code, and the sequence of what changed something.
_LIVES = {
    "ready": ({}, {}, 0, ["create", *_UP]),
    "waits": (
        {"creations": [["ACCEPTED", "WAITING_FOR_RESOURCES", "WAITING_FOR_RESOURCES",
                        "PROVISIONING", "ACTIVE"]]},
        {}, 0, ["create", *_UP],
    ),
    "fails": (  # and once more, and then it is there
        {"creations": [["PROVISIONING", "FAILED"], ["FAILED"], ["ACTIVE"]]},
        {}, 0, ["create", "delete", "create", "delete", "create", *_UP],
    ),
    "preempted during set-up": (
        {"events": [{"match": "tpu_setup", "states": _PREEMPTED}],
         "creations": [["ACTIVE"], ["ACTIVE"]]},
        {}, 0, ["create", "scp", "setup", "delete", "create", *_UP],
    ),
    "preempted in training": (
        {"trainer": [{"code": 42, "states": _PREEMPTED}, {"code": 0}]},
        {}, 0, ["create", *_UP, "delete", "create", *_UP],
    ),
    "already exists": ({"exists": ["ACTIVE"]}, {}, 0, _UP),
    "gone": (  # deleted by somebody while it trains, host and all
        {"trainer": [{"code": "waits"}, {"code": 0}],
         "events": [{"match": "worker.sh state", "times": [3], "states": ["GONE"]}]},
        {}, 0, ["create", *_UP, "create", *_UP],
    ),
}  # fmt: skip
_FLAGS = {"on-demand": set(), "spot": {"--spot"}, "reserved": {"--reserved"}}


# Every life, and every capacity; each with each in the long form.
_SHORT = [
    *(("ready", capacity) for capacity in _CAPACITIES),
    *(("waits", "reserved"), ("fails", "on-demand"), ("already exists", "reserved")),
    *(("preempted during set-up", "spot"), ("preempted in training", "spot"), ("gone", "spot")),
]


@pytest.mark.parametrize(
    ("life", "capacity"), list(itertools.product(_LIVES, _CAPACITIES)) if IS_LONG else _SHORT
)
def test_a_life_ends_where_it_should(cloud, life, capacity):
    scenario, settings, code, sequence = _LIVES[life]
    # Spot machines of two hosts, the others of one.
    here = cloud(number_of_hosts=2 if capacity == "spot" else 1, **scenario)
    options = (f"--capacity={capacity}", *_RUN)
    done = here.tpu("supervise", *options, **settings)
    assert (done.returncode, here.commands()) == (code, sequence), done.stderr
    created = [c["argv"] for c in here.calls() if "create" in c["argv"]]
    for argv in created:
        assert {"--spot", "--reserved"} & set(argv) == _FLAGS[capacity]
        assert {
            here.options[-1].replace("--", "--accelerator-"),
            "--runtime-version=tpu-ubuntu2204-base",
        } < set(argv)
    # The machine is still there, as it was left, and its hosts have the last run's code.
    assert here.state()["states"] == ["ACTIVE"]
    for number in range(len(here.hosts)):
        assert (here.home(number) / "bert-jax" / "exit").read_text() == "0\n"

    before, state = here.commands(), here.state()
    again = here.tpu("supervise", *options)
    assert again.returncode == 0, again.stderr
    assert "is done" in again.stderr
    assert (here.commands(), here.state()) == (before, state)


@pytest.mark.parametrize("capacity", _CAPACITIES if IS_LONG else ("spot",))
def test_a_capacity_that_never_comes(cloud, capacity):
    """A queue that is given up; a resource that fails each time; a cloud that refuses."""
    options = (f"--capacity={capacity}", *_RUN)
    waits = cloud(creations=[["WAITING_FOR_RESOURCES"]])
    done = waits.tpu("supervise", *options, PROVISION_SECONDS="1")
    assert (done.returncode, waits.commands()) == (21, ["create"]), done.stderr

    fails = cloud(creations=[["PROVISIONING", "FAILED"]])
    done = fails.tpu("supervise", *options, MAX_FAILURES="2")
    assert done.returncode == 20, done.stderr
    assert fails.commands() == ["create", *["delete", "create"] * 2]

    refuses = cloud(create_errors=["PERMISSION_DENIED: no tpu.nodes.create", "never"])
    done = refuses.tpu("supervise", *options)
    assert (done.returncode, refuses.commands()) == (20, ["create"])
    assert "no tpu.nodes.create" in done.stderr


def test_a_zone_without_room_is_asked_again(cloud):
    quota = cloud(number_of_hosts=1, create_errors=["RESOURCE_EXHAUSTED: no capacity in zone"] * 2)
    done = quota.tpu("supervise", *_RUN)
    assert (done.returncode, quota.commands()) == (0, ["create", "create", "create", *_UP])


def test_a_fault_that_the_doctor_finds_ends_the_run(cloud):
    """The host has the code as if it had trained; no restart would meet anything else."""
    here = cloud(number_of_hosts=2, doctor=[4, 0])
    done = here.tpu("supervise", *_RUN)
    assert (done.returncode, here.commands()) == (4, ["create", *_UP]), done.stderr
    assert "the trainer ended with 4: stop" in done.stderr and "not started" in done.stdout
    assert "0" not in here.state()["starts"]
    assert "what the doctor says" in here.tpu("logs", *_RUN).stdout

    ill = cloud(number_of_hosts=2, doctor=[1, 124])
    assert ill.tpu("supervise", *_RUN).returncode == 0


def test_no_mark_and_the_hosts_say_it_is_done(cloud):
    """With a workdir outside a bucket there is no mark: the second run asks the hosts."""
    here = cloud()
    options = ("--config=tiny_docs_cpu", "--corpus=/c", "--workdir=/shared/run")
    assert here.tpu("supervise", *options).returncode == 0
    before = here.commands()
    again = here.tpu("supervise", *options)
    assert again.returncode == 0 and "done already" in again.stderr
    assert here.commands() == before


def test_delete_when_done_and_no_machine_is_made_again(cloud):
    here = cloud()
    done = here.tpu("supervise", *_RUN, "--delete-when-done")
    assert (done.returncode, here.commands()) == (0, ["create", *_UP, "delete"]), done.stderr
    assert here.state()["states"] == []
    assert here.tpu("supervise", *_RUN, "--delete-when-done").returncode == 0
    assert here.commands() == ["create", *_UP, "delete"]


def test_a_machine_that_is_left_of_a_run_that_is_done_is_deleted(cloud):
    """The supervisor ended after it had marked the run, or was not told to delete then."""
    here = cloud()
    assert here.tpu("supervise", *_RUN).returncode == 0
    assert here.state()["states"] == ["ACTIVE"]
    assert here.tpu("supervise", *_RUN, "--delete-when-done").returncode == 0
    assert here.commands() == ["create", *_UP, "delete"]
    assert here.state()["states"] == []


# --- how a trainer ends --------------------------------------------------------------------------


@pytest.mark.parametrize("code", [3, 4])
def test_an_error_that_would_come_again_stops(cloud, code):
    """Also where only one host has it, and its peers were aborted for that."""
    here = cloud(exists=["ACTIVE"], trainer=[{"codes": [134, code]}])
    done = here.tpu("supervise", *_RUN)
    assert (done.returncode, here.commands()) == (code, _UP), done.stderr
    assert "launch/tpu logs" in done.stderr


def test_every_exit_code_has_a_meaning(cloud):
    """The table of docs/launch.md and the one in the code are the same."""
    here = cloud()
    script = f"cd {ROOT}/launch && . lib/supervise.sh && for c in {{0..255}}; do meaning $c; done"
    kinds = here.run("bash", "-c", script).stdout.split()
    found = {kind: [code for code in range(256) if kinds[code] == kind] for kind in set(kinds)}
    crashes = found.pop("crash")
    assert found == {
        "done": [0],
        "stop": [2, 3, 4, 5, 6, 7, 8],
        "preempted": [42],
        "network": [75],
        "restart": [134, 137, 143, 200],
    }
    assert {1, 130, 135, 139} < set(crashes)


def test_what_may_go_away_is_started_again_on_the_same_machine(cloud):
    here = cloud(
        number_of_hosts=1, exists=["ACTIVE"], trainer=[{"code": c} for c in (200, 1, 42, 0)]
    )
    done = here.tpu("supervise", *_RUN)
    assert (done.returncode, here.commands()) == (0, _UP * 4), done.stderr
    assert "ended with 200: restart" in done.stderr


@pytest.mark.parametrize("code", [1, 134])
def test_a_crash_loop_has_an_end(cloud, code):
    here = cloud(number_of_hosts=1, exists=["ACTIVE"], trainer=[{"code": code}])
    done = here.tpu("supervise", *_RUN, MAX_FAILURES="2")
    assert (done.returncode, here.commands()) == (22, _UP * 2), done.stderr
    assert "2 failures in a row" in done.stderr


def test_a_long_run_clears_the_account(cloud):
    """Two crashes, each after what counts as a long time, where two in a row are too many."""
    here = cloud(number_of_hosts=1, exists=["ACTIVE"], trainer=[{"code": 1}] * 2 + [{"code": 0}])
    done = here.tpu("supervise", *_RUN, MAX_FAILURES="2", HEALTHY_SECONDS="0")
    assert (done.returncode, here.commands()) == (0, _UP * 3), done.stderr


def test_a_set_up_that_fails_late_is_counted(cloud):
    """However long it took: what clears the account is a run, not a set-up."""
    here = cloud(number_of_hosts=1, exists=["ACTIVE"], pip_fails=True)
    done = here.tpu("supervise", *_RUN, MAX_FAILURES="2", HEALTHY_SECONDS="0")
    assert done.returncode == 23, done.stderr
    assert "2 failures in a row" in done.stderr


def test_preemptions_are_not_counted(cloud):
    here = cloud(
        number_of_hosts=1, trainer=[{"code": 42, "states": _PREEMPTED}] * 2 + [{"code": 0}]
    )
    done = here.tpu("supervise", *_RUN, MAX_FAILURES="1")
    assert (done.returncode, here.state()["created"]) == (0, 3), done.stderr


def test_a_host_that_does_not_end_with_the_others_is_stopped(cloud):
    here = cloud(exists=["ACTIVE"], trainer=[{"codes": [1, "waits"]}, {"code": 0}])
    done = here.tpu("supervise", *_RUN, ENDING_POLLS="2")
    assert (done.returncode, here.commands()) == (0, [*_UP, "stop", *_UP]), done.stderr
    assert "ended with 1: crash" in done.stderr


# --- a cloud that misbehaves ---------------------------------------------------------------------


def test_a_state_nobody_knows_is_dead_after_a_while(cloud):
    here = cloud(creations=[["HIBERNATING"], ["ACTIVE"]])
    done = here.tpu("supervise", *_RUN, UNKNOWN_POLLS="4")
    assert (done.returncode, here.commands()) == (0, ["create", "delete", "create", *_UP])
    looks = [c for c in here.calls() if "queued-resources" in c["argv"] and "describe" in c["argv"]]
    assert len(looks) >= 6 and "unknown:HIBERNATING" in done.stderr


def test_a_preempted_node_in_a_resource_that_calls_itself_active(cloud):
    here = cloud(creations=[["ACTIVE/PREEMPTED"], ["ACTIVE"]])
    done = here.tpu("supervise", *_RUN)
    assert (done.returncode, here.commands()) == (0, ["create", "delete", "create", *_UP])


def test_a_cloud_that_does_not_answer(cloud):
    """For a while: patience. For good: an end, and nothing is deleted for it."""
    here = cloud(exists=["ACTIVE"], describe_errors=3)
    assert here.tpu("supervise", *_RUN).returncode == 0
    here = cloud(exists=["ACTIVE"], describe_errors=99)
    done = here.tpu("supervise", *_RUN)
    assert (done.returncode, here.commands()) == (20, [])
    assert "UNAVAILABLE" in done.stderr


def test_a_host_that_never_answers_cannot_be_set_up(cloud):
    here = cloud(events=[{"match": "tpu_setup", "times": list(range(99)), "deaf": [1]}])
    done = here.tpu("supervise", *_RUN, MAX_FAILURES="2")
    assert (done.returncode, here.commands()) == (23, ["create", *["scp", "setup"] * 2])
    assert "pod-w-0 0" in done.stderr and "pod-w-1" not in done.stderr


def test_silence_is_counted_however_long_it_took(cloud):
    """A machine that falls silent again and again is not asked for again without end."""
    silent = {"match": "worker.sh state", "times": [2, 3, 4, 6, 7, 8], "silent": True}
    here = cloud(number_of_hosts=1, trainer=[{"code": "waits"}] * 3, events=[silent])
    settings = {"MAX_FAILURES": "2", "UNKNOWN_POLLS": "2", "HEALTHY_SECONDS": "0"}
    done = here.tpu("supervise", *_RUN, **settings)
    assert done.returncode == 24, done.stderr
    assert "2 failures in a row" in done.stderr


def test_a_host_whose_set_up_fails_is_named(cloud):
    here = cloud(pip_fails=True)
    done = here.tpu("supervise", *_RUN, MAX_FAILURES="2")
    assert (done.returncode, here.commands()) == (23, ["create", *["scp", "setup"] * 2])
    assert "pod-w-0 31;pod-w-1 31" in done.stderr
    assert "pip cannot install uv" in done.stdout


def test_a_supervisor_that_is_ended_finds_its_run_again(cloud):
    here = cloud(trainer=[{"code": "waits"}])
    command = [ROOT / "launch" / "tpu", "supervise", *here.options]
    first = here.start(*command, *_RUN)
    read_until(first, "pod: ready")
    while "start" not in here.commands():
        assert first.poll() is None
        time.sleep(0.01)
    wait_until_trainers_run(here)
    end(first)
    started = here.commands()
    second = here.start(*command, *_RUN)
    read_until(second, "watching it")
    assert here.commands() == started
    # Another run on the same machine is refused.
    other = here.run(*command, "--config=bert_base", *_RUN[1:])
    assert other.returncode == 2 and "another run" in other.stderr
    end(second)
    stopped = here.tpu("stop")
    assert stopped.returncode == 0 and "exit code 42" in stopped.stdout
    assert here.commands() == [*started, "stop"]


def wait_until_trainers_run(here) -> None:
    deadline = time.monotonic() + 30
    while len(here.state()["starts"]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def end(process) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def read_until(process, text: str) -> None:
    for line in process.stderr:
        if text in line:
            return
    raise AssertionError(f"it ended without saying {text!r}")
