"""Values from outside: of a bucket, a setting, a cloud's answer. None is executed."""

import contextlib
import re
import subprocess

import pytest

from tests import hostile
from tests.launch.cloud import ROOT
from tests.limits import HUNG

_RUN = ("--config=tiny_docs_cpu", "--corpus=/data/corpus", "--workdir=gs://b/run")
_OUTSIDE = ROOT / "launch/lib/outside.sh"


def test_a_sign_of_life_is_not_executed_by_the_launcher(cloud):
    here = cloud(number_of_hosts=1)
    mark = here.directory / "pwned"
    (run,) = set(re.findall(r"start ([0-9a-f]{12})", here.tpu("run", *_RUN, "--dry-run").stdout))
    alive = here.directory / "buckets/b/run/launched_alive"
    alive.parent.mkdir(parents=True)
    for value in ("ZONES[$(touch${IFS}MARK)]", "\0" * 3000, "x" * 3_000_000):
        alive.write_text(f"{run} {value} then\n".replace("MARK", str(mark)))
        ended = here.tpu("run", *_RUN, "--max-hours=1")
        assert not mark.exists()
        assert ended.returncode == 20 and here.commands() == [], ended.stderr
        assert ended.stderr.splitlines()[-1].count("launched_alive does not say how long") == 1
    alive.write_text(f"{run} 00060 then\n")
    assert here.tpu("run", *_RUN, "--max-hours=1").returncode == 25


def test_no_answer_of_the_cloud_is_executed(cloud):
    """Owner, type, zone and state are its words, and so is the place of a bucket."""
    here = cloud(number_of_hosts=1, location="a[$(touch${IFS}x)]")
    value = f"a[$(touch${{IFS}}{here.directory}/pwned)]"
    for state in ({"run": value}, {"type": value}, {"zone": value}, {"states": [value]}):
        here.change(**{"states": ["ACTIVE"], "current": "ACTIVE", "zone": ""} | state)
        process = here.start(here.launcher, "run", *here.options, *_RUN)
        # A state that nobody knows is waited for.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=3)
        process.kill()
        process.communicate()
    assert not list(here.directory.rglob("x")) and not (here.directory / "pwned").exists()


def test_only_a_whole_number_is_one(tmp_path):
    """One shell for all of them: `whole` says which are numbers, and executes none."""
    values = (*hostile.COMMANDS, *hostile.NUMBERS, *hostile.NAMES[:-4])
    values = [value for value in values if "\0" not in value]
    numbers = {"0": "0", "7": "7", "010": "10", "0008": "8", "000": "0", "9" * 15: "9" * 15}
    script = """exec 3>/dev/null; source "$0"
        for v in "$@"; do whole "$v" || printf no; echo; minutes_in "$v" x >&3; done"""
    words = [v.replace("MARK", str(tmp_path / "mark"))[:10_000] for v in (*values, *numbers)]
    done = subprocess.run(
        ["bash", "-c", script, _OUTSIDE, *words], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stderr == "" and list(tmp_path.iterdir()) == []
    found = done.stdout.splitlines()
    assert found == ["no"] * len(values) + [*numbers.values()]


_CHECKS = """source "$1/launch/lib/common.sh"; source "$1/launch/lib/settings.sh"; shift
    for name in $1; do for v in "${@:3}"; do
        (unset PROJECT ZONE NAME; printf -v "$name" %s "$2$v"; check_values) 2>err &&
            printf '%s took %q\\n' "$name" "$v"
        [[ ! -s err || $(wc -l <err) == 1 ]] || printf '%s said\\n' "$name"; cat err
    done; done"""


def checked(folder, names: str, prefix: str, values: list[str]) -> str:
    """Returns which of the values the launcher took for which setting, and what it said."""
    words = [v.replace("MARK", str(folder / "mark"))[:10_000] for v in values if "\0" not in v]
    done = subprocess.run(
        ["bash", "-c", _CHECKS, "-", ROOT, names, prefix, *words],
        capture_output=True, text=True, cwd=folder, timeout=HUNG,
    )  # fmt: skip
    assert done.stderr == "" and [p.name for p in folder.iterdir()] == ["err"]
    return done.stdout


def test_no_setting_is_executed(tmp_path):
    """Each is refused in one line before anything counts with it or goes there."""
    led = [n for n in hostile.NAMES if n not in ("", "a/", "x" * 256, "a\u2028b") and "\0" not in n]
    words = "START_MINUTES KEEP PROJECT ZONE NAME CAPACITY BERT_JAX_HOME VALID_UNTIL_DURATION"
    for names, prefix, values in (
        (words, "x y;", hostile.COMMANDS + hostile.NUMBERS),
        ("TAIL MAX_HOURS END_MINUTES", "", (*hostile.COMMANDS[:6], "0x10", "2#1", "a[0]")),
        ("CORPUS COMPILATION_CACHE", "gs://b/", (*led, "x?x=1", "a#1", "*")),
        ("WORKDIR", "", ("gs://", "gs:///x", "gs://b/../x", "s3://b/x", "http://h:80/x")),
    ):
        lines = checked(tmp_path, names, prefix, list(values)).splitlines()
        assert len(lines) == len(names.split()) * len(values), lines
        assert all(" error: " in line for line in lines), lines
    named = "CORPUS WORKDIR COMPILATION_CACHE"
    values = ["run", "a b/c", "corpora/books/", "..x"]
    taken = checked(tmp_path, named, "gs://b/", values)
    assert taken.count(" took ") == len(taken.splitlines()) == 12
    taken = checked(tmp_path, "WORKDIR COMPILATION_CACHE", "gs://b/", ["$(date)"])
    assert taken.count(" took ") == 2


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        *(
            (f"{name}=MARK", f"a file may not set {name}: ")
            for name in (
                "CLOUDSDK_PYTHON", "CLOUDSDK_PYTHON_ARGS", "CLOUDSDK_CONFIG",
                "CLOUDSDK_PROXY_ADDRESS", "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU",
                "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE",
                "GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES", "GOOGLE_APPLICATION_CREDENTIALS",
            )
        ),
        *(
            (f"SSH_FLAGS=--ssh-flag=-C {word}", f"a file may not put '{word}' into SSH_FLAGS: ")
            for word in (
                "--ssh-flag=-oProxyCommand=MARK", "--ssh-flag=-oproxycommand=MARK",
                "--ssh-flag=-oPermitLocalCommand=yes", "--ssh-flag=-oKnownHostsCommand=MARK",
                "--ssh-flag=-oPKCS11Provider=MARK", "--ssh-flag=-oInclude=MARK",
                "--ssh-flag=-FMARK", "--scp-flag=-SMARK",
                "--ssh-flag=-oPort=1,-oProxyCommand=MARK", "--flags-file=MARK", "--command=MARK",
                "--ssh-key-file=MARK", "--ssh-flag", "-oProxyCommand=MARK",
            )
        ),
        *(
            (f"CREATE_FLAGS=--network=n {word}", f"a file may not put '{word}' into CREATE_FLAGS: ")
            for word in (
                "--metadata=startup-script=MARK", "--metadata-from-file=startup-script=MARK",
                "--flags-file=MARK", "--boot-disk=MARK", "--impersonate-service-account=x",
            )
        ),
        ("DISTRIBUTED=--distributed --extend=MARK", "a file may not put '--extend=MARK' into DIST"),
    ],
)  # fmt: skip
def test_no_file_of_settings_makes_another_program_execute_something(cloud, line, refused):
    here = cloud()
    (here.directory / "run.env").write_text(f"CAPACITY=spot\n{line}\n")
    done = here.tpu("run", *_RUN, f"--settings={here.directory}/run.env", "--dry-run")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert f"run.env, line 2: {refused}" in done.stderr and "in the environment" in done.stderr
    assert done.stdout == "" and here.calls() == []


def test_what_is_harmless_may_stand_in_a_file(cloud):
    """The same words reach gcloud from the environment, with all others."""
    here = cloud()
    flags = {
        "SSH_FLAGS": "--ssh-flag=-C  --ssh-flag=-oPort=2222 --internal-ip",
        "CREATE_FLAGS": "--internal-ips --service-account=a@b.c --labels=a=b --reservation=r "
        "--data-disk=source=projects/p/zones/z/disks/d,mode=read-only",
    }
    more = {name: f"--flags-file=f {value}" for name, value in flags.items()}
    given = {"CLOUDSDK_ACTIVE_CONFIG_NAME": "work", "DISTRIBUTED": "--coordinator 10.0.0.1:80"}
    lines = [f"{name}={value}\n" for name, value in {**flags, **given}.items()]
    (here.directory / "run.env").write_text("".join(lines))
    for options, settings in (([f"--settings={here.directory}/run.env"], {}), ([], more)):
        done = here.tpu("run", *_RUN, *options, "--dry-run", **settings)
        assert done.returncode == 0, done.stderr
        assert all(word in done.stdout for value in flags.values() for word in value.split())
        assert done.stdout.count("--flags-file=f") >= 2 * bool(settings)


def test_no_word_of_a_run_is_executed_by_a_host(cloud):
    """A word is quoted: it arrives as it was written."""
    here = cloud(number_of_hosts=1, environment={"STAGE_PAUSE_SECONDS": "0"})
    mark = here.directory / "mark"
    words = [v.replace("MARK", str(mark)) for v in (*hostile.COMMANDS, *hostile.ODD_NAMES[2:])]
    done = here.tpu(
        "run", "--config=tiny_docs_cpu", f"--corpus=c=/c/$(touch {mark})", "--workdir=gs://b/run",
        "--", *words, LIBTPU_FLAGS=words[0], DOCTOR="0",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not mark.exists() and not list(here.directory.rglob("mark"))
    kept = (here.home() / "bert-jax/run.env").read_text()
    script = 'source /dev/stdin; printf "%s\\0" "${ARGUMENTS[@]}"'
    told = subprocess.run(["bash", "-c", script], input=kept, capture_output=True, text=True)
    assert told.stdout.split("\0")[-len(words) - 1 : -1] == words


def test_secrets_reach_the_trainer_and_no_log(cloud):
    here = cloud(number_of_hosts=1)
    text = "# mine\nWANDB_API_KEY=s3cr3t$(touch x)\nWANDB_MODE=off"
    (here.directory / "my.env").write_text(text)
    done = here.tpu("run", *_RUN, SECRETS=str(here.directory / "my.env"))
    assert done.returncode == 0, done.stderr
    place = here.home() / "bert-jax"
    for name in ("run.env", "src/run/secrets.env"):
        assert (place / name).stat().st_mode & 0o777 == 0o600
    assert place.stat().st_mode & 0o777 == 0o700
    script = """PLACE=$0; eval "$(sed -n '/^secrets()/,/^}/p' "$1")"
        secrets; printenv WANDB_API_KEY"""
    words = ["bash", "-c", script, place, ROOT / "launch/worker.sh"]
    told = subprocess.run(words, capture_output=True, text=True)
    assert told.stdout == "s3cr3t$(touch x)\n", told
    files = [path for path in here.directory.rglob("*") if path.is_file()]
    have_it = {path.name for path in files if b"s3cr3t" in path.read_bytes()}
    assert have_it == {"secrets.env", "my.env"}
    assert "s3cr3t" not in done.stdout + done.stderr
    # An editor on Windows, and quotes, as a file of settings may have them.
    with_them = '\ufeffWANDB_API_KEY="s3cr3t"\r\n\r\n# mine\r\n'
    (here.directory / "my.env").write_text(with_them, newline="", encoding="utf-8")
    assert here.tpu("setup", SECRETS=str(here.directory / "my.env")).returncode == 24
    here.change(states=["ACTIVE"])
    assert here.tpu("setup", SECRETS=str(here.directory / "my.env")).returncode == 0
    told = subprocess.run(words, capture_output=True, text=True)
    assert told.stdout == "s3cr3t\n", told
    (here.directory / "my.env").write_text("touch x\n")
    assert here.tpu("status", SECRETS=str(here.directory / "my.env")).returncode == 2
