"""`launch/tpu` on the fake cloud: its verbs, exit codes, and repeated commands."""

import itertools

import pytest

from tests.launch.cloud import STAGED, WHAT, failing, in_shell, wait_until
from tests.limits import HUNG

_UP = ["create", "scp", "scp", "setup", "start"]
_PREEMPTED = ["SUSPENDING", "SUSPENDED"]
_QUICK = {"TICK_SECONDS": "0.05", "AGAIN_SECONDS": "0.05", "LAST_SECONDS": "0"}

# A scenario, the exit code, and the changes that `run` makes besides `stage`.
_LIVES = {
    "ready": ({}, 0, [*_UP, "delete"]),
    "queued": ({"creations": [["ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]]},
               0, [*_UP, "delete"]),
    "no capacity": ({"creations": [["PROVISIONING", "FAILED"], ["ACTIVE"]]}, 21,
                    ["create", "delete"]),
    "node preempted before it was ready": ({"creations": [["ACTIVE/PREEMPTED"], ["ACTIVE"]]}, 21,
                                           ["create", "delete"]),
    "preempted in training": (
        {"trainer": ["waits", 0]} | failing("worker.sh log", 3, states=_PREEMPTED), 42, _UP),
    "deleted outside": (
        {"trainer": ["waits", 0]} | failing("worker.sh log", 3, states=["GONE"]), 42, _UP),
    "unknown state": ({"creations": [["HIBERNATING"] * 9 + ["ACTIVE"]]}, 0, [*_UP, "delete"]),
    "the answer is lost": (failing(" create ", 1, loses=True), 0, [*_UP, "delete"]),
    "refused": (failing(" create ", 1, fails="PERMISSION_DENIED: no tpu.nodes.create"), 20,
                ["create"]),
    "the cloud is silent for a while": (
        failing("queued-resources describe", 1, 2, 3, fails="UNAVAILABLE: later"), 0,
        [*_UP, "delete"]),
    "the cloud is silent": (failing("queued-resources describe", fails="UNAVAILABLE: later"), 20,
                            []),
    "the first copy fails": (failing(" scp ", 1, 2, fails="Connection closed"), 0,
                             ["create", *["scp"] * 4, "setup", "start", "delete"]),
    "a package cannot be installed": (failing("-m pip install", fails="no"), 23, _UP[:-1]),
    "a corpus cannot be read": (failing(" storage rsync ", fails="no"), 23, _UP[:-1]),
    "a host does not answer": (failing("tpu_setup", deaf=[1]), 23, _UP[:-1]),
}  # fmt: skip


@pytest.mark.parametrize("life", _LIVES)
def test_run_ends_with_its_code_and_the_same_command_resumes(cloud, life):
    scenario, code, did = _LIVES[life]
    here = cloud(environment=_QUICK, **scenario)
    here.store("b/corpus/corpus.json", "{}")
    said = here.tpu("run", *STAGED, "--capacity=spot", code=code).stderr
    assert [c for c in here.commands() if c != "stage"] == did, said
    assert len(said.splitlines()[-1]) < 400 and "Traceback" not in said
    if code in (21, 42):
        here.tpu("run", *STAGED, "--capacity=spot")
        assert here.commands()[-1] == "delete" and here.commands().count("create") == 2


@pytest.mark.parametrize(
    ("scenario", "code"),
    [
        *(({"trainer": [code]}, code) for code in (1, 8)),
        ({"trainer": [[134, 3]]}, 3),  # a peer of the host that fails
        ({"trainer": [["waits", 130]]}, 130),
        ({"doctor": [4, 0], "trainer": ["waits"]}, 4),
    ],
)
def test_a_final_code_is_reported_and_not_retried(cloud, scenario, code):
    here = cloud(**scenario)
    done = here.tpu("run", *WHAT, code=code)
    assert f"ended with exit code {code}" in done.stderr
    assert "delete" not in here.commands()
    starts = here.state()["starts"]
    here.reset()
    here.run("boot")
    assert here.state()["starts"] == starts


@pytest.mark.parametrize("code", [42, 137])  # tests/chaos/test_one_bad_rank.py has all codes
def test_other_codes_restart_the_trainer(cloud, code):
    here = cloud(trainer=[[code, code], [code, 0], 0], number_of_hosts=2)
    here.tpu("run", *WHAT)
    assert here.state()["starts"] == {"0": 3, "1": 2}


def test_verdict_prefers_errors_that_would_repeat():
    """Errors that would repeat come first, then the network, crashes, preemption, lost peers."""
    kinds = [range(2, 9), [75], [1, 9, 41, 43, 130, 135, 139, 255], [42], [134, 137, 143, 200], [0]]
    pairs = [
        (first, second)
        for number, kind in enumerate(kinds)
        for first in kind
        for second in itertools.chain(*kinds[number + 1 :])
    ]
    script = """for pair; do verdict "a ${pair#* }"$'\\n'"b ${pair% *}"; done"""
    words = [f"{first} {second}" for first, second in pairs]
    assert in_shell(script, *words).split() == [str(first) for first, _ in pairs]


@pytest.mark.parametrize("power_loss", [False, True])
def test_a_reboot_resumes_the_run(cloud, power_loss):
    here = cloud(trainer=["waits"], boots=True, environment=_QUICK)
    run = here.started()
    if power_loss:
        here.reset()
    else:
        here.stop_units()
        assert (here.home() / "bert-jax/last").read_text() == "42\n"
    here.run("boot", settings=_QUICK)
    wait_until(lambda: here.state()["starts"] == {"0": 2, "1": 2}, run)
    (here.directory / "done").touch()
    assert run.wait(timeout=HUNG) == 0
    assert here.commands().count("create") == 1 and here.commands()[-1] == "delete"


# Minutes until the TPU deletes itself, a scenario, and the exit code of `run` (None: it is killed).
_LIMITS = {
    "the installation fails": (60, failing("-m pip install", fails="no"), 23),
    "the corpus cannot be read": (60, failing(" storage rsync ", fails="no"), 23),
    "the trainer fails": (15, {"trainer": [2]}, 2),
    "the trainer trains": (24 * 60, {"trainer": ["waits"]}, None),
}


@pytest.mark.parametrize("name", _LIMITS)
def test_the_tpu_deletes_itself_at_its_limit(cloud, name):
    minutes, scenario, code = _LIMITS[name]
    here = cloud(environment=_QUICK, boots=True, **scenario)
    here.store("b/corpus/corpus.json", "{}")
    if code is None:
        run = here.started()
        run.kill()  # the laptop is off
    else:
        here.tpu("run", *STAGED, code=code)
    account = here.home() / "cap/account"
    limit = minutes * 60
    here.up(limit - 60)
    wait_until(lambda: account.read_text().split()[2] == str(limit - 60))
    assert here.state()["states"] == ["ACTIVE"]
    here.up(limit + 60)
    wait_until(lambda: here.state()["states"] != ["ACTIVE"])
    assert "deletes itself" in here.commands()
    if code is None:
        assert (here.bucket / "logs/pod-w-0.log").read_text().count("exit code 42") == 1


def test_the_limit_of_a_running_tpu_can_be_raised(cloud):
    here = cloud(environment=_QUICK, boots=True, trainer=["waits"])
    here.started().kill()
    run = here.start(here.launcher, "run", *here.options, *WHAT, "--max-hours=48")
    wait_until(lambda: "MAX_SECONDS=172800" in (here.home() / "cap/boot.sh").read_text(), run)
    assert here.commands().count("setup") == 1
    here.tpu("run", *WHAT, "--config=bert_base", code=23, says="failed on a host")


def test_an_account_that_may_not_delete_is_named(cloud):
    here = cloud(number_of_hosts=1, api_code=403, environment=_QUICK, boots=True)
    done = here.tpu("run", *WHAT)
    assert "warning: the service account of this TPU may not delete it" in done.stdout


def test_the_verbs_of_a_run_by_hand(cloud):
    here = cloud(trainer=["waits"], boots=True, environment=_QUICK)
    here.tpu("create", says="is ready")
    here.tpu("create")
    assert here.commands() == ["create"]
    assert here.tpu("status").stdout == "pod-w-0 none\npod-w-1 none\n"
    run = here.started()
    assert here.tpu("status").stdout == "pod-w-0 running\npod-w-1 running\n"
    logs = here.tpu("logs", "--tail=5").stdout
    assert logs.count("pretrain bert_large_64core --workdir gs://b/run --distributed") == 2
    here.tpu("ssh", "--", "sudo -n systemctl disable --now bert-jax")
    assert run.wait(timeout=HUNG) == 42
    here.tpu("delete", says="there is no TPU pod in z")
    here.tpu("delete", says="there is no TPU pod in z")
    assert here.commands().count("delete") == 1
    here.tpu("status", says="pod (v4-16, z): absent")


_OPTIONS = {
    ("--frob=1",): "unknown option '--frob'",
    ("frob",): "unknown option 'frob'",
    ("--type=v9-8",): "unknown accelerator type 'v9-8'",
    ("--type=tpu7x-8",): "use GKE",
    ("--config=bert_bose",): "--config bert_bose: no such file",
    ("--corpus=runs/corpus",): "--corpus 'runs/corpus': give gs://",
    ("--corpus=gs://b/../x",): "--corpus 'gs://b/../x': give gs://",
    ("--corpus=gs://c/corpus",): "give each corpus a different name",
    ("--workdir=runs/x",): "--workdir 'runs/x': give gs://",
    ("--max-hours=0",): "--max-hours '0': expected",
    ("--max-hours=08",): "--max-hours '08': expected",
    ("--capacity=cheap",): "--capacity 'cheap': expected",
    ("@no.txt",): "@no.txt: no such file",
}


@pytest.mark.parametrize("options", _OPTIONS, ids=" ".join)
def test_a_wrong_option_is_one_line(cloud, options):
    here = cloud()
    done = here.tpu("run", *STAGED, *options, code=2, says=_OPTIONS[options])
    assert len(done.stderr.splitlines()) == 1 and here.calls() == []


def test_options_come_from_a_file_and_from_the_command_line(cloud):
    here = cloud(number_of_hosts=1)
    text = "# a run\r\n\n--config=bert_base\n--workdir\ngs://b/run\n--corpus=/data/wiki\n"
    (here.directory / "run.txt").write_text(text)
    here.tpu("run", "@run.txt", "--config=electra_base", "--", "--set", "seed=1")
    log = (here.home() / "bert-jax/log/train.log").read_text()
    expected = "electra_base --workdir gs://b/run --distributed --set seed=1 --corpus /data/wiki"
    assert f"pretrain {expected}\n" in log


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_is_printed(cloud, option):
    here = cloud()
    for words in ((here.launcher, "run"), (here.launcher,)):
        done = here.run(*words, option)
        assert done.stderr == "" and done.stdout.startswith("usage: launch/tpu VERB")
        assert "--config CONFIG" in done.stdout and "shellcheck" not in done.stdout
    here.tpu("frob", code=2, says="unknown verb 'frob'")
