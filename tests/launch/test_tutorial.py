"""The launch commands of docs/tutorials/tpu.md run as written, on a fake cloud."""

from tests.launch.cloud import wait_until
from tests.limits import HUNG
from tests.pages import TUTORIALS, commands_of

_LINES = [
    # The fake cloud has one name.
    line.replace("--name=mine", "--name=pod").replace("--name=base", "--name=pod")
    for line in commands_of(TUTORIALS / "tpu.md")
    if line.startswith(("cat >run.txt", "launch/tpu"))
]
_OPTIONS, _ONE, _STATUS, _LOGS, _MANY, _DELETE = _LINES


def words(line: str) -> tuple[str, ...]:
    return "bash", "-ec", f"cd checkout\n{line}"


def test_the_commands_of_the_tutorial(cloud):
    here = cloud(number_of_hosts=1, devices=8, trainer=["waits"], doctor=[0])
    corpus = '{"files": {"train.bin": {"bytes": 3}}}'
    for name, text in (("corpus.json", corpus), ("train.bin", "abc")):
        here.store(f"my-bucket/corpora/mine/{name}", text)
    here.run(*words(_OPTIONS))
    running = here.start(*words(_ONE))
    wait_until(lambda: len(here.state()["starts"]) == 1, running)
    assert here.state()["type"] == "v5litepod-8"
    assert here.run(*words(_STATUS)).stdout.count(" running") == 1
    assert here.run(*words(_LOGS)).stdout.count("pretrain modern_small ") == 1
    (here.directory / "done").touch()
    out, err = running.communicate(timeout=HUNG)
    assert running.returncode == 0 and "pretrain modern_small " in out, err
    assert here.commands() == ["create", "scp", "scp", "setup", "stage", "start", "delete"]
    here.run(*words(_DELETE))
    assert here.state()["states"] == []
    # The larger run differs in its options alone.
    assert (
        "(v5litepod-64, us-west4-a): absent"
        in here.run(*words(_MANY.replace("launch/tpu run", "launch/tpu status"))).stderr
    )
