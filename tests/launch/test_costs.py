"""The slice itself, its hours or the cloud end the costs of a run. Wrong settings are refused."""

import itertools
import shlex
import time

import pytest

from tests.launch.cloud import ROOT
from tests.launch.test_life_cycles import end
from tests.launch.test_outages import started, wait_until

_RUN = ("--config=tiny_docs_cpu", "--corpus=/data/corpus", "--workdir=gs://b/run")
_QUICK = {"GUARD_SECONDS": "0.05", "ALIVE_SECONDS": "0", "LAST_SECONDS": "0"}
_UP = ["scp", "setup", "start"]


def test_the_slice_deletes_itself_when_the_run_is_done(cloud):
    """The laptop sleeps. Whoever wakes up finds a run that is done, and makes no machine for it."""
    here = cloud(trainer=[{"code": "waits"}], environment=_QUICK)
    bucket = here.directory / "buckets/b/run"
    supervisor = started(here, DELETE_WHEN_DONE="")
    wait_until((bucket / "launched_alive").exists, supervisor)
    end(supervisor)
    (here.directory / "done").touch()
    deadline = time.monotonic() + 30
    while here.state()["states"] not in (["DELETING", "GONE"], ["GONE"]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert {path.name for path in (bucket / "logs").iterdir()} == {"pod-w-0.log", "pod-w-1.log"}
    assert "exit code 0" in (bucket / "logs/pod-w-1.log").read_text()
    assert "the run is done: deleting" in (bucket / "logs/pod-w-0.log").read_text()
    later = here.tpu("supervise", *_RUN, DELETE_WHEN_DONE="")
    assert later.returncode == 0 and "is done" in later.stderr, later.stderr
    assert here.commands() == ["create", *_UP, "delete"]
    # The logs of machines that are gone.
    logs = here.tpu("logs", *_RUN)
    assert logs.returncode == 0 and logs.stdout.count("exit code 0") == 2


@pytest.mark.parametrize("option", ["--keep", "--delete-when-done"])
def test_keeping_and_deleting_can_be_said(cloud, option):
    here = cloud(number_of_hosts=1)
    assert here.tpu("supervise", *_RUN, option, DELETE_WHEN_DONE="").returncode == 0
    assert here.commands() == ["create", *_UP, *["delete"] * (option != "--keep")]


def test_hours_are_counted_over_machines(cloud, tmp_path):
    """Half an hour of another machine, and this one's: together they are over, and it ends."""
    (tmp_path / "uptime").write_text("1830.55 1.0\n")
    here = cloud(
        number_of_hosts=1,
        trainer=[{"code": "waits"}],
        environment=_QUICK | {"UPTIME_FILE": str(tmp_path / "uptime")},
    )
    alive = here.directory / "buckets/b/run/launched_alive"
    settings = {"MAX_HOURS": "1.5", "DELETE_WHEN_DONE": ""}
    supervisor = started(here, **settings)
    wait_until(alive.exists, supervisor)
    run, minutes, _ = alive.read_text().split()
    assert minutes == "30"
    end(supervisor)
    assert here.tpu("delete").returncode == 0
    alive.write_text(f"{run} 61 then\n")
    done = here.tpu("supervise", *_RUN, **settings)
    assert done.returncode == 25 and "--max-hours is 1.5" in done.stderr, done.stderr
    # The slice and whoever supervises it may both ask for its end.
    asked = [command for command, _ in itertools.groupby(here.commands())]
    assert asked == ["create", *_UP, "delete", "create", *_UP, "delete"]
    assert "61" not in alive.read_text().split() and int(alive.read_text().split()[1]) >= 91
    # The trainer was told first, and saved.
    log = (here.directory / "buckets/b/run/logs/pod-w-0.log").read_text()
    assert "exit code 42" in log and "of 90 minutes" in log
    again = here.tpu("supervise", *_RUN, **settings)
    assert again.returncode == 25 and here.commands().count("create") == 2


def test_zones_are_tried_in_turn(cloud):
    """One that has no room refuses, one that queues is left, and the machine is found again."""
    here = cloud(
        number_of_hosts=1,
        create_errors=["RESOURCE_EXHAUSTED: no capacity"],
        creations=[["WAITING_FOR_RESOURCES"], ["ACTIVE"]],
    )
    options = ("--zone=za,zb,zc", "--data-disk=")
    done = here.tpu("create", *options, ZONE_SECONDS="0")
    assert done.returncode == 0, done.stderr
    asked = [c["argv"] for c in here.calls() if "create" in c["argv"] or "delete" in c["argv"]]
    assert [(a[5], next(w for w in a if "--zone" in w)) for a in asked] == [
        ("create", "--zone=za"), ("create", "--zone=zb"), ("delete", "--zone=zb"),
        ("create", "--zone=zc"),
    ]  # fmt: skip
    refused = here.tpu("create", "--zone=za,zb", "--data-disk=d")
    assert refused.returncode == 2 and "lies in one zone" in refused.stderr


def test_a_request_that_failed_says_why(cloud):
    here = cloud(number_of_hosts=1, creations=[["FAILED"]])
    done = here.tpu("create", MAX_FAILURES="1")
    assert done.returncode == 20
    assert done.stderr.count("There is no more capacity in the zone") == 2
    here = cloud(number_of_hosts=1, creations=[["FAILED"]])
    done = here.tpu("create", "--valid-until-duration=1s", POLL_SECONDS="1")
    assert done.returncode == 21 and "no machine within --valid-until-duration 1s" in done.stderr


def create_command(cloud, *options: str, **settings: str) -> list[str]:
    done = cloud().tpu("create", "--dry-run", *options, **settings)
    assert done.returncode == 0, done.stderr
    return shlex.split(next(s for s in done.stdout.splitlines() if " create " in s))


def test_the_request_has_its_options(cloud):
    command = create_command(cloud, "--valid-until-duration=12h", "--data-disk=books")
    assert {"--valid-until-duration=12h",
            "--data-disk=source=projects/p/zones/z/disks/books,mode=read-only"
            } < set(command)  # fmt: skip
    # On the alpha track a request is of the standard model unless it is told otherwise.
    spot = create_command(cloud, "--autocheckpoint", "--capacity=spot")
    assert {"--spot", "--provisioning-model=spot"} < set(spot)
    assert "--provisioning-model=spot" not in create_command(cloud, "--capacity=spot")


def test_what_else_hosts_are_told(cloud):
    """A checkpoint to begin from, a disk, another home, a tunnel, where compilations are."""
    done = cloud().tpu(
        "supervise", "--dry-run", *_RUN[:1], "--corpus=gs://b/corpus", _RUN[2],
        "--init-from=gs://m/base", "--data-disk=d", "--iap", "--max-hours=2",
        BERT_JAX_HOME="/big/bert", SSH_FLAGS="--ssh-key-file=k --ssh-flag=-C",
        DELETE_WHEN_DONE="",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert "worker.sh copy '\\''gs://m/base'\\'' /big/bert/init/base" in text
    assert "'\\''--init-from'\\'' '\\''init/base'\\''" in text
    assert (
        "/big/bert/src/tpu_setup.sh --type v4-16 && bash /big/bert/src/launch/worker.sh mount"
        in text
    )
    assert (
        "JAX_COMPILATION_CACHE_DIR='\\''gs://b/run/xla_cache'\\'' BERT_JAX_HOME='\\''/big/bert'\\''"
        in text
    )
    assert "TPU='\\''p/z/pod'\\'' WORKDIR='\\''gs://b/run'\\'' DELETE_WHEN_DONE='\\''1'\\''" in text
    assert "MAX_MINUTES='\\''120'\\''" in text
    for line in text.splitlines():
        if " ssh " in line or " scp " in line:
            assert "alpha compute tpus tpu-vm" in line
            assert "--tunnel-through-iap" in line and "--ssh-key-file=k" in line
            # What ssh is given has another name for scp.
            assert ("--ssh-flag=-C" in line, "--scp-flag=-C" in line) == (
                (True, False) if " ssh " in line else (False, True)
            )


# --- what is wrong is one line -------------------------------------------------------------------


def test_without_gcloud_nothing_waits(cloud):
    here = cloud()
    (here.directory / "bin" / "gcloud").unlink()
    for name in ("awk", "bash", "cat", "date", "dirname", "env", "grep", "mktemp", "rm", "sed",
                 "sha256sum", "tr", "cut", "basename"):  # fmt: skip
        (here.directory / "bin" / name).symlink_to(f"/usr/bin/{name}")
    settings = {"PATH": str(here.directory / "bin")}
    for command in ("create", "supervise", "status", "delete"):
        done = here.tpu(command, *_RUN, **settings)
        assert done.returncode == 20, done.stderr
        assert "gcloud is not installed" in done.stderr and done.stderr.count("\n") == 1


def test_help_of_a_command_and_status_without_a_cloud(cloud):
    here = cloud(exists=["ACTIVE"], describe_errors=9)
    done = here.tpu("create", "--help")
    assert done.returncode == 0 and done.stdout.startswith("usage: launch/tpu")
    assert here.tpu("status").returncode == 20


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("MAX_HOUR=3", "run.env, line 2: there is no setting MAX_HOUR; did you mean MAX_HOURS?"),
        ("export SPOTS=1", "run.env, line 2: there is no setting SPOTS;"),
        ("TYPE=v5e-64", "'v5e-64' is not known; did you mean v5litepod-64? one of: v2-8"),
        ("TYPE=v6e:8x8", "did you mean v6e-64?"),
        ("MAX_HOURS=soon", "--max-hours soon: a number of hours"),
        ("CONFIG=bert_bas", "--config bert_bas: neither a file here nor a shipped config"),
        (
            "WORKDIR gs://b/r",
            "run.env: line 2: WORKDIR: command not found: its lines are NAME=value",
        ),
        ("TYPE=v4-8 # ) (\nif", "syntax error: unexpected end of file: its lines are NAME=value"),
        ("VALID_UNTIL_DURATION=2w", "a number and s, m, h or d"),
        ("MAX_HOURS=3 WORKDIR=/shared/run", "take a workdir in a bucket"),
        (f"INIT_FROM={ROOT}", "put it into the bucket"),
    ],
)
def test_a_setting_that_is_wrong_is_one_line(cloud, line, message):
    here = cloud()
    path = here.directory / "run.env"
    path.write_text(
        "CONFIG=tiny_docs_cpu CORPUS=/c WORKDIR=gs://b/r PROJECT=p ZONE=z NAME=n TYPE=v4-8\n"
        f"{line}\n"
    )
    done = here.run(ROOT / "launch" / "tpu", "supervise", "--settings", path)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and here.calls() == []


def test_an_option_is_above_the_file_wherever_it_stands(cloud):
    here = cloud()
    (here.directory / "run.env").write_text("TYPE=v4-8\nPROJECT=p\nZONE=z\nNAME=n\n")
    path = here.directory / "run.env"
    for words in (("--type=v9-8", f"--settings={path}"), ("--settings", path, "--type=v9-8")):
        done = here.run(ROOT / "launch" / "tpu", "create", *words)
        assert done.returncode == 2 and "'v9-8' is not known" in done.stderr, done.stderr
    done = here.run(ROOT / "launch" / "tpu", "create", "--settings")
    assert (done.returncode, done.stderr.count("--settings needs a value")) == (2, 1)


def test_a_file_may_have_names_of_its_own(cloud):
    here = cloud()
    (here.directory / "run.env").write_text(
        "BUCKET=$(echo gs://b; echo careful >&2)\nexport CLOUDSDK_CORE_ACCOUNT=a@b.c\n"
        "WORKDIR=$BUCKET/run\n# NOTE=1\n"
    )
    done = here.tpu("supervise", "--dry-run", *_RUN[:2], "--settings=run.env")
    assert done.returncode == 0 and "gs://b/run/launched_and_done" in done.stdout, done.stderr
