"""SkyPilot: the task, against what its schema allows, and its script with fake programs."""

import os
import re
import subprocess
import time

import pytest

from tests.launch.cloud import ROOT, in_shell
from tests.launch.fake_programs import program
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
    told = '#!/bin/bash\necho "$@" >"$HOME/arguments"\neval "$TRAINER"\n'
    program(tmp_path / "home/bert-jax/venv/bin/bert-jax", told)
    program(tmp_path / "bin/sudo", "#!/bin/bash\n")
    checkout = tmp_path / "checkout" / "launch"
    checkout.mkdir(parents=True)
    for name in ("lib", "flags.tsv", "accelerators.tsv"):
        (checkout / name).symlink_to(ROOT / "launch" / name)

    def call(trainer: str, *, seconds: float = 60, stage: str = "exit 0", **envs: str):
        (checkout / "worker.sh").write_text(f'echo "$@" >"$HOME/staged"\n{stage}\n')
        given = {name: str(value) for name, value in task["envs"].items() if value is not None}
        machine = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": str(tmp_path / "home")}
        until = {"UNTIL": str(int(time.time() + seconds)), "TRAINER": trainer}
        return subprocess.run(
            ["bash", "-c", task["run"]], cwd=checkout.parent,
            env=given | _ENVS | envs | machine | until,
            capture_output=True, text=True, timeout=HUNG,
        )  # fmt: skip

    return call


@pytest.mark.parametrize("code", [0, 2, 7, 42, 75, 134, 200])
def test_the_trainer_s_code_is_the_task_s(run, tmp_path, code):
    trainer = f'echo "$LIBTPU_INIT_ARGS" "$JAX_COMPILATION_CACHE_DIR"; exit {code}'
    done = run(trainer, CORPUS="gs://b/wiki,code=gs://c/x")
    assert done.returncode == code, done.stderr
    # The flags of the compiler are those of launch/tpu.
    assert re.search(r"^--xla_tpu\S+ .*gs://b/run/xla_cache$", done.stdout.strip())
    home = tmp_path / "home"
    wiki, other = (f"{home}/bert-jax/corpus/{name}" for name in ("wiki", "code"))
    staged = (home / "staged").read_text().split()
    assert staged == ["stage", "gs://b/wiki", wiki, "gs://c/x", other]
    what = ["pretrain", "bert_large_64core", "--corpus", wiki, "--corpus", other]
    where = ["--workdir", "gs://b/run", "--distributed"]
    assert (home / "arguments").read_text().split() == what + where
    assert run("exit 0", stage="exit 4").returncode == 4


def test_hours_that_are_spent_end_the_job_for_good(run, tmp_path):
    """No other machine is asked for, be they spent in training or before."""
    done = run("exec sleep 60", seconds=2)
    assert done.returncode == 0 and "the hours are spent" in done.stdout
    (tmp_path / "home" / "staged").unlink()
    done = run("exit 7", seconds=-1)
    assert done.returncode == 0 and "the hours are spent" in done.stdout
    assert not (tmp_path / "home" / "staged").exists()
    done = run("exit 7", seconds=2, stage="sleep 60")
    assert done.returncode == 0 and "the hours are spent" in done.stdout
