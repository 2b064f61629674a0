"""`launch/tpu run` on the fake cloud: one machine, its trainer's code, the same command again."""

import itertools
import random
import shlex
import shutil
import signal
import time

import pytest

from tests.chaos import IS_LONG
from tests.launch.cloud import WHAT, end, failing, in_shell, read_until, wait_until
from tests.launch.fake_programs import program
from tests.limits import HUNG

_UP = ["scp", "setup", "start"]
_PREEMPTED = ["SUSPENDING", "SUSPENDED"]
_NETWORK = "Failed to establish a new connection: [Errno 101] Network is unreachable"
_LOGIN = "There was a problem refreshing your current auth tokens: Reauthentication failed."


# A scenario, the exit code, and what changed something, if it is not what changes with that code.
_ALL = ["create", *_UP, "delete"]
_CHANGES = {0: _ALL, 20: ["create"], 21: ["create", "delete"], 42: _ALL}
_LIVES = {
    "ready": ({}, 0),
    "waits": ({"creations": [["ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]]}, 0),
    "no capacity": ({"creations": [["PROVISIONING", "FAILED"], ["ACTIVE"]]}, 21),
    "preempted before it was ready": ({"creations": [_PREEMPTED, ["ACTIVE"]]}, 21),
    "its node is preempted": ({"creations": [["ACTIVE/PREEMPTED"], ["ACTIVE"]]}, 21),
    "preempted during set-up": (failing("tpu_setup", 1, states=_PREEMPTED), 42,
                                ["create", "scp", "setup", "delete"]),
    "preempted in training": (
        {"trainer": [42, 0]} | failing("worker.sh state", 2, states=_PREEMPTED), 42),
    "deleted by somebody": (
        {"trainer": ["waits", 0]} | failing("worker.sh state", 3, states=["GONE"]), 42,
        ["create", *_UP]),
    "a state nobody knows": ({"creations": [["HIBERNATING"] * 9 + ["ACTIVE"]]}, 0),
    "an answer without a state": ({"creations": [[""] * 9 + ["ACTIVE"]]}, 0),
    "an answer that is lost": (failing(" create ", 1, loses=True), 0),
    "no room twice": (failing(" create ", 1, 2, fails="RESOURCE_EXHAUSTED: no capacity in zone"),
                      0, ["create", "create", *_ALL]),
    "a node has its name": (failing(" create ", *range(1, 6), fails="ALREADY_EXISTS: node pod"), 20,
                            ["create"] * 5),
    "it is refused": (failing(" create ", 1, fails="PERMISSION_DENIED: no tpu.nodes.create"), 20),
    "a cloud that is silent for a while": (
        failing("queued-resources describe", 1, 2, 3, fails="UNAVAILABLE: later"), 0),
    "the first ssh fails": (failing(" scp |tpu_setup", 1, 2, fails="Connection closed"), 0,
                            ["create", *["scp"] * 3, "setup", "start", "delete"]),
}  # fmt: skip


@pytest.mark.parametrize("life", _LIVES)
def test_a_life_ends_where_it_should_and_the_same_command_goes_on(cloud, life):
    scenario, code, *other = _LIVES[life]
    did = other[0] if other else _CHANGES[code]
    here = cloud(number_of_hosts=2 if "preempted" in life else 1, **scenario)
    said = here.tpu("run", *WHAT, "--capacity=spot", code=code).stderr
    assert here.commands() == did, said
    assert (here.bucket / "launched_and_done").exists() == (code == 0)
    # Nothing is left that costs, so nothing is said of it.
    assert "costs" not in said.replace("an hour, 24 hours at most", ""), said
    assert said.count("There is no more capacity") == (life == "no capacity")
    assert ("tpus tpu-vm delete pod" in said) == (life == "a node has its name")
    assert ("the same command asks again" in said) == (code == 21)
    assert ("the machine is gone: the same command goes on" in said) == (code == 42)
    again = here.tpu("run", *WHAT, "--capacity=spot")
    assert here.commands() == did + _ALL * (code != 0), again.stderr
    assert ("is done, says" in again.stderr) == (code == 0)


@pytest.mark.parametrize(
    ("scenario", "code", "said"),
    [
        ({"trainer": [[134, 3]]}, 3, "would meet the same error"),
        ({"trainer": [[200, 137]]}, 200, "the same command goes on"),
        ({"trainer": [[42, 42]]}, 42, "the same command goes on"),
        ({"trainer": [[1, "waits"]]}, 1, "some hosts have ended and others have not"),
        ({"doctor": [4, 0]}, 4, "would meet the same error"),
    ],
)
def test_the_code_that_explains_the_others_comes_back(cloud, scenario, code, said):
    """The machine stays for a while; what it costs and how that ends is the last line."""
    here = cloud(**scenario)
    done = here.tpu("run", *WHAT, code=code, says=said)
    assert here.commands() == ["create", *_UP, *["stop"] * ("waits" in str(scenario))]
    last = done.stderr.splitlines()[-1]
    assert "costs $25.76 an hour" in last and "or one has ended 15 minutes ago" in last
    command = shlex.split(last.partition("To end it now: ")[2])
    here.run(here.launcher.parents[1] / command[0], *command[1:])
    assert here.commands()[-1] == "delete" and here.state()["states"] == []


def test_of_two_codes_the_one_that_says_why_is_taken():
    """By the kinds of docs/launch.md: what would come again, the network, a crash, preempted, what
    has lost a peer, and done."""
    kinds = [range(2, 9), [75], [1, 9, 41, 43, 130, 135, 139, 255], [42], [134, 137, 143, 200], [0]]
    pairs = [
        (first, second)
        for number, kind in enumerate(kinds)
        for first in kind
        for second in itertools.chain(*kinds[number + 1 :])
    ]
    script = """for pair; do REPORT="a ${pair#* }"$'\\n'"b ${pair% *}"; verdict; done"""
    words = [f"{first} {second}" for first, second in pairs]
    assert in_shell(script, *words).split() == [str(first) for first, _ in pairs]


def test_hosts_that_forget_the_run_or_train_another_one(cloud):
    """A host that was made anew is like one that was reset. One that trains another run is not
    ours, while we follow as before we begin.
    """
    here = cloud(trainer=["waits", "waits"])
    run = here.started()
    here.reset()
    shutil.rmtree(here.home(1) / "bert-jax")
    _, err = run.communicate(timeout=HUNG)
    assert run.returncode == 137 and "the same command goes on" in err, err
    run = here.start(here.launcher, "run", *here.options, *WHAT)
    wait_until(lambda: here.state()["starts"] == {"0": 2, "1": 2}, run)
    (here.home() / "bert-jax/run").write_text("0123456789ab\n")
    _, err = run.communicate(timeout=HUNG)
    assert run.returncode == 2 and "another run is running on pod" in err, err


def test_the_log_is_followed(cloud):
    here = cloud(number_of_hosts=1, trainer=["waits"])
    run = here.started()
    assert "pretrain bert_large_64core" in next(s for s in run.stdout if "pretrain" in s)
    log = here.home() / "bert-jax/log/train.log"
    for text in ("step 1", "loss \x1b[31m0.5\a", "@bert-jax-at 7", "step 2"):
        with log.open("a") as file:
            file.write(f"{text}\n")
        wanted = text.replace("\x1b", "").replace("\a", "")
        assert next(s for s in run.stdout if wanted in s) == f"{wanted}\n"
    (here.directory / "done").touch()
    out, err = run.communicate(timeout=HUNG)
    assert run.returncode == 0 and out.count("step") == 0 and "exit code 0" in out, out + err


# --- a launcher that ends, sleeps or is cut off --------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_whoever_leaves_is_told_what_stays(cloud, number):
    here = cloud(number_of_hosts=1, trainer=["waits"])
    run = here.started()
    run.send_signal(number)
    _, err = run.communicate(timeout=HUNG)
    assert run.returncode == 128 + number
    assert "pod is there without this command and costs $12.88 an hour" in err.splitlines()[-1]


def test_a_run_is_found_again(cloud):
    """Its costs may have been told another end since; another run is refused."""
    here = cloud(trainer=["waits"])
    end(here.started())
    did = here.commands()
    second = here.start(here.launcher, "run", *here.options, *WHAT, "--max-hours=30")
    read_until(second, "runs already")
    cap = here.home(1) / "cap/boot.sh"
    wait_until(lambda: "MAX_SECONDS=108000" in cap.read_text(), second)
    here.tpu("run", "--config=bert_base", *WHAT[1:], code=2, says="this is")
    end(second)
    assert [c for c in here.commands() if c != "scp"] == [c for c in did if c != "scp"]
    assert "exit code 42" in here.tpu("stop").stdout


def test_no_outage_ends_a_run(cloud):
    here = cloud(trainer=["waits"])
    run = here.started()
    for words in (_NETWORK, _LOGIN):
        here.change(**failing("^laptop gcloud", *range(1, 13), fails=words), happened={})
        wait_until(lambda: here.state()["happened"].get("0", 0) >= 12, run)
    here.set_states(*["ACTIVE/REPAIRING"] * 8, "ACTIVE")
    wait_until(lambda: here.state()["current"] == "ACTIVE", run)
    # The cloud calls it ready, and ssh does not get through, to one host or to all.
    for event in ({"fails": ""}, {"deaf": [1]}):
        here.change(**failing("worker.sh state", **event), happened={})
        wait_until(lambda: here.state()["happened"].get("0", 0) > 5, run)
    here.change(events=[])
    (here.directory / "done").touch()
    _, err = run.communicate(timeout=HUNG)
    assert run.returncode == 0 and "gcloud auth login" in err, err
    assert here.commands() == _ALL


@pytest.mark.parametrize("codes", [[4, "waits"], [42, "waits"]])
def test_what_hosts_said_last_counts_when_the_machine_is_gone(cloud, codes):
    here = cloud(trainer=[codes], **failing("worker.sh state", *range(2, 99), deaf=[1]))
    run = here.started()
    read_until(run, "not all hosts answer; pod: ready")
    here.set_states("GONE")
    assert run.wait(timeout=HUNG) == codes[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (_NETWORK, "Network is unreachable"),
        (_LOGIN, "gcloud auth login"),
        # Of an old gcloud, at once: it would say the same each time.
        ("Invalid choice: 'queued-resources'.", "gcloud is too old, 468 or newer is needed"),
        ("unrecognized arguments: --node-id", "gcloud is too old, 468 or newer is needed"),
    ],
)
def test_a_run_that_begins_in_an_outage_says_so(cloud, words, said):
    """Nothing has ever answered: probably a setting, and worth an end in one line."""
    here = cloud(states=["ACTIVE"], **failing("^laptop gcloud", fails=words))
    # Deleting is tried on and on while there is no network.
    for command in ("run", "create", "fetch", *["delete"] * (words != _NETWORK)):
        done = here.tpu(command, *WHAT, f"--output={here.directory}/out", code=20, says=said)
        assert here.commands() == [] and done.stderr.count(" error: ") == 1, done.stderr
        assert command in ("run", "create") or done.stderr.count("\n") == 1, done.stderr
        assert "an hour" not in done.stderr


# --- one machine, one checkout, one place ---------------------------------------------------------


@pytest.mark.parametrize(
    ("scenario", "option", "said"),
    [
        ({"states": ["ACTIVE"], "run": "0123456789ab"}, "--keep", "pod in z is run 0123456789ab's"),
        ({"states": ["ACTIVE"]}, "--type=v4-64", "pod in z is a v4-8, not a v4-64"),
        ({"states": ["ACTIVE"], "zone": "zb"}, "--keep", "pod is in zb already: --zone=zb goes on"),
        ({"location": "EUROPE-WEST4"}, "--zone=us-central1-a", "another continent"),
        ({"location": "EU"}, "--zone=asia-east1-c", "another continent"),
    ],
)
def test_a_machine_of_others_and_a_bucket_far_away_are_refused(cloud, scenario, option, said):
    here = cloud(number_of_hosts=1, **scenario)
    here.tpu("run", *WHAT, option, code=2, says=said)
    assert here.commands() == []


@pytest.mark.parametrize(
    ("zone", "place", "said"),
    [
        ("europe-west4-b", "EUROPE-WEST4", ""),
        ("us-central1-a", "US", "lies in us, the machine in us-central1: each GiB"),
        ("us-central1-a", "NAM4", "GiB between them costs about $0.02"),
        ("asia-east1-c", "EU", "GiB between them costs about $0.05"),
    ],
)
def test_what_the_way_to_the_bucket_costs_is_said(cloud, zone, place, said):
    here = cloud(number_of_hosts=1, location=place)
    done = here.tpu("run", *WHAT, f"--zone={zone}", "--far-bucket", says=said)
    assert ("GiB" in done.stderr) == ("GiB" in said)


def test_a_run_that_is_done_deletes_what_it_has_left_and_no_other(cloud):
    here = cloud(number_of_hosts=1)
    for _ in range(2):
        here.tpu("run", *WHAT, "--keep")
        assert here.state()["states"] == ["ACTIVE"]
    here.tpu("run", *WHAT)
    assert here.commands() == _ALL and here.state()["states"] == []
    # Another run's, which is still being set up: the request says whose it is.
    here.tpu("create", "--config=bert_base", *WHAT[1:])
    here.tpu("run", *WHAT, says="is done, says")
    assert here.commands() == [*_ALL, "create"]


def test_a_run_goes_on_with_its_machine_and_the_checkout_that_it_began_with(cloud):
    here = cloud(number_of_hosts=1, trainer=[42, 42, 0])
    first = here.tpu("run", *WHAT, code=42)
    (pack,) = (here.directory / "home/.local/state/bert-jax").glob("*.tgz")
    noted = here.bucket / "launched_checkout"
    run, digest = noted.read_text().split()
    assert pack.name == f"{run}.tgz"
    assert f"checkout {digest}: pretrain" in first.stdout
    before = pack.read_bytes()
    here.tpu("run", *WHAT, code=42, says="this run began with goes on")
    assert pack.read_bytes() == before
    # Another laptop, with another checkout.
    noted.write_text(f"{run} {'0' * 16}\n")
    other = {"XDG_STATE_HOME": str(here.directory / "other")}
    here.tpu("run", *WHAT, **other, code=2, says="with --new-checkout")
    here.tpu("run", *WHAT, "--new-checkout", **other)
    assert noted.read_text() == f"{run} {digest}\n"
    assert here.commands() == ["create", *_UP, *_UP, *_UP, "delete"]


def test_without_a_bucket_the_hosts_say_that_it_is_done(cloud):
    """And the machine, on whose disk the workdir may be, stays until its hours are spent."""
    here = cloud()
    options = ("--config=tiny_docs_cpu", "--corpus=/c", "--workdir=/shared/run")
    here.tpu("run", *options, says="/shared/run is in no bucket")
    here.tpu("run", *options)
    assert here.commands() == ["create", *_UP]
    assert "KEEP=1\n" in (here.home() / "cap/boot.sh").read_text()


_ROUTER = """#!/bin/bash
zone=za
for word; do case $word in --zone=*) zone=${word#*=} ;; esac; done
sleep "0.$(printf %02d $((RANDOM % 20)))"
ask() { FAKE_CLOUD=$1 "$1/bin/gcloud" "${@:2}"; }
if [[ $zone == - ]]; then ask "$za" "$@" && ask "$zb" "$@"; else ask "${!zone}" "$@"; fi
"""


def test_two_laptops_make_one_machine(cloud, tmp_path):
    """Each in a zone by chance, at about the same moment, while machines are lost by chance."""
    zones = {name: cloud(number_of_hosts=1) for name in ("za", "zb")}
    here = zones["za"]
    program(tmp_path / "router/gcloud", _ROUTER)
    settings = {name: str(zone.directory) for name, zone in zones.items()}
    settings["PATH"] = f"{tmp_path}/router:{here.environment['PATH']}"
    chance = random.Random(7)
    ends = set()
    for _ in range(200 if IS_LONG else 5):
        for zone in zones.values():
            zone.set_states()
        laptops = []
        for _ in range(2):
            words = ("create", *here.options, *WHAT, f"--zone={chance.choice(('za', 'zb'))}")
            laptops.append(here.start(here.launcher, *words, settings=settings))
            time.sleep(chance.choice((0, 0.1, 0.5)))
        lost = zones[chance.choice(("za", "zb"))] if chance.random() < 0.3 else None
        if lost and lost.state()["states"] == ["ACTIVE"]:
            lost.set_states("SUSPENDED")
        said = [laptop.communicate(timeout=HUNG)[1] for laptop in laptops]
        codes = [laptop.returncode for laptop in laptops]
        there = [name for name, zone in zones.items() if zone.state()["states"] == ["ACTIVE"]]
        assert len(there) <= 1, said
        # Whoever says that it is there is right; the other is told where it is, or withdraws.
        assert set(codes) <= {0, 2, 21} and (0 not in codes or there or lost), said
        ends.add(tuple(sorted(codes)))
    assert (0, 2) in ends
