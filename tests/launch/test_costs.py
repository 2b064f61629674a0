"""No machine outlives its cap, whatever becomes of the run. And what is wrong is one line."""

import re
import shlex

import pytest

from tests.launch.cloud import end, failing, wait_until
from tests.launch.test_run import RUN
from tests.limits import HUNG

_HOUR = 3600
_QUICK = {"TICK_SECONDS": "0.05", "AGAIN_SECONDS": "0.05", "LAST_SECONDS": "0",
          "ALIVE_SECONDS": "600", "STAGE_PAUSE_SECONDS": "0"}  # fmt: skip
# Hosts of 64 v5e cost $76.80 an hour: the longest bill is this, times the hours of the last column.
_START, _END, _CAP = 1, 0.25, 24

# What goes wrong; the scenario, options; what the command ends with, and says (None: it is killed);
# and how many hours after the boot, or after the end of the trainer, the machine is still there at
# most.
_WRONG = {
    "set-up fails": (failing("-m pip install", fails="no such version"), (), 23,
                     "setting up failed: pod-w-0 31;pod-w-1 31", _START),
    "one bad host": (failing("tpu_setup", deaf=[1]), (), 23, "setting up failed: pod-w-0 0;",
                     _START),
    "the corpus cannot be read": ({}, ("--corpus=gs://b/none",), 23, "staging failed: pod-w-0 4",
                                  _START),
    "ssh never gets in": (failing("tpu_setup", fails=""), (), 23,
                          "setting up failed: no host answered", _START),
    "nor scp": (failing(" scp ", fails="no route"), (), 23,
                "setting up failed: copying failed: ERROR: (gcloud) no route", _START),
    "no trainer is started": (failing("worker.sh start", fails=""), (), 24,
                              "starting failed: no host answered", _START),
    "the trainer ends with 2": ({"trainer": [{"codes": [2, 134]}]}, (), 2, "ended with 2", _END),
    "an error, and kept": ({"trainer": [{"code": 6}]}, ("--keep",), 6, "ended with 6", _CAP),
    "it is stopped": ({"trainer": [{"code": "waits"}]}, (), None, "", _END),
}  # fmt: skip


def gone(here) -> bool:
    return here.state()["states"] in (["DELETING", "GONE"], ["GONE"], [])


@pytest.mark.parametrize("wrong", _WRONG)
def test_no_machine_outlives_its_cap(cloud, wrong):
    """Nobody watches afterwards, and the bucket, if it is asked, does not answer."""
    scenario, options, code, said, hours = _WRONG[wrong]
    here = cloud(environment=_QUICK, boots=True, **scenario)
    # It is seen there from here, and cannot be copied by a host.
    (here.directory / "buckets/b/none/corpus.json").mkdir(parents=True)
    if wrong == "it is stopped":
        end(here.started(*RUN))
        assert here.tpu("stop").returncode == 0
    else:
        done = here.tpu("run", *RUN, *options)
        assert done.returncode == code and said in done.stderr, done.stderr
        last = done.stderr.splitlines()[-1]
        assert "costs $25.76 an hour" in last and "To end it now: launch/tpu delete" in last
    for host in here.hosts:
        (here.directory / "hosts" / host / "bert-jax/venv/bin/python").unlink(missing_ok=True)
    (here.directory / "buckets").rename(here.directory / "unreadable")
    account = here.home() / "cap/account"
    here.up(int(hours * _HOUR) - 60)
    wait_until(lambda: account.read_text().split()[2] == str(int(hours * _HOUR) - 60))
    assert not gone(here), here.calls()[-1]
    here.up(int(hours * _HOUR) + 60)
    wait_until(lambda: gone(here))
    assert "deletes itself" in here.commands() and "delete" not in here.commands()


def test_a_request_that_is_granted_at_night(cloud):
    here = cloud(environment=_QUICK, creations=[["WAITING_FOR_RESOURCES"]])
    run = here.start(here.launcher, "run", *here.options, *RUN)
    wait_until((here.directory / "startup").exists, run)
    end(run)
    here.set_states("ACTIVE")
    here.boot()
    here.up(_HOUR + 20)
    wait_until(lambda: gone(here))


def test_the_machine_ends_with_the_run_while_the_laptop_sleeps(cloud):
    """Whoever wakes up finds a run that is done, and makes no machine for it."""
    here = cloud(environment=_QUICK, trainer=[{"code": "waits"}], boots=True)
    bucket = here.directory / "buckets/b/run"
    end(here.started(*RUN))
    here.up(_HOUR)
    (here.directory / "done").touch()
    wait_until((bucket / "launched_and_done").exists)
    wait_until(lambda: (bucket / "logs").is_dir() and len(list((bucket / "logs").iterdir())) == 2)
    assert not gone(here)
    here.up(_HOUR + 1000)
    wait_until(lambda: gone(here))
    later = here.tpu("run", *RUN)
    assert later.returncode == 0 and "is done" in later.stderr, later.stderr
    assert here.commands().count("create") == 1
    logs = here.tpu("logs", *RUN)
    assert logs.returncode == 24 and "gcloud storage cat 'gs://b/run/logs/*'" in logs.stderr


def test_hours_are_those_of_all_machines_together(cloud):
    """An hour of an earlier machine, and this one's: together they are over, and it ends."""
    here = cloud(number_of_hosts=1, environment=_QUICK | {"ALIVE_SECONDS": "0.05"},
                 trainer=[{"code": "waits"}], boots=True)  # fmt: skip
    bucket = here.directory / "buckets/b/run"
    alive = bucket / "launched_alive"
    here.up(30 * 60)
    run = here.started(*RUN, "--max-hours=1.5")
    wait_until(lambda: alive.exists() and alive.read_text().split()[1] == "30", run)
    here.up(61 * 60)
    wait_until(lambda: alive.read_text().split()[1] == "61", run)
    here.set_states("SUSPENDED")
    here.reset()
    assert run.wait(timeout=HUNG) == 42
    run.communicate()
    here.up(60)
    run = here.started(*RUN, "--max-hours=1.5")
    here.up(28 * 60)
    wait_until(lambda: here.state()["starts"]["0"] == 2, run)
    wait_until(lambda: alive.read_text().split()[1] == "89", run)
    here.up(30 * 60)
    # The trainer is told first, and saves.
    out, err = run.communicate(timeout=HUNG)
    assert run.returncode == 42, err
    assert "exit code 42" in out + (bucket / "logs/pod-w-0.log").read_text()
    wait_until(lambda: gone(here))
    made = here.commands().count("create")
    (name, *_) = alive.read_text().split()
    alive.write_text(f"{name} 91 then\n")
    over = here.tpu("run", *RUN, "--max-hours=1.5")
    assert over.returncode == 25 and "for 91 minutes, --max-hours is 1.5" in over.stderr
    assert here.commands().count("create") == made


def test_who_may_not_delete_is_said_at_set_up(cloud):
    here = cloud(number_of_hosts=1, api_code=403, environment=_QUICK, boots=True)
    done = here.tpu("run", *RUN, "--keep")
    assert "warning: this TPU's service account may not delete it (HTTP 403)" in done.stdout
    here.up(25 * _HOUR)
    log = here.home() / "cap/log"
    wait_until(lambda: log.exists() and "HTTP 403: its service account needs" in log.read_text())
    assert not gone(here)


def test_a_machine_that_was_made_by_hand_gets_its_cap_at_set_up(cloud):
    here = cloud(number_of_hosts=1, states=["ACTIVE"], environment=_QUICK)
    assert here.tpu("setup").returncode == 0
    here.up(_HOUR + 20)
    wait_until(lambda: gone(here))


def test_by_hand_the_same_ends_the_costs(cloud):
    """Each command tells the machine whose hours it counts, and that a workdir lies on it."""
    here = cloud(number_of_hosts=1, environment=_QUICK, trainer=[{"code": "waits"}], boots=True)
    cap = here.home() / "cap/boot.sh"
    at_home = (*RUN, "--workdir=/home/me/run")
    for command in ("create", "setup"):
        assert here.tpu(command, *at_home).returncode == 0
        assert "KEEP=1\n" in cap.read_text(), command
    assert here.tpu("delete").returncode == 0
    # Hours of a machine before this one.
    (run,) = set(re.findall(r"start (\w{12})", here.tpu("start", "--dry-run", *RUN).stdout))
    alive = here.directory / "buckets/b/run/launched_alive"
    alive.parent.mkdir(parents=True)
    alive.write_text(f"{run} 1200 then\n")
    for command in ("create", "setup", "start"):
        assert here.tpu(command, *RUN).returncode == 0
        assert "SPENT_SECONDS=72000\n" in cap.read_text(), command
    wait_until(lambda: alive.read_text() != f"{run} 1200 then\n")
    assert alive.read_text().split()[1] == "1200"
    # What a later start is told, all hosts are.
    assert here.tpu("stop", *RUN).returncode == 0
    again = here.tpu("start", *RUN, "--max-hours=72", "--keep")
    assert again.returncode == 0 and "its 72 hours" in again.stderr
    assert {"MAX_SECONDS=259200", "KEEP=1"} < set(cap.read_text().splitlines())
    assert here.tpu("delete").returncode == 0
    alive.write_text(f"{run} 1500 then\n")
    over = here.tpu("create", *RUN)
    assert over.returncode == 25 and here.commands().count("create") == 2


def test_nothing_is_called_gone_that_is_in_another_zone(cloud):
    here = cloud(number_of_hosts=1, states=["ACTIVE"], zone="zb")
    done = here.tpu("delete")
    assert done.returncode == 2 and "no pod in z, and there is one in zb: --zone=zb" in done.stderr
    assert "absent, and there is one in zb" in here.tpu("status").stderr
    stopped = here.tpu("stop")
    assert stopped.returncode == 24 and "there is one in zb" in stopped.stderr
    assert here.commands() == []
    for said in ("pod is gone", "there is no pod in zb or in another zone"):
        done = here.tpu("delete", "--zone=zb")
        assert done.returncode == 0 and said in done.stderr
    unknown = failing("queued-resources list", fails="PERMISSION_DENIED")
    here.change(**unknown)
    done = here.tpu("delete")
    assert done.returncode == 0 and "another zone has one, the cloud does not say" in done.stderr


# --- the request ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "flags", "words"),
    [
        ((), "", {"--valid-until-duration=12h", "--node-id=pod"}),
        (("--capacity=flex-start", "--max-hours=4"), "",
         {"alpha", "--provisioning-model=flex-start", "--max-run-duration=14400s"}),
        (("--capacity=reserved", "--type=v5e-64"), "--internal-ips --network=n",
         {"--reserved", "--internal-ips", "--network=n", "--accelerator-type=v5litepod-64"}),
        (("--type=v6e:8x8", "--capacity=spot"), "--autocheckpoint-enabled",
         {"alpha", "--spot", "--provisioning-model=spot", "--accelerator-type=v6e-64"}),
    ],
)  # fmt: skip
def test_the_request_has_its_options(cloud, options, flags, words):
    done = cloud().tpu("create", "--dry-run", *RUN, *options, CREATE_FLAGS=flags)
    assert done.returncode == 0, done.stderr
    command = shlex.split(next(s for s in done.stdout.splitlines() if " create " in s))
    assert words < set(command)
    kept = [word.partition("=")[0] for word in command if word.startswith(("--label", "--meta"))]
    assert kept == ["--metadata-from-file", "--labels"]


def test_what_else_hosts_are_told(cloud):
    """Another home, a tunnel, where compilations are, and a trace, which is no other run."""
    options = ("--config=tiny_docs_cpu", "--corpus=gs://b/corpus", RUN[2], "--iap")
    words = ("--", "--init-from", "gs://m/base")
    given = {"BERT_JAX_HOME": "/big/bert", "SSH_FLAGS": "--ssh-key-file=k --ssh-flag=-C"}
    here = cloud()
    done = here.tpu("run", "--dry-run", *options, *words, **given)
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert "worker.sh stage '\\''gs://b/corpus'\\'' /big/bert/corpus/corpus" in text
    assert "'\\''--init-from'\\'' '\\''gs://m/base'\\''" in text
    assert "BERT_JAX_HOME='\\''/big/bert'\\'' bash /big/bert/src/tpu_setup.sh --type v4-16" in text
    assert "JAX_COMPILATION_CACHE_DIR='\\''gs://b/run/xla_cache'\\''" in text
    for line in text.splitlines():
        if " ssh " in line or " scp " in line:
            assert "alpha compute tpus tpu-vm" in line
            assert "--tunnel-through-iap" in line and "--ssh-key-file=k" in line
            # What ssh is given has another name for scp.
            assert ("--ssh-flag=-C" in line, "--scp-flag=-C" in line) == (
                (True, False) if " ssh " in line else (False, True)
            )
    (run,) = re.findall(r"worker.sh start (\w+)", text)
    for trace in (["--profile-steps=20:25"], ["--profile-steps", "20:25"]):
        traced = here.tpu("start", "--dry-run", *options, *words, *trace, **given)
        assert f"worker.sh start {run} " in traced.stdout and "20:25" in traced.stdout


def test_a_flag_that_is_0_is_not_set(cloud):
    """Each that is 1 for yes, in a file, the environment or as an option."""
    here = cloud(number_of_hosts=1, location="EUROPE-WEST4")
    zero = {"FAR_BUCKET": "0", "IAP": "0", "NEW_CHECKOUT": "0", "DRY_RUN": "0"}
    done = here.tpu("run", *RUN, "--zone=us-central1-a", **zero)
    assert done.returncode == 2 and "another continent" in done.stderr, done.stderr
    dry = here.tpu("stop", "--dry-run", "--iap=0")
    assert dry.returncode == 0 and "iap" not in dry.stdout and "alpha" not in dry.stdout


def test_several_corpora_are_staged_and_trained_on(cloud):
    """One that is nowhere costs no machine."""
    here = cloud()
    buckets = here.directory / "buckets"
    for name in ("b/wiki", "c/x/code"):
        (buckets / name / "train").mkdir(parents=True)
        (buckets / name / "train/0").write_text(name)
        (buckets / name / "corpus.json").write_text("{}")
    options = (RUN[0], RUN[2], "--max-hours=1")
    one = ("--corpus=gs://b/wiki", "--corpus", "python=gs://c/x/code/")
    done = here.tpu("run", *options, *one)
    assert done.returncode == 0, done.stderr
    assert f"pretrain {RUN[0][9:]} --corpus corpus/wiki --corpus corpus/python --workdir" in (
        done.stdout
    )
    # The same run, written as a file has it.
    again = here.tpu("run", *options, CORPUS="gs://b/wiki,python=gs://c/x/code/")
    assert again.returncode == 0 and "is done, says" in again.stderr, again.stderr
    missing = here.tpu("run", *options, CORPUS="gs://b/wiki,gs://b/none,/data/x")
    assert missing.returncode == 2 and here.commands().count("create") == 1
    assert "gs://b/none has no corpus.json" in missing.stderr.splitlines()[-1]


def test_a_file_that_the_trainer_executes_is_sent_along(cloud):
    """One with other lines is another run, as with a config."""
    here = cloud(number_of_hosts=1)
    (here.directory / "mine.py").write_text("first = 1\n")
    done = here.tpu("run", *RUN, "--keep", "--", "--extend", "mine.py")
    assert done.returncode == 0 and "--extend src/run/mine.py\n" in done.stdout, done.stderr
    assert (here.home() / "bert-jax/src/run/mine.py").read_text() == "first = 1\n"
    (here.directory / "mine.py").write_text("first = 2\n")
    other = here.tpu("run", *RUN, "--", "--extend=mine.py")
    assert other.returncode == 2 and "take another --name" in other.stderr


# --- what is wrong is one line -------------------------------------------------------------------


def test_without_gcloud_nothing_waits(cloud):
    here = cloud()
    (here.directory / "bin" / "gcloud").unlink()
    for name in ("awk", "bash", "cat", "date", "dirname", "env", "grep", "mktemp", "rm", "sed",
                 "sha256sum", "tr", "cut", "basename"):  # fmt: skip
        (here.directory / "bin" / name).symlink_to(f"/usr/bin/{name}")
    settings = {"PATH": str(here.directory / "bin")}
    for command in ("create", "run", "status", "delete"):
        done = here.tpu(command, *RUN, **settings)
        assert done.returncode == 20, done.stderr
        assert "gcloud is not installed" in done.stderr and done.stderr.count("\n") == 1


_DRY = ("--project=p", "--zone=z", "--name=n", "--type=v4-8", *RUN, "--dry-run")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        # Lines of a file of settings, or the words of a command.
        ("MAX_HOUR=3", "run.env, line 8: there is no setting MAX_HOUR; did you mean MAX_HOURS?"),
        ("export SPOTS=1", "run.env, line 8: there is no setting SPOTS;"),
        ("TYPE=v5e-63", "'v5e-63' is not known; one of: v2-8"),
        ("MAX_HOURS=soon", "MAX_HOURS='soon': a number of hours, more than none"),
        ("MAX_HOURS=0", "a number of hours, more than none"),
        ("START_MINUTES=0", "a number, more than none"),
        ("CAPACITY=flex-start\nMAX_HOURS=200", "a flex-start machine has 168 at most"),
        ("CAPACITY=cheap", "one of on-demand, spot, reserved, flex-start"),
        ("CONFIG=bert_bas", "--config bert_bas: neither a file here nor a shipped config"),
        ("WORKDIR gs://b/r", "run.env, line 8: its lines are NAME=value, without"),
        ("ZONE=za,zb", "one zone, such as europe-west4-b; engines try several"),
        ("TYPE=v4-8 # ) (", "'v4-8 # ) (' is not known"),
        ("TYPE=v4-9\r", "'v4-9' is not known"),
        ("VALID_UNTIL_DURATION=2w", "a number and s, m, h or d"),
        ("NAME=$(touch x)", "small letters"),
        ("CORPUS=runs/corpus", "rsync --recursive runs/corpus gs://"),
        ("TYPE=tpu7x-8", "on GKE it is: launch/gke/render"),
        ("CONFIG=configs/bert_bas.py", "--config configs/bert_bas.py: neither a file here nor a"),
        ("CORPUS=gs://b/x/c,gs://b/y/c", "two are called c; write them as NAME=PLACE"),
        ("CORPUS=gs://b/a b", "'gs://b/a b': a source has a name of letters, digits and _ . -"),
        ("CORPUS=gs://b/c,corpus/d", "rsync --recursive corpus/d gs://"),
        ("FAR_BUCKET=no", "FAR_BUCKET='no': 0 or 1"),
        ("DOCTOR=off", "DOCTOR='off': 0 or 1"),
        (["run", *_DRY, "--", "--corpus=gs://b/d"], "--corpus is an option of launch/tpu"),
        (["run", *_DRY, "--", "--workdir", "d"], "--workdir is an option of launch/tpu"),
        (["run", *_DRY, "--", "--extend", "mine.py"], "--extend mine.py: no such file"),
        (["run", *_DRY, "--", "--init-from=home"], "--init-from home: hosts do not have it; copy"),
        (["create", "--frob=1"], "unknown option --frob;"),
        (["create", "--frob"], "unknown option --frob;"),
        (["create", "frob"], "what is 'frob'"),
        (["create", "--settings"], "--settings needs a value"),
        (["run", "--project=p", "--zone=z", "--name=n", "--type=v4-8"],
         "missing: --config --corpus --workdir; launch/tpu help"),
        (["--type=v4-8", "run"], "the command comes before --type=v4-8: launch/tpu COMMAND"),
        (["dance"], "there is no command dance; launch/tpu help has them"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(cloud, wrong, message):
    here = cloud()
    path = here.directory / "run.env"
    path.write_text(
        "CONFIG=tiny_docs_cpu\nCORPUS=/c\n# mine\nWORKDIR=gs://b/r\nPROJECT=p\nexport ZONE=z\n"
        f"NAME='n'\n{wrong}\n" + 'TYPE="v4-8"\n' * ("TYPE" not in wrong)
    )
    words = ["run", "--settings", path] if isinstance(wrong, str) else wrong
    done = here.run(here.launcher, *words)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and here.calls() == []
    assert not (here.directory / "x").exists()


def test_an_option_is_above_the_file_wherever_it_stands(cloud):
    here = cloud()
    (here.directory / "run.env").write_text("TYPE=v4-8\nPROJECT=p\nZONE=z\nNAME=n\n")
    path = here.directory / "run.env"
    for words in (("--type=v9-8", f"--settings={path}"), ("--settings", path, "--type=v9-8")):
        done = here.run(here.launcher, "create", *words)
        assert done.returncode == 2 and "'v9-8' is not known" in done.stderr, done.stderr
    # As each option, the file is a variable, too.
    path.write_text("TYPE=v9-7\nPROJECT=p\nZONE=z\nNAME=n\n")
    done = here.run(here.launcher, "create", settings={"SETTINGS": str(path)})
    assert done.returncode == 2 and "'v9-7' is not known" in done.stderr, done.stderr
    # Google's own variables are handed on, and nothing in the file is executed.
    path.write_text("CLOUDSDK_CORE_ACCOUNT=a@b.c\nWORKDIR=gs://b/$(touch x)\n")
    done = here.tpu("run", "--dry-run", *RUN[:2], f"--settings={path}")
    assert done.returncode == 0 and "gs://b/$(touch x)/xla_cache" in done.stdout, done.stderr
    assert not (here.directory / "x").exists()
