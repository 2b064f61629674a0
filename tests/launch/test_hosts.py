"""On a host: tpu_setup.sh, and launch/worker.sh with the trainer's unit."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import hostile
from tests.launch.cloud import ROOT, WHAT, check_unit, failing, wait_until
from tests.launch.fake_programs import program
from tests.limits import HUNG

_TYPE = "v4-16"


# --- tpu_setup.sh --------------------------------------------------------------------------------


def set_up(here, *options: str, code: int = 0):
    script = here.launcher.parents[1] / "tpu_setup.sh"
    return here.on_host(script, *(options or [_TYPE]), code=code)


def test_a_second_setup_installs_only_what_changed(cloud):
    """The package each time; the environment after a change of the lock or a failure."""
    here = cloud(**failing("uv .* sync ", fails="no"))
    copy = here.launcher.parents[1]
    set_up(here, code=33)
    here.change(events=[])
    (here.home() / "libtpu_lockfile").touch()
    done = set_up(here)
    assert "JAX sees 4 devices" in done.stdout and done.stdout.endswith("ready\n")
    set_up(here)
    with (copy / "requirements-tpu.lock").open("a") as lock:
        lock.write("# another\n")
    set_up(here)
    calls = [call["argv"] for call in here.calls() if call["program"] == "uv"]
    whole = ["venv", "sync", "install"]
    verbs = [word for argv in calls for word in whole if word in argv[:3]]
    assert verbs == [*whole[:2], *whole, "install", *whole]
    # The check has the memory limit of the trainer.
    checks = [call["argv"] for call in here.calls() if call["program"] == "systemd-run"]
    assert {"--wait", "--pipe", "--property=LimitMEMLOCK=infinity"} < set(checks[0])
    assert not (here.home() / "libtpu_lockfile").exists()


@pytest.mark.parametrize(
    ("code", "message", "scenario", "option"),
    [
        (2, "unknown option '--frob'", {}, "--frob"),
        (0, "34 a trainer runs", {}, "--help"),
        (2, "unknown accelerator type 'v9-8'", {}, "v9-8"),
        (31, "pip cannot install uv", failing("-m pip install", fails="no"), _TYPE),
        (30, "do not describe a TPU host", {}, ""),
        (32, "uv cannot download Python", failing("uv .* venv ", fails="no"), _TYPE),
        (35, "sees 3 devices on this host; a host of v4-8 has 4", {"devices": 3}, "v4-8"),
        # A healthy slice may reject a check of one host.
        (0, "warning: JAX sees 3 devices on this host; a host of v4-16", {"devices": 3}, _TYPE),
    ],
)  # fmt: skip
def test_each_failure_of_setup_has_its_code(cloud, code, message, scenario, option):
    done = set_up(cloud(**scenario), option, code=code)
    assert message in done.stderr + done.stdout


def test_setup_leaves_a_running_trainer_alone(cloud):
    here = cloud(number_of_hosts=1, trainer=["waits"])
    here.started()
    assert "a trainer is running on this host" in set_up(here, "v4-8", code=34).stderr


# --- worker.sh -----------------------------------------------------------------------------------


def test_an_interrupted_copy_of_a_corpus_resumes(cloud, corpus):
    from bert_jax.data.corpus.store import open_corpus

    here = cloud(rsync_limits=[1])
    place = here.home() / "bert-jax/corpus/wiki"

    def stage(code: int = 0) -> str:
        words = (ROOT / "launch/worker.sh", "stage", "wiki=gs://b/corpus", "/data/other")
        return here.on_host(*words, code=code).stdout

    assert "gs://b/corpus was not copied" in stage(4)
    shutil.copytree(corpus, here.directory / "buckets" / "b" / "corpus")
    # A directory without corpus.json is not a corpus; the copied files stay.
    stage(4)
    assert {p.name for p in place.iterdir() if p.is_file()} == {"corpus.json.new"}
    assert sum(p.is_file() for p in place.rglob("*")) == 1 + 1
    stage()
    open_corpus(place)
    # Only a truncated file is copied again.
    victim = next((place / "train").glob("*.tokens.npy"))
    victim.write_bytes(victim.read_bytes()[:-10])
    assert stage().count("copied train") == 1
    open_corpus(place)


_TRAINER = """#!/bin/bash
trap 'sleep 0.3; exit 42' TERM
echo "$@ port $JAX_COORDINATOR_PORT flags $LIBTPU_INIT_ARGS"
[[ $3 == doctor && $FOUND == waits ]] && touch "$HOME/looks" && sleep 60 & wait
[[ $3 == doctor ]] && exit "${FOUND:-0}"
[[ $* == *quick* ]] && exit 3
touch "$HOME/up"
for _ in {1..300}; do sleep 0.1; done
"""


def worker(here, *arguments: str, code: int = 0, **settings: str):
    script = here.home() / "bert-jax/src/launch/worker.sh"
    return here.on_host(script, *arguments, code=code, FAKE_HOST="t1v-n-0abc-w-5", **settings)


def with_trainer(here) -> Path:
    """Returns an installation with a checkout and the trainer above in place of Python."""
    place = here.home() / "bert-jax"
    shutil.copytree(ROOT / "launch", place / "src" / "launch")
    program(place / "venv/bin/python", _TRAINER)
    (here.home() / "units").mkdir()
    return place


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (4, 4),  # the trainer is not started: it would end with the same code
        (1, 3),  # the doctor itself failed
        (124, 3),  # the doctor timed out
    ],
)
def test_the_doctor_is_asked_before_the_trainer_starts(cloud, found, code):
    here = cloud()
    place = with_trainer(here)
    worker(here, "start", "quick", FOUND=str(found))
    wait_until((place / "exit").exists)
    wait_until(lambda: worker(here, "state").stdout == f"{code}\n")
    log = (place / "log" / "train.log").read_text()
    assert "-m bert_jax doctor quick port 8476" in log
    assert ("-m bert_jax pretrain quick port 8476" in log) == (code == 3)


def test_a_trainer_that_is_stopped_during_the_doctor_does_not_start(cloud):
    here = cloud()
    place = with_trainer(here)
    worker(here, "start", "a", FOUND="waits")
    wait_until((here.home() / "looks").exists)
    here.stop_units()
    assert worker(here, "state").stdout == "143\n"
    assert "pretrain a port" not in (place / "log" / "train.log").read_text()


def test_the_unit_saves_at_sigterm_and_keeps_the_code(cloud):
    here = cloud()
    place = with_trainer(here)
    assert worker(here, "state").stdout == "none\n"
    start = ("start", "a b")
    worker(here, *start, LIBTPU_INIT_ARGS="--xla_x=true", WORKDIR="gs://b/run")
    wait_until((here.home() / "up").exists)
    log = (place / "log" / "train.log").read_text()
    assert "pretrain a b port 8476 flags --xla_x=true" in log
    assert worker(here, "state").stdout == "running\n"
    assert "running already" in worker(here, *start).stdout
    assert "another run is running" in worker(here, "start", "a", code=2).stdout
    lines = worker(here, "log", "+2").stdout.splitlines()
    assert (
        lines[:-1] == log.splitlines()[1:]
        and lines[-1] == f"@bert-jax-at {len(log.splitlines()) + 1}"
    )
    here.stop_units()
    assert worker(here, "state").stdout == "42\n" and not (place / "exit").exists()
    # The bucket has the log, because the host may be deleted.
    assert "exit code 42" in next(here.bucket.glob("logs/*.log")).read_text()
    worker(here, "start", "quick")
    wait_until((place / "exit").exists)
    wait_until(lambda: worker(here, "state").stdout == "3\n")
    # A boot does not start a finished run again.
    worker(here, "state")
    here.on_host("systemctl", "start", "bert-jax")
    wait_until(lambda: worker(here, "state").stdout == "3\n")
    unit = (here.home() / "units/bert-jax.service").read_text()
    check_unit(here.home() / "bert-jax.service", unit, "LimitMEMLOCK=infinity")


def test_an_unexpected_error_is_restarted_ten_times(cloud):
    """An error of one host must not end a run at night, and a bug must not run for ever."""
    here = cloud()
    place = with_trainer(here)
    worker(here, "start", "quick")
    wait_until((place / "exit").exists)
    (place / "exit").unlink()
    (place / "crashes").write_text("\n" * 9)
    worker(here, "ended", EXIT_STATUS="1")
    assert not (place / "exit").exists()
    worker(here, "ended", EXIT_STATUS="SEGV")
    assert (place / "exit").read_text() == "1\n"
    worker(here, "start", "quick")
    assert not (place / "crashes").exists()


# --- values from outside -------------------------------------------------------------------------


def test_arguments_of_a_run_are_not_executed(cloud):
    """Each argument is quoted, and reaches the hosts unchanged."""
    here = cloud(number_of_hosts=1)
    mark = here.directory / "mark"
    words = [v.replace("MARK", str(mark)) for v in (*hostile.COMMANDS, *hostile.ODD_NAMES[2:])]
    corpus = f"--corpus=c=/c/$(touch {mark})"
    here.tpu("run", WHAT[0], corpus, WHAT[2], "--", *words)
    assert not mark.exists() and not list(here.directory.rglob("mark"))
    kept = (here.home() / "bert-jax/run.sh").read_text()
    script = 'source /dev/stdin; printf "%s\\0" "${ARGUMENTS[@]}"'
    told = subprocess.run(["bash", "-c", script], input=kept, capture_output=True, text=True)
    found = told.stdout.split("\0")[:-1]
    assert found[-len(words) - 2 : -2] == words and found[-1] == corpus.removeprefix("--corpus=")


def test_answers_of_clouds_and_hosts_are_not_executed(cloud):
    here = cloud(number_of_hosts=1, trainer=["waits"])
    value = f"a[$(touch${{IFS}}{here.directory}/pwned)]"
    run = here.started()
    log = here.home() / "bert-jax/log/train.log"
    log.write_text(log.read_text() + f"@bert-jax-at {value}\n@bert-jax pod-w-0 {value}\n\x1b[2J\n")
    (here.directory / "done").touch()
    assert run.wait(timeout=HUNG) == 0
    here.change(states=[value, "DELETING", "GONE"])
    here.tpu("delete", says="there is no TPU pod")
    assert not (here.directory / "pwned").exists()


_LED = [n for n in hostile.NAMES if n not in ("", "a/", "x" * 256, "a\u2028b") and "\0" not in n]


@pytest.mark.parametrize(
    ("option", "prefix", "values"),
    [
        (option, "", hostile.COMMANDS)
        for option in ("--project", "--zone", "--name", "--type", "--capacity", "--max-hours",
                       "--tail", "--service-account")
    ] + [
        (option, "gs://b/", (*_LED, "x?x=1", "a#1", "*")) for option in ("--corpus", "--workdir")
    ],
)  # fmt: skip
def test_hostile_options_are_rejected_in_one_line(cloud, option, prefix, values):
    here = cloud(number_of_hosts=1)
    mark = here.directory / "mark"
    checked = [v.replace("MARK", str(mark))[:10_000] for v in values if "\0" not in v]
    script = """
        launcher=$1; option=$2; shift 2
        for value in "$@"; do
            "$launcher" run --project=p --zone=z --name=pod --type=v4-8 --config=bert_base \\
                --corpus=gs://b/c --workdir=gs://b/w "$option=$value" >/dev/null 2>"$TMPDIR/err"
            echo "$? $(wc -l <"$TMPDIR/err")"
        done"""
    words = [f"{prefix}{value}" for value in checked[::4]]
    done = here.run("bash", "-c", script, "-", here.launcher, option, *words)
    assert done.stdout.splitlines() == ["2 1"] * len(words)
    assert not mark.exists() and here.calls() == []


def test_the_stored_uptime_is_not_executed(tmp_path):
    """launch/boot.sh reads its account as numbers (tests/launch/test_boot.py has the effects)."""
    text = (ROOT / "launch/boot.sh").read_text()
    script = text[text.index("load_account() {") : text.index("trains() {")]
    run = 'load_account; echo "$BASE $MARK $BEGUN"'
    for value in (*hostile.COMMANDS, *hostile.NUMBERS):
        (tmp_path / "account").write_text(f"b-1 {value} 5 5 1".replace("MARK", str(tmp_path / "m")))
        done = subprocess.run(
            ["bash", "-c", f"AT={tmp_path}\n{script}\n{run}"], capture_output=True, text=True,
            env=os.environ | {"BOOT_ID_FILE": "/dev/null"},
        )  # fmt: skip
        assert not (tmp_path / "m").exists()
        assert done.stdout.strip() in ("0 0 0",) or value.isdigit(), value
