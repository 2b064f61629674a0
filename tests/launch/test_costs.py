"""No machine outlives its cap, whatever becomes of the run. And what is wrong is one line."""

import re
import shlex

import pytest

from tests.launch.cloud import STAGED, WHAT, end, failing, wait_until
from tests.limits import HUNG

_HOUR = 3600
_QUICK = {"TICK_SECONDS": "0.05", "AGAIN_SECONDS": "0.05", "LAST_SECONDS": "0",
          "ALIVE_SECONDS": "600", "STAGE_PAUSE_SECONDS": "0"}  # fmt: skip
# Hours for which a machine is still there: after its boot, after the end of its trainer, and where
# it is kept.
_START, _END, _CAP = 1, 0.25, 24


def gone(here) -> bool:
    return here.state()["states"] in (["DELETING", "GONE"], ["GONE"], [])


@pytest.mark.parametrize(
    ("scenario", "code", "said", "hours"),
    [
        (failing("-m pip install", fails="no"), 23, "setting up failed: pod-w-0 31;pod-w-1 31",
         _START),
        (failing("tpu_setup", deaf=[1]), 23, "setting up failed: pod-w-0 0;", _START),
        (failing("pod-w-. gcloud .* rsync", fails="no"), 23, "staging failed: pod-w-0 4;", _START),
        (failing("tpu_setup", fails=""), 23, "setting up failed: no host answered", _START),
        (failing(" scp ", fails="no route"), 23,
         "setting up failed: copying failed: ERROR: (gcloud) no route", _START),
        (failing("worker.sh start", fails=""), 24, "starting failed: no host answered", _START),
        ({"trainer": [[2, 134]]}, 2, "ended with 2", _END),
        ({"trainer": [6]}, 6, "ended with 6", _CAP),
    ],
)  # fmt: skip
def test_no_machine_outlives_its_cap(cloud, scenario, code, said, hours):
    """Nobody watches afterwards, and the bucket, if it is asked, does not answer."""
    here = cloud(environment=_QUICK, boots=True, **scenario)
    here.store("b/corpus/corpus.json", "{}")
    done = here.tpu("run", *STAGED, KEEP=str(int(hours == _CAP)), code=code, says=said)
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


def test_the_machine_ends_with_the_run_while_the_laptop_sleeps(cloud):
    """Whoever wakes up finds a run that is done, and makes no machine for it."""
    here = cloud(environment=_QUICK, trainer=["waits"], boots=True)
    end(here.started())
    here.up(_HOUR)
    (here.directory / "done").touch()
    wait_until((here.bucket / "launched_and_done").exists)
    wait_until(lambda: len(list(here.bucket.glob("logs/*.log"))) == 2)
    assert not gone(here)
    here.up(_HOUR + 1000)
    wait_until(lambda: gone(here))
    here.tpu("run", *WHAT, says="is done")
    assert here.commands().count("create") == 1
    here.tpu("logs", *WHAT, code=24, says="gcloud storage cat 'gs://b/run/logs/*'")


def test_hours_are_those_of_all_machines_together(cloud):
    """An hour of an earlier machine, and this one's: together they are over, and it ends."""
    here = cloud(number_of_hosts=1, environment=_QUICK | {"ALIVE_SECONDS": "0.05"},
                 trainer=["waits"], boots=True)  # fmt: skip
    alive = here.bucket / "launched_alive"
    here.up(30 * 60)
    run = here.started("--max-hours=1.5")
    wait_until(lambda: alive.exists() and alive.read_text().split()[1] == "30", run)
    here.up(61 * 60)
    wait_until(lambda: alive.read_text().split()[1] == "61", run)
    here.set_states("SUSPENDED")
    here.reset()
    assert run.wait(timeout=HUNG) == 42
    here.up(60)
    run = here.started("--max-hours=1.5")
    here.up(28 * 60)
    wait_until(lambda: here.state()["starts"]["0"] == 2, run)
    wait_until(lambda: alive.read_text().split()[1] == "89", run)
    here.up(30 * 60)
    # The trainer is told first, and saves.
    out, err = run.communicate(timeout=HUNG)
    assert run.returncode == 42, err
    assert "exit code 42" in out + (here.bucket / "logs/pod-w-0.log").read_text()
    wait_until(lambda: gone(here))
    told = (here.home() / "cap/log").read_text()
    assert "91 of 90 minutes are spent: stopping the trainer, which saves" in told
    made = here.commands().count("create")
    over = "for 91 minutes, --max-hours is 1.5"
    here.tpu("run", *WHAT, "--max-hours=1.5", code=25, says=over)
    assert here.commands().count("create") == made


def test_hours_that_are_spent_are_told_by_the_machine(cloud):
    """Else the loop around the command would make one after the other that cannot begin."""
    here = cloud(number_of_hosts=1, environment=_QUICK, trainer=["waits"], boots=True)
    alive = here.bucket / "launched_alive"
    here.up(5 * 60)
    run = here.started("--max-hours=1")
    wait_until(alive.exists, run)
    here.up(60 * 60)
    assert run.wait(timeout=HUNG) == 42
    wait_until(lambda: gone(here))
    here.tpu("run", *WHAT, "--max-hours=1", code=25, says="--max-hours is 1: a larger one")
    # A host that is lost does not come to say it.
    alive.write_text(f"{alive.read_text().split()[0]} 55 then\n")
    here.tpu("run", *WHAT, "--max-hours=1", code=25)
    assert here.commands().count("create") == 1


def test_another_machine_of_that_name_is_not_deleted(cloud):
    """One that two laptops delete, and the second asks for anew."""
    here = cloud(states=["DELETING", "DELETING", "DELETING", "WAITING_FOR_RESOURCES", "ACTIVE"])
    here.tpu("delete", says="is gone")
    assert here.state()["states"] == ["ACTIVE"]


def test_a_cloud_that_does_not_say_who_may_delete_stops_nothing(cloud):
    here = cloud(number_of_hosts=1, api_code="000", environment=_QUICK, boots=True)
    here.tpu("run", *WHAT, "--keep")


def test_who_may_not_delete_is_said_at_set_up(cloud):
    here = cloud(number_of_hosts=1, api_code=403, environment=_QUICK, boots=True)
    done = here.tpu("run", *WHAT, "--keep")
    assert "warning: this TPU's service account may not delete it (HTTP 403)" in done.stdout
    here.up(25 * _HOUR)
    log = here.home() / "cap/log"
    wait_until(lambda: log.exists() and "HTTP 403: its service account needs" in log.read_text())
    assert not gone(here)


def test_by_hand_the_same_ends_the_costs(cloud):
    """Each command tells the machine whose hours it counts, and that a workdir lies on it."""
    here = cloud(number_of_hosts=1, environment=_QUICK, trainer=["waits"])
    cap = here.home() / "cap/boot.sh"
    startup = here.directory / "startup"
    for command, text in (("create", startup), ("setup", cap)):
        here.tpu(command, *WHAT, "--workdir=/home/me/run")
        assert "KEEP=1\n" in text.read_text(), command
    here.tpu("delete")
    # Hours of a machine before this one.
    (run,) = set(re.findall(r"start (\w{12})", here.tpu("start", "--dry-run", *WHAT).stdout))
    alive = here.store("b/run/launched_alive", f"{run} 1200 then\n")
    for command, text in (("create", startup), ("setup", cap), ("start", cap)):
        here.tpu(command, *WHAT)
        assert "SPENT_SECONDS=72000\n" in text.read_text(), command
    wait_until(lambda: alive.read_text() != f"{run} 1200 then\n")
    assert alive.read_text().split()[1] == "1200"
    # What a later start is told, all hosts are.
    here.tpu("stop", *WHAT)
    here.tpu("start", *WHAT, "--max-hours=72", "--keep", says="its 72 hours")
    assert {"MAX_SECONDS=259200", "KEEP=1"} < set(cap.read_text().splitlines())
    here.tpu("delete")
    alive.write_text(f"{run} 1500 then\n")
    here.tpu("create", *WHAT, code=25)
    assert here.commands().count("create") == 2


def test_nothing_is_called_gone_that_is_in_another_zone(cloud):
    here = cloud(number_of_hosts=1, states=["ACTIVE"], zone="zb")
    here.tpu("delete", code=2, says="no pod in z, and there is one in zb: --zone=zb")
    here.tpu("status", says="absent, and there is one in zb")
    here.tpu("stop", code=24, says="there is one in zb")
    assert here.commands() == []
    for said in ("pod is gone", "there is no pod in zb or in another zone"):
        here.tpu("delete", "--zone=zb", says=said)
    here.change(**failing("queued-resources list", fails="PERMISSION_DENIED"))
    here.tpu("delete", says="another zone has one, the cloud does not say")


# --- the request ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "flags", "words", "price"),
    [
        ((), "", {"--valid-until-duration=12h", "--node-id=pod"}, "on-demand, $25.76"),
        (("--capacity=flex-start", "--max-hours=4"), "",
         {"alpha", "--provisioning-model=flex-start", "--max-run-duration=14400s"},
         "flex-start, at most $25.76"),
        (("--capacity=reserved", "--type=v5e-64"), "--internal-ips --network=n",
         {"--reserved", "--internal-ips", "--network=n", "--accelerator-type=v5litepod-64"},
         "reserved, at most $76.80"),
        (("--type=v6e:8x8", "--capacity=spot", "--zone=europe-west4-b"), "--autocheckpoint-enabled",
         {"alpha", "--spot", "--provisioning-model=spot", "--accelerator-type=v6e-64"},
         "spot, at most at US prices $172.80"),
    ],
)  # fmt: skip
def test_the_request_has_its_options(cloud, options, flags, words, price):
    dry = ("create", "--dry-run", *WHAT, *options)
    done = cloud().tpu(*dry, CREATE_FLAGS=flags, says=f"{price} an hour, ")
    command = shlex.split(next(s for s in done.stdout.splitlines() if " create " in s))
    assert words < set(command)
    kept = [word.partition("=")[0] for word in command if word.startswith(("--label", "--meta"))]
    assert kept == ["--metadata-from-file", "--labels"]


def test_what_else_hosts_are_told(cloud):
    """Another home, a tunnel, where compilations are, and a trace, which is no other run."""
    words = (*STAGED, "--iap", "--", "--init-from", "gs://m/base")
    given = {"BERT_JAX_HOME": "/big/bert", "SSH_FLAGS": "--ssh-key-file=k --ssh-flag=-C"}
    here = cloud()
    text = here.tpu("run", "--dry-run", *words, **given).stdout
    assert "worker.sh stage '\\''gs://b/corpus'\\'' /big/bert/corpus/corpus" in text
    assert "'\\''--init-from'\\'' '\\''gs://m/base'\\''" in text
    assert "BERT_JAX_HOME='\\''/big/bert'\\'' bash /big/bert/src/tpu_setup.sh --type v4-16" in text
    assert "JAX_COMPILATION_CACHE_DIR='\\''gs://b/run/xla_cache'\\''" in text
    assert text.count("--xla_") == 2  # those of a v4
    for line in text.splitlines():
        if " ssh " in line or " scp " in line:
            assert "alpha compute tpus tpu-vm" in line
            assert "--tunnel-through-iap" in line and "--ssh-key-file=k" in line
            # What ssh is given has another name for scp.
            assert ("--ssh-flag=-C" in line) == (" ssh " in line) == ("--scp-flag=-C" not in line)
    (run,) = re.findall(r"worker.sh start (\w+)", text)
    for trace in (["--profile-steps=20:25"], ["--profile-steps", "20:25"]):
        traced = here.tpu("start", "--dry-run", *words, *trace, **given)
        assert f"worker.sh start {run} " in traced.stdout and "20:25" in traced.stdout


def test_a_flag_that_is_0_is_not_set(cloud):
    """Each that is 1 for yes, in a file, the environment or as an option."""
    here = cloud(number_of_hosts=1, location="EUROPE-WEST4")
    zero = {"FAR_BUCKET": "0", "IAP": "0", "NEW_CHECKOUT": "0", "DRY_RUN": "0"}
    words = (*WHAT, "--zone=us-central1-a")
    here.tpu("run", *words, **zero, code=2, says="another continent")
    dry = here.tpu("stop", "--dry-run", "--iap=0")
    assert "iap" not in dry.stdout and "alpha" not in dry.stdout


def test_several_corpora_are_staged_and_trained_on(cloud):
    """One that is nowhere costs no machine."""
    here = cloud()
    for name in ("b/wiki", "c/x/code"):
        here.store(f"{name}/corpus.json", "{}")
    options = (WHAT[0], WHAT[2], "--max-hours=1")
    done = here.tpu("run", *options, "--corpus=gs://b/wiki", "--corpus", "python=gs://c/x/code/")
    assert " --corpus corpus/wiki --corpus corpus/python --workdir" in done.stdout
    # The same run, written as a file has it.
    here.tpu("run", *options, CORPUS="gs://b/wiki,python=gs://c/x/code/", says="is done, says")
    none = "gs://b/none has no corpus.json"
    here.tpu("run", *options, CORPUS="gs://b/wiki,gs://b/none,/data/x", code=2, says=none)
    assert here.commands().count("create") == 1


def test_a_file_that_the_trainer_executes_is_sent_along(cloud):
    """One with other lines is another run, as with a config."""
    here = cloud(number_of_hosts=1)
    (here.directory / "mine.py").write_text("first = 1\n")
    done = here.tpu("run", *WHAT, "--keep", "--", "--extend", "mine.py")
    assert "--extend src/run/mine.py\n" in done.stdout
    assert (here.home() / "bert-jax/src/run/mine.py").read_text() == "first = 1\n"
    (here.directory / "mine.py").write_text("first = 2\n")
    here.tpu("run", *WHAT, "--", "--extend=mine.py", code=2, says="take another --name")


# --- what is wrong is one line -------------------------------------------------------------------


def test_without_gcloud_nothing_waits(cloud):
    here = cloud()
    (here.directory / "bin" / "gcloud").unlink()
    for name in ("awk", "bash", "cat", "date", "dirname", "env", "grep", "mktemp", "rm", "sed",
                 "sha256sum", "tr", "cut", "basename"):  # fmt: skip
        (here.directory / "bin" / name).symlink_to(f"/usr/bin/{name}")
    settings = {"PATH": str(here.directory / "bin")}
    for command in ("create", "run", "status", "delete"):
        done = here.tpu(command, *WHAT, **settings, code=20, says="gcloud is not installed")
        assert done.stderr.count("\n") == 1


# Words that would make ssh, gcloud or a host execute something, and such variables of Google's.
_EXECUTED = {
    "SSH_FLAGS=--ssh-flag=-C": (
        "--ssh-flag=-oProxyCommand=MARK", "--ssh-flag=-oproxycommand=MARK", "-oProxyCommand=MARK",
        "--ssh-flag=-oPermitLocalCommand=yes", "--ssh-flag=-oKnownHostsCommand=MARK",
        "--ssh-flag=-oPKCS11Provider=MARK", "--ssh-flag=-oInclude=MARK", "--ssh-flag=-FMARK",
        "--ssh-flag=-oPort=1,-oProxyCommand=MARK", "--scp-flag=-SMARK", "--flags-file=MARK",
        "--command=MARK", "--ssh-key-file=MARK", "--ssh-flag",
    ),
    "CREATE_FLAGS=--network=n": (
        "--metadata=startup-script=MARK", "--metadata-from-file=startup-script=MARK",
        "--flags-file=MARK", "--boot-disk=MARK", "--impersonate-service-account=x",
    ),
    "DISTRIBUTED=--distributed": ("--extend=MARK",),
}  # fmt: skip
_GOOGLES = (
    "CLOUDSDK_PYTHON", "CLOUDSDK_PYTHON_ARGS", "CLOUDSDK_CONFIG", "CLOUDSDK_PROXY_ADDRESS",
    "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU", "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE",
    "GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES", "GOOGLE_APPLICATION_CREDENTIALS",
)  # fmt: skip
_DRY = ("--project=p", "--zone=z", "--name=n", "--type=v4-8", *WHAT, "--dry-run")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        # Lines of a file of settings, or the words of a command.
        ("MAX_HOUR=3", "run.env, line 8: there is no setting MAX_HOUR; did you mean MAX_HOURS?"),
        ("export SPOTS=1", "run.env, line 8: there is no setting SPOTS;"),
        ("TYPE=v5e-63", "'v5e-63' is not known; one of: v2-8"),
        ("BERT_JAX_HOME=big/../..", "BERT_JAX_HOME big/../.. has .. in it"),
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
        *((f"{name}=x", f"line 8: a file may not set {name}: set it in")
          for name in (*_GOOGLES, "OUTPUT")),
        *((f"{setting} {word}", f"run.env, line 8: a file may not put '{word}' into ")
          for setting, words in _EXECUTED.items() for word in words),
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
    done = here.run(here.launcher, *words, code=2, says=message)
    assert done.stderr.count("\n") == 1 and here.calls() == []
    assert not (here.directory / "x").exists()


def test_an_option_is_above_the_file_wherever_it_stands(cloud):
    here = cloud()
    path = here.directory / "run.env"
    path.write_text("TYPE=v4-8\nPROJECT=p\nZONE=z\nNAME=n\n")
    for words in (("--type=v9-8", f"--settings={path}"), ("--settings", path, "--type=v9-8")):
        here.run(here.launcher, "create", *words, code=2, says="'v9-8' is not known")
    # As each option, the file is a variable, too.
    path.write_text("TYPE=v9-7\nPROJECT=p\nZONE=z\nNAME=n\n")
    given = {"SETTINGS": str(path)}
    here.run(here.launcher, "create", settings=given, code=2, says="'v9-7' is not known")
    # Google's own variables are handed on, and nothing in the file is executed.
    path.write_text("CLOUDSDK_CORE_ACCOUNT=a@b.c\nWORKDIR=gs://b/$(touch x)\n")
    done = here.tpu("run", "--dry-run", *WHAT[:2], f"--settings={path}")
    assert "gs://b/$(touch x)/xla_cache" in done.stdout
    assert not (here.directory / "x").exists()
