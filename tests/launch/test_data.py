"""The tables, the lock, and the files for SkyPilot and JobSet."""

import csv
import math
import os
import re
import subprocess
import time
import tomllib

import pytest

from bert_jax_lab.planning import topologies
from tests.launch.cloud import ROOT, in_shell
from tests.launch.fake_programs import program
from tests.limits import HUNG

_LAUNCH = ROOT / "launch"
# The numbers in the names of types, from the pages that launch/accelerators.tsv cites.
_TYPES = {
    "v2": "8 32 128 256 512",
    "v3": "8 32 64 128 256 512 1024 2048",
    "v4": "8 16 32 64 128 256 512 1024",
    "v5p": "8 16 32 64 128 256 512 1024",
    "v5litepod": "1 4 8 16 32 64 128 256",
    "v6e": "1 4 8 16 32 64 128 256",
    "tpu7x": "8 16 32 64 128 256 512",
}


def rows_of(name: str) -> list[dict[str, str]]:
    lines = [line for line in (_LAUNCH / name).read_text().splitlines() if line[:1] != "#"]
    return list(csv.DictReader(lines, delimiter="\t"))


def test_accelerators_are_those_of_the_plans():
    rows = [line.split("\t") for line in in_shell("accelerators").splitlines()]
    types = [f"{name}-{number}" for name, all_ in _TYPES.items() for number in all_.split()]
    assert sorted(row[0] for row in rows) == sorted(types)
    for kind, generation, _, hosts, chips, devices, bounds, shape, price in rows:
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


def test_the_lock_has_the_packages_of_a_host():
    text = (ROOT / "requirements-tpu.lock").read_text()
    pins = dict(re.findall(r"^([\w.-]+)(?:\[\w+\])?==([^ ;]+)", text, re.M))
    assert (
        pins["jax"] == pins["jaxlib"] and {"libtpu", "tensorflow-cpu", "hatchling"} <= pins.keys()
    )
    assert not {"tensorflow", "tensorflow-tpu", "bert-jax"} & pins.keys()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for wanted in (project["dependencies"], extras["tpu"], extras["gcs"], extras["wandb"]):
        names = {re.split(r"[^\w-]", requirement)[0] for requirement in wanted}
        assert names - {"bert-jax", "tensorflow"} <= pins.keys()
    packages = re.split(r"\n(?=[a-z])", text)[1:]
    assert len(packages) == len(pins)
    assert all("--hash=sha256:" in package for package in packages)


# --- JobSet --------------------------------------------------------------------------------------


def test_the_jobset_is_one_slice_that_plan_knows():
    """The host fields agree with launch/accelerators.tsv, and every value to edit is marked."""
    yaml = pytest.importorskip("yaml")
    text = (_LAUNCH / "jobset.yaml").read_text()
    jobset = yaml.safe_load(text)
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = job["template"]["spec"]
    selector, (trainer,) = pod["nodeSelector"], pod["containers"]
    topology = selector["cloud.google.com/gke-tpu-topology"]
    (row,) = [r for r in rows_of("accelerators.tsv")
              if r["gke_accelerator"] == selector["cloud.google.com/gke-tpu-accelerator"]
              and topology in r["topologies"].split()]  # fmt: skip
    chips = math.prod(map(int, topology.split("x")))
    of_host = math.prod(map(int, row["bounds"].split(",")))
    assert trainer["resources"]["limits"]["google.com/tpu"] == of_host
    assert job["parallelism"] == job["completions"] == chips // of_host
    (flags,) = [e["value"] for e in trainer["env"] if e["name"] == "LIBTPU_INIT_ARGS"]
    assert flags == in_shell(f"libtpu_flags {row['generation']}") or flags.startswith("--xla_")
    marked = [line for line in text.splitlines() if "# edit" in line]
    assert len(marked) >= 9 and all(
        "my-" not in line for line in text.splitlines() if line not in marked
    )


# --- SkyPilot ------------------------------------------------------------------------------------

_ENVS = {"CORPUS": "gs://b/corpus", "WORKDIR": "gs://b/run"}
# The fields that sky.yaml uses; the schemas of SkyPilot 0.14.1 (sky/utils/schemas.py) allow them.
_FIELDS = {"name", "resources", "workdir", "envs", "setup", "run"}
_RESOURCES = {"accelerators", "accelerator_args", "use_spot", "any_of", "autostop", "job_recovery"}
_RECOVERY = {"strategy", "max_restarts_on_errors", "recover_on_exit_codes"}


@pytest.fixture(scope="module")
def task() -> dict:
    return pytest.importorskip("yaml").safe_load((_LAUNCH / "sky.yaml").read_text())


def test_the_skypilot_task(task):
    resources = task["resources"]
    assert task.keys() == _FIELDS and resources.keys() <= _RESOURCES
    assert resources["job_recovery"].keys() == _RECOVERY and resources["use_spot"]
    regions = {place["infra"].split("/")[1] for place in resources["any_of"]}
    assert len(regions) == 1, "checkpoints would cross regions"
    # The machine, its image and the flags of its compiler agree.
    name = resources["accelerators"].removeprefix("tpu-")
    host = (task["envs"]["GENERATION"], resources["accelerator_args"]["runtime_version"])
    assert in_shell(f'accelerator {name}; echo "$GENERATION $RUNTIME"').split() == [*host]
    # Values without a default are required, so the limit is required.
    required = {name for name, value in task["envs"].items() if value is None}
    assert required == {*_ENVS, "UNTIL"}


@pytest.fixture
def run(task, tmp_path):
    """Runs the script of the task with a trainer that executes `trainer`."""
    told = '#!/bin/bash\necho "$@" >"$HOME/arguments"\neval "$TRAINER"\n'
    program(tmp_path / "home/bert-jax/venv/bin/bert-jax", told)
    program(tmp_path / "bin/sudo", "#!/bin/bash\n")
    program(tmp_path / "bin/gcloud", '#!/bin/bash\necho "$@" >>"$HOME/staged"\neval "$STAGE"\n')
    (tmp_path / "launch").symlink_to(_LAUNCH)

    def call(trainer: str, *, seconds: float = 60, stage: str = "exit 0", **envs: str):
        given = {name: str(value) for name, value in task["envs"].items() if value is not None}
        machine = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": str(tmp_path / "home")}
        until = {"UNTIL": str(int(time.time() + seconds)), "TRAINER": trainer, "STAGE": stage}
        for name in ("wiki", "code", "corpus"):  # the copy by gcloud
            place = tmp_path / f"home/bert-jax/corpus/{name}/corpus.json.new"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        return subprocess.run(
            ["bash", "-c", task["run"]], cwd=tmp_path, env=given | _ENVS | envs | machine | until,
            capture_output=True, text=True, timeout=HUNG,
        )  # fmt: skip

    return call


@pytest.mark.parametrize("code", [0, 2, 42, 134])
def test_the_code_of_the_trainer_is_the_code_of_the_task(run, tmp_path, code):
    trainer = f'echo "$LIBTPU_INIT_ARGS" "$JAX_COMPILATION_CACHE_DIR"; exit {code}'
    done = run(trainer, CORPUS="gs://b/wiki code=gs://c/x")
    assert done.returncode == code, done.stderr
    assert re.search(r"^--xla_tpu\S+ .*gs://b/run/xla_cache$", done.stdout.strip(), re.M)
    home = tmp_path / "home"
    wiki, other = (f"{home}/bert-jax/corpus/{name}" for name in ("wiki", "code"))
    staged = (home / "staged").read_text()
    assert f"gs://b/wiki {wiki}\n" in staged and f"gs://c/x {other}\n" in staged
    what = ["pretrain", "bert_large_64core", "--corpus", wiki, "--corpus", other]
    where = ["--workdir", "gs://b/run", "--distributed"]
    assert (home / "arguments").read_text().split() == what + where
    assert run("exit 0", stage="exit 1").returncode == 4


def test_the_job_ends_for_good_at_its_limit(run, tmp_path):
    """Another code than 0 would request another machine."""
    done = run("exec sleep 60", seconds=3)
    assert done.returncode == 0 and "UNTIL has passed" in done.stdout
    (tmp_path / "home/staged").unlink()
    done = run("exit 7", seconds=-1)
    assert done.returncode == 0 and "UNTIL has passed" in done.stdout
    assert not (tmp_path / "home/staged").exists()
    done = run("exit 7", seconds=2, stage="sleep 60")
    assert done.returncode == 0 and "UNTIL has passed" in done.stdout
