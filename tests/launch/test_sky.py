"""SkyPilot: the task, against what its schema allows, and its script with fake programs."""

import os
import re
import subprocess
import time

import pytest

from tests.launch.cloud import ROOT, in_shell
from tests.limits import HUNG

_FILE = ROOT / "launch" / "sky.yaml"
_ENVS = {"CORPUS": "gs://b/corpus", "WORKDIR": "gs://b/run"}
# What sky/utils/schemas.py of SkyPilot 0.14.1 (get_task_schema, get_resources_schema) allows of the
# fields that are used here.
_FIELDS = {"name", "resources", "workdir", "envs", "setup", "run"}
_RESOURCES = {"accelerators", "accelerator_args", "use_spot", "any_of", "autostop", "job_recovery"}
_RECOVERY = {"strategy", "max_restarts_on_errors", "recover_on_exit_codes"}


@pytest.fixture(scope="module")
def task() -> dict:
    return pytest.importorskip("yaml").safe_load(_FILE.read_text())


def test_the_task(task):
    resources = task["resources"]
    assert task.keys() == _FIELDS and resources.keys() <= _RESOURCES
    recovery = resources["job_recovery"]
    assert recovery.keys() == _RECOVERY
    assert recovery["recover_on_exit_codes"] == [42, 75, 200]
    assert resources["use_spot"] and "gcp_queued_resource" not in _FILE.read_text()
    regions = {place["infra"].split("/")[1] for place in resources["any_of"]}
    assert len(regions) == 1, "checkpoints would cross regions"
    # The machine, its image and the flags of its compiler go together.
    name = resources["accelerators"].removeprefix("tpu-")
    host = (task["envs"]["GENERATION"], resources["accelerator_args"]["runtime_version"])
    assert in_shell(f'accelerator {name}; echo "$GENERATION $RUNTIME"').split() == [*host]
    # What has no default must be given: the cap is among them.
    required = {name for name, value in task["envs"].items() if value is None}
    assert required == {*_ENVS, "UNTIL"}


def test_skypilot_takes_it(task):
    sky = pytest.importorskip("sky")
    made = sky.Task.from_yaml_config(dict(task), env_overrides=[*_ENVS.items(), ("UNTIL", "1")])
    for resources in made.resources:
        codes = resources.job_recovery["recover_on_exit_codes"]
        assert resources.use_spot and codes == [42, 75, 200]
        assert list(resources.accelerators) == [task["resources"]["accelerators"]]
    with pytest.raises(ValueError, match="UNTIL"):
        sky.Task.from_yaml_config(dict(task), env_overrides=list(_ENVS.items()))


@pytest.fixture
def run(task, tmp_path):
    """Runs the script of the task with a trainer that does as `trainer` says."""
    programs = {
        "home/bert-jax/venv/bin/bert-jax": 'echo "$@" >"$HOME/arguments"\neval "$TRAINER"',
        "bin/sudo": "exit 0",
        "bin/gcloud": "exit 1",
    }
    for name, text in programs.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
    # A corpus that is staged already, and the rest of the checkout.
    checkout = tmp_path / "checkout" / "launch"
    checkout.mkdir(parents=True)
    for name in ("lib", "flags.tsv", "accelerators.tsv"):
        (checkout / name).symlink_to(ROOT / "launch" / name)

    def call(trainer: str, *, seconds: float = 60, stage: str = "exit 0", **envs: str):
        (checkout / "worker.sh").write_text(f'echo "$@" >"$HOME/staged"\n{stage}\n')
        given = {name: str(value) for name, value in task["envs"].items() if value is not None}
        env = given | _ENVS | envs | {
            "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
            "HOME": str(tmp_path / "home"),
            "UNTIL": str(int(time.time() + seconds)),
            "TRAINER": trainer,
        }  # fmt: skip
        return subprocess.run(
            ["bash", "-c", task["run"]],
            cwd=checkout.parent,
            env=env,
            capture_output=True,
            text=True,
            timeout=HUNG,
        )

    return call


@pytest.mark.parametrize("code", [0, 2, 7, 42, 75, 134, 200])
def test_the_trainer_s_code_is_the_task_s(run, tmp_path, code):
    done = run(f'echo "$LIBTPU_INIT_ARGS" "$JAX_COMPILATION_CACHE_DIR"; exit {code}')
    assert done.returncode == code, done.stderr
    # The flags of the compiler are those of launch/tpu.
    assert re.search(r"^--xla_tpu\S+ .*gs://b/run/xla_cache$", done.stdout.strip())
    staged = (tmp_path / "home" / "staged").read_text().split()
    assert staged[:2] == ["stage", "gs://b/corpus"]
    arguments = (tmp_path / "home" / "arguments").read_text().split()
    assert arguments[:2] == ["pretrain", "bert_large_v5e"]
    assert arguments[arguments.index("--corpus") + 1] == staged[2]
    assert arguments[-3:] == ["--workdir", "gs://b/run", "--distributed"]
    assert run("exit 0", stage="exit 4").returncode == 4


def test_several_corpora_are_staged_and_trained_on(run, tmp_path):
    assert run("exit 0", CORPUS="gs://b/wiki,code=gs://c/x").returncode == 0
    home = tmp_path / "home"
    folders = [f"{home}/bert-jax/corpus/{name}" for name in ("wiki", "code")]
    staged = (home / "staged").read_text().split()
    assert staged == ["stage", "gs://b/wiki", folders[0], "gs://c/x", folders[1]]
    arguments = (home / "arguments").read_text().split()
    assert arguments[2:6] == ["--corpus", folders[0], "--corpus", folders[1]]


def test_hours_that_are_spent_end_the_job_for_good(run, tmp_path):
    """No other machine is asked for, be they spent in training or before."""
    done = run("exec sleep 60", seconds=2)
    assert done.returncode == 0 and "the hours are spent" in done.stdout
    (tmp_path / "home" / "staged").unlink()
    done = run("exit 7", seconds=-1)
    assert done.returncode == 0 and "the hours are spent" in done.stdout
    assert not (tmp_path / "home" / "staged").exists()
