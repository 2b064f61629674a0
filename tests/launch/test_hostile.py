"""Values from outside: of a bucket, a setting, a cloud's answer. None is executed."""

import contextlib
import re
import subprocess

import pytest

from tests import hostile
from tests.launch.cloud import ROOT, WHAT
from tests.limits import HUNG

_OUTSIDE = ROOT / "launch/lib/outside.sh"


def test_a_sign_of_life_is_not_executed_by_the_launcher(cloud):
    here = cloud(number_of_hosts=1)
    mark = here.directory / "pwned"
    (run,) = set(re.findall(r"start ([0-9a-f]{12})", here.tpu("run", *WHAT, "--dry-run").stdout))
    for value in ("ZONES[$(touch${IFS}MARK)]", "\0" * 3000, "x" * 3_000_000):
        here.store("b/run/launched_alive", f"{run} {value} then\n".replace("MARK", str(mark)))
        says = "launched_alive does not say how long"
        here.tpu("run", *WHAT, "--max-hours=1", code=20, says=says)
        assert not mark.exists() and here.commands() == []
    here.store("b/run/launched_alive", f"{run} 00060 then\n")
    here.tpu("run", *WHAT, "--max-hours=1", code=25)


def test_no_answer_of_the_cloud_is_executed(cloud):
    """Owner, type, zone and state are its words, and so is the place of a bucket."""
    here = cloud(number_of_hosts=1, location="a[$(touch${IFS}x)]")
    value = f"a[$(touch${{IFS}}{here.directory}/pwned)]"
    for state in ({"run": value}, {"type": value}, {"zone": value}, {"states": [value]}):
        here.change(**{"states": ["ACTIVE"], "current": "ACTIVE", "zone": ""} | state)
        process = here.start(here.launcher, "run", *here.options, *WHAT)
        # A state that nobody knows is waited for.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=3)
        process.kill()
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
_LED = [n for n in hostile.NAMES if n not in ("", "a/", "x" * 256, "a\u2028b") and "\0" not in n]


@pytest.mark.parametrize(
    ("names", "prefix", "values", "said"),
    [
        ("START_MINUTES KEEP PROJECT ZONE NAME CAPACITY BERT_JAX_HOME VALID_UNTIL_DURATION", "x y;",
         (*hostile.COMMANDS, *hostile.NUMBERS), " error: "),
        ("TAIL MAX_HOURS END_MINUTES", "", (*hostile.COMMANDS[:6], "0x10", "2#1", "a[0]"),
         " error: "),
        ("CORPUS COMPILATION_CACHE", "gs://b/", (*_LED, "x?x=1", "a#1", "*"), " error: "),
        ("WORKDIR", "", ("gs://", "gs:///x", "gs://b/../x", "s3://b/x", "http://h:80/x"),
         " error: "),
        ("CORPUS WORKDIR COMPILATION_CACHE", "gs://b/",
         ("run", "a b/c", "corpora/books/", "..x"), " took "),
        ("WORKDIR COMPILATION_CACHE", "gs://b/", ["$(date)"], " took "),
    ],
)  # fmt: skip
def test_no_setting_is_executed(tmp_path, names, prefix, values, said):
    """Each is refused in one line before anything counts with it or goes there, or harmless."""
    words = [v.replace("MARK", str(tmp_path / "mark"))[:10_000] for v in values if "\0" not in v]
    done = subprocess.run(
        ["bash", "-c", _CHECKS, "-", ROOT, names, prefix, *words],
        capture_output=True, text=True, cwd=tmp_path, timeout=HUNG,
    )  # fmt: skip
    assert done.stderr == "" and [p.name for p in tmp_path.iterdir()] == ["err"]
    lines = done.stdout.splitlines()
    assert len(lines) == len(names.split()) * len(values)
    assert all(said in line for line in lines), lines


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
        done = here.tpu("run", *WHAT, *options, "--dry-run", **settings)
        assert all(word in done.stdout for value in flags.values() for word in value.split())
        assert done.stdout.count("--flags-file=f") >= 2 * bool(settings)


def test_no_word_of_a_run_is_executed_by_a_host(cloud):
    """A word is quoted: it arrives as it was written."""
    here = cloud(number_of_hosts=1, environment={"STAGE_PAUSE_SECONDS": "0"})
    mark = here.directory / "mark"
    words = [v.replace("MARK", str(mark)) for v in (*hostile.COMMANDS, *hostile.ODD_NAMES[2:])]
    what = (WHAT[0], f"--corpus=c=/c/$(touch {mark})", WHAT[2])
    here.tpu("run", *what, "--", *words, LIBTPU_FLAGS=words[0], DOCTOR="0")
    assert not mark.exists() and not list(here.directory.rglob("mark"))
    kept = (here.home() / "bert-jax/run.env").read_text()
    script = 'source /dev/stdin; printf "%s\\0" "${ARGUMENTS[@]}"'
    told = subprocess.run(["bash", "-c", script], input=kept, capture_output=True, text=True)
    assert told.stdout.split("\0")[-len(words) - 1 : -1] == words


def test_secrets_reach_the_trainer_and_no_log(cloud):
    here = cloud(number_of_hosts=1)
    (here.directory / "my.env").write_text("# mine\nWANDB_API_KEY=s3cr3t$(touch x)\nWANDB_MODE=off")
    given = {"SECRETS": str(here.directory / "my.env")}
    done = here.tpu("run", *WHAT, **given)
    place = here.home() / "bert-jax"
    for name in ("run.env", "src/run/secrets.env"):
        assert (place / name).stat().st_mode & 0o777 == 0o600
    assert place.stat().st_mode & 0o777 == 0o700
    script = """PLACE=$0; eval "$(sed -n '/^secrets()/,/^}/p' "$1")"
        secrets; printenv WANDB_API_KEY"""
    words = ["bash", "-c", script, place, ROOT / "launch/worker.sh"]
    assert subprocess.check_output(words, text=True) == "s3cr3t$(touch x)\n"
    files = [path for path in here.directory.rglob("*") if path.is_file()]
    have_it = {path.name for path in files if b"s3cr3t" in path.read_bytes()}
    assert have_it == {"secrets.env", "my.env"}
    assert "s3cr3t" not in done.stdout + done.stderr
    # An editor on Windows, and quotes, as a file of settings may have them.
    with_them = '\ufeffWANDB_API_KEY="s3cr3t"\r\n\r\n# mine\r\n'
    (here.directory / "my.env").write_text(with_them, newline="", encoding="utf-8")
    here.change(states=["ACTIVE"])
    here.tpu("setup", **given)
    assert subprocess.check_output(words, text=True) == "s3cr3t\n"
    (here.directory / "my.env").write_text("touch x\n")
    here.tpu("status", **given, code=2)
