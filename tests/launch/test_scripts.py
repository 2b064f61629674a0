"""Without a life cycle: dry runs, wrong options, single commands, tables, the page."""

import csv
import getpass
import math
import re
import shlex
import tomllib

import pytest

from bert_jax_lab.planning import topologies
from tests.launch.cloud import ROOT, STAGED, in_shell, wait_until

_LAUNCH = ROOT / "launch"


def rows_of(name: str) -> list[dict[str, str]]:
    lines = [line for line in (_LAUNCH / name).read_text().splitlines() if line[:1] != "#"]
    return list(csv.DictReader(lines, delimiter="\t"))


def test_a_dry_run_prints_every_command_and_runs_none(cloud):
    """They are those that the real thing runs, in the same order."""
    here = cloud()
    words = ("run", *STAGED, "--capacity=spot")
    dry = here.tpu(*words, "--dry-run")
    assert here.calls() == []
    assert all(line.startswith("+ ") for line in dry.stdout.splitlines())
    assert all(line.startswith("dry run: ") for line in dry.stderr.splitlines())
    commands = [shlex.split(line[2:]) for line in dry.stdout.splitlines()]
    assert ["tar", "-czf"] in [words[:2] for words in commands]
    here.store("b/corpus/corpus.json", "{}")
    here.tpu(*words)

    def known(argv: list[str]) -> list[str]:
        return [re.sub(r"\S*/tmp\.\w+/", "", word) for word in argv if not word.startswith("--ssh")]

    ran = iter([known(call["argv"]) for call in here.calls() if call["program"] == "gcloud"])
    for words in (known(c[c.index("gcloud") + 1 :]) for c in commands if "gcloud" in c):
        assert words in ran, words  # after the one before
    assert here.commands() == ["create", "scp", "setup", "stage", "start", "delete"]


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_is_printed_wherever_it_is_asked_for(cloud, option):
    here = cloud()
    for words, said in (
        ((here.launcher, "run"), "usage: launch/tpu COMMAND"),
        ((here.launcher,), "usage: launch/tpu COMMAND"),
        ((_LAUNCH / "gke/render",), "Prints the JobSet of a run"),
    ):
        done = here.run(*words, option)
        assert done.stderr == "" and done.stdout.startswith(said)
        assert "--config CONFIG" in done.stdout and "shellcheck" not in done.stdout


def test_every_command_on_the_way_of_a_run(machines):
    """By hand, on two hosts, and then by `run`: over real ssh where the SDK and sshd are."""
    here = machines(trainer=["waits"])
    here.store("b/corpus/corpus.json", '{"files": {"train.bin": {"bytes": 3}}}')
    here.store("b/corpus/train.bin", "abc")
    here.store("b/corpus/tokenizer/vocab.txt", "[PAD]")

    def tpu(command: str, *options: str, **expected):
        return here.tpu(command, *STAGED, *options, **expected)

    for command in ("create", "setup", "stage", "start"):
        tpu(command)
    for number in range(2):
        staged = here.home(number) / "bert-jax/corpus/corpus"
        assert (staged / "train.bin").read_text() == "abc" and (staged / "corpus.json").is_file()
    status = tpu("status", says="ready")
    assert "trainer on pod-w-0 running\ntrainer on pod-w-1 running\n" in status.stdout
    tpu("setup", code=23, says="pod-w-0 34")
    # The two hosts have only just begun to write.
    wait_until(lambda: tpu("logs", "--tail=5").stdout.count("pretrain bert_large") == 2)
    assert tpu("stop").stdout.count(": stopped, exit code 42") == 2
    assert "trainer on pod-w-1 42" in tpu("status").stdout
    (here.directory / "done").touch()
    done = tpu("run", says="pod is gone")
    assert "is not known" not in done.stderr and "could not be" not in done.stderr
    assert ": exit code 0" in done.stdout
    tpu("run", says="is done, says")
    tpu("delete", says="there is no pod in z or in another zone")

    # What is left of it is in the bucket.
    results = here.directory / "results"
    fetch = ("fetch", f"--output={results}")
    empty = tpu(*fetch, "--workdir=gs://b/none", code=2, says="gs://b/none has nothing")
    assert empty.stderr.count("\n") == 1 and not results.exists()
    for name in ("metrics.jsonl", "checkpoints/10/array"):
        here.store(f"b/run/{name}", "1")
    tpu(*fetch)
    assert {p.name for p in results.rglob("*") if p.is_file()} == {
        "metrics.jsonl", "pod-w-0.log", "pod-w-1.log", "launched_alive", "launched_and_done",
        "launched_checkout",
    }  # fmt: skip
    assert "exit code 0" in (results / "logs/pod-w-1.log").read_text()
    assert (results / "launched_checkout").read_text().split()[1] in done.stdout
    tpu(*fetch, "--checkpoints")
    assert (results / "checkpoints/10/array").exists()
    if here.api is None:
        assert here.commands().count("create") == here.commands().count("delete") == 1
        return
    # gcloud has made a key, once, and the node's metadata has let it in.
    key = (here.directory / "home/.ssh/google_compute_engine.pub").read_text().split()
    (posted, patched, deleted) = here.api.changes()
    assert [posted[0], patched[0], deleted[0]] == ["POST", "PATCH", "DELETE"]
    assert posted[2]["tpu"]["nodeSpec"][0]["node"]["acceleratorType"] == "v4-16"
    # The startup script is still in the metadata, for the next boot.
    assert patched[2]["metadata"]["startup-script"].startswith("#!/usr/bin/env bash\nTPU=")
    user, _, line = patched[2]["metadata"]["ssh-keys"].strip().partition(":")
    assert line.split() == [*key[:2], user] and user == getpass.getuser()
    assert "/nodes/pod?" in patched[1] and "/queuedResources/pod?" in deleted[1]


# --- data ----------------------------------------------------------------------------------------


# The number in each type's name, from the pages that launch/accelerators.tsv names.
_TYPES = {
    "v2": "8 32 128 256 512",
    "v3": "8 32 64 128 256 512 1024 2048",
    "v4": "8 16 32 64 128 256 512 1024",
    "v5p": "8 16 32 64 128 256 512 1024",
    "v5litepod": "1 4 8 16 32 64 128 256",
    "v6e": "1 4 8 16 32 64 128 256",
    "tpu7x": "8 16 32 64 128 256 512",
}


def test_accelerators_are_those_of_the_plans():
    rows = [line.split("\t") for line in in_shell("accelerators").splitlines()]
    types = [f"{name}-{number}" for name, all_ in _TYPES.items() for number in all_.split()]
    assert sorted(row[0] for row in rows) == sorted(types)
    for kind, generation, _, _, hosts, chips, devices, bounds, shape, _, price in rows:
        known = topologies.parse(f"{generation}:{shape}")
        assert int(hosts) == known.hosts and int(hosts) * int(chips) == known.chips, kind
        assert int(hosts) * int(devices) == known.devices, kind
        assert math.prod(map(int, bounds.split(","))) == int(chips), kind
        assert price == "-" or float(price) == known.chip.dollars_per_chip_hour, kind
        counted = 1 if generation in ("v5e", "v6e") else 2
        assert int(kind.rpartition("-")[2]) == counted * known.chips, kind


def test_flags_name_known_generations_once():
    generations = {row["generation"] for row in rows_of("accelerators.tsv")}
    rows = rows_of("flags.tsv")
    assert all(re.fullmatch(r"--xla_\w+=\S+", row["flag"]) and row["reason"] for row in rows)
    seen = [(name, row["flag"]) for row in rows for name in row["generation"].split(",")]
    assert len(seen) == len(set(seen)) and {name for name, _ in seen} == generations


def test_the_lock_pins_by_hash_what_belongs_together():
    text = (ROOT / "requirements-tpu.lock").read_text()
    pins = dict(re.findall(r"^([\w.-]+)(?:\[\w+\])?==([^ ;]+)", text, re.M))
    assert pins["jax"] == pins["jaxlib"] and "libtpu" in pins
    assert "tensorflow-cpu" in pins and "hatchling" in pins
    assert not {"tensorflow", "tensorflow-tpu", "bert-jax"} & pins.keys()
    # What the extras of a launched run ask for: a workdir in a bucket, and the service of SECRETS.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra in ("tpu", "gcs", "wandb"):
        wanted = project["optional-dependencies"][extra]
        names = {re.split(r"[^\w-]", requirement)[0] for requirement in wanted}
        assert names - {"bert-jax"} <= pins.keys(), extra
    packages = re.split(r"\n(?=[a-z])", text)[1:]
    assert len(packages) == len(pins)
    assert all("--hash=sha256:" in package for package in packages)
    # The image has the uv of tpu_setup.sh.
    uv = re.findall(r"^UV_\w+=(\w\S+)", (ROOT / "tpu_setup.sh").read_text(), re.M)
    assert "uv=={} --hash=sha256:{}".format(*uv) in (_LAUNCH / "gke/Dockerfile").read_text()


def test_every_command_of_the_page_is_one(cloud):
    """Each `launch/tpu` line runs dry, with the settings of the page; the lines that are shown are
    some of those printed, in their order.
    """
    here = cloud()
    text = (ROOT / "docs/launch.md").read_text()
    (settings,) = re.findall(r"<<'END'\n(.*?)END", text, re.S)
    (here.directory / "run.env").write_text(settings)
    printed = {}
    for line in re.findall(r"^launch/tpu .+$", text, re.M):
        done = here.run(here.launcher, *shlex.split(line)[1:], "--dry-run")
        assert done.stdout.startswith("+ "), line
        printed[line] = re.sub(r"/\S*tmp\.\w+", "$SCRATCH", done.stdout).splitlines()
    assert len(printed) >= 5
    dry = printed["launch/tpu run --dry-run --settings run.env"]
    (shown,) = re.findall(r"^```\n(\+ gcloud.*?)^```", text, re.M | re.S)
    places = [dry.index(each) for each in shown.splitlines()]
    assert len(places) >= 4 and places == sorted(places)


def test_every_setting_that_the_scripts_read_is_known():
    """One that is not in the list would be refused in a file."""
    text = "".join(p.read_text() for p in [_LAUNCH / "tpu", *(_LAUNCH / "lib").glob("*.sh")])
    listed = re.findall(r"_SETTINGS=\(([^)]*)\)", text)
    known = " ".join(listed).split()
    read = set(re.findall(r"\$\{([A-Z][A-Z_]+):?-", text))
    own = {"BASH_SOURCE", "COMMAND", "POLL_SECONDS", "REPORT", "RETRY_SECONDS", "SSH_AUTH_SOCK",
           "WORDS", "XDG_STATE_HOME"}  # fmt: skip
    assert read - own <= set(known) and len(known) == len(set(known)) > 27
