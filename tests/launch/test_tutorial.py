"""The launch commands of docs/tutorials/tpu.md run as written, on a fake cloud."""

import pytest

from tests.launch.cloud import wait_until
from tests.limits import HUNG
from tests.pages import TUTORIALS, commands_of

_LINES = [
    # The fake cloud knows one name.
    line.replace("--name=mine", "--name=pod").replace("--name=base", "--name=pod")
    for line in commands_of(TUTORIALS / "tpu.md")
    if line.startswith(("cat >run.txt", "launch/tpu"))
]
_OPTIONS, _ONE, _STATUS, _LOGS, _MANY, _DELETE = _LINES


def words(line: str) -> tuple[str, ...]:
    return "bash", "-ec", f"cd checkout\n{line}"


@pytest.mark.parametrize(
    ("run", "hosts", "devices", "config"),
    [(_ONE, 1, 8, "modern_small"), (_MANY, 16, 4, "modern_base")],
    ids=["v5litepod-8", "v5litepod-64"],
)
def test_the_commands_of_the_tutorial(cloud, run, hosts, devices, config):
    here = cloud(
        number_of_hosts=hosts, devices=devices, trainer=["waits"], doctor=[0] * hosts,
    )  # fmt: skip
    corpus = '{"files": {"train.bin": {"bytes": 3}}}'
    for name, text in (("corpus.json", corpus), ("train.bin", "abc")):
        here.store(f"my-bucket/corpora/mine/{name}", text)
    here.run(*words(_OPTIONS))
    running = here.start(*words(run))
    wait_until(lambda: len(here.state()["starts"]) == hosts, running)
    assert here.state()["type"] == f"v5litepod-{hosts * devices}"
    if run == _ONE:
        assert here.run(*words(_STATUS)).stdout.count(" running") == hosts
        assert here.run(*words(_LOGS)).stdout.count(f"pretrain {config} ") == hosts
    (here.directory / "done").touch()
    out, said = running.communicate(timeout=HUNG)
    assert running.returncode == 0 and f"pretrain {config} " in out, said
    assert here.commands() == ["create", "scp", "scp", "setup", "stage", "start", "delete"]
    here.run(*words(_DELETE))
    assert here.state()["states"] == []
