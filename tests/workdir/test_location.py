"""Workdirs in a bucket: a real run, and a server on this machine that speaks as Cloud Storage."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_jax.__main__ import main
from bert_jax.config import CheckpointConfig, EvaluationConfig, PhaseConfig
from bert_jax.errors import StorageFailed, UsageError
from bert_jax.workdir import location
from tests import tiny_corpus
from tests.faulty_bucket import environment, serving
from tests.limits import HUNG

_CONFIG = tiny_corpus.tiny_config(
    phases=(PhaseConfig(sequence_length=32, steps=120, global_batch_size=16, max_predictions=5),),
    evaluation=EvaluationConfig(every_steps=60, num_examples=20, batch_size=16),
    checkpoint=CheckpointConfig(every_steps=20, keep_last=3),
)


@pytest.fixture(scope="module")
def cloud():
    """The environment in which the bucket `bucket` exists."""
    with serving() as address:
        yield {**os.environ, **environment(address), "JAX_NUM_CPU_DEVICES": "2"}


def run(cloud: dict, cache: Path, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "bert_jax", *words],
        env=cloud | {"BERT_JAX_CACHE": str(cache)},
        capture_output=True,
        text=True,
        timeout=HUNG,
    )


_IN_TURN = """
import contextlib, io, json, sys
from bert_jax.__main__ import main
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


def run_in_turn(cloud: dict, cache: Path, *commands: tuple[str, ...]) -> list[tuple[int, str, str]]:
    """Code, output and errors of each, all from one process: importing takes longer than they."""
    done = subprocess.run(
        [sys.executable, "-c", _IN_TURN, json.dumps(commands)],
        env=cloud | {"BERT_JAX_CACHE": str(cache)},
        capture_output=True,
        text=True,
        timeout=HUNG,
    )
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def numbers_of(rows: str) -> list[tuple]:
    found = [json.loads(line) for line in rows.splitlines()]
    return [(row["step"], row.get("split"), row["loss"]) for row in found]


def ask(cloud: dict, what: str, name: str) -> str:
    """Returns what Python says of `what`, where `path` is a place in the bucket."""
    code = f"import sys; from etils import epath; path = epath.Path(sys.argv[1])\n{what}"
    return subprocess.run(
        [sys.executable, "-c", code, f"gs://bucket/{name}"],
        env=cloud | {"EPATH_USE_TF": "false"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def read(cloud: dict, name: str) -> str:
    return ask(cloud, "sys.stdout.write(path.read_text())", name)


def listed(cloud: dict, name: str) -> list[str]:
    return ask(cloud, "for p in path.iterdir(): print(p.name)", name).split()


@pytest.mark.chaos
def test_a_run_in_a_bucket_goes_on_from_another_machine(tmp_path, cloud, corpus):
    """Killed after a save; its directory here is gone; the same command ends with the same rows."""
    config = str(tiny_corpus.write_config(tmp_path / "tiny.json", _CONFIG))
    command = ("pretrain", config, "--corpus", str(corpus), "--workdir", "gs://bucket/runs/tiny")
    here = str(tmp_path / "here")
    assert main(["pretrain", config, "--corpus", str(corpus), "--workdir", here]) == 0
    first = subprocess.Popen(
        [sys.executable, "-m", "bert_jax", *command],
        env=cloud | {"BERT_JAX_CACHE": str(tmp_path / "one")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + HUNG
    while True:
        assert first.poll() is None, first.communicate()[1]
        assert time.monotonic() < deadline
        logs = list((tmp_path / "one").glob("workdirs/*/events.jsonl"))
        if logs and '{"event": "save"' in logs[0].read_text():
            break
        time.sleep(0.02)
    first.kill()
    first.communicate()
    shutil.rmtree(tmp_path / "one")

    second = run(cloud, tmp_path / "two", *command)
    assert second.returncode == 0, second.stderr
    assert "resuming at step" in second.stderr
    rows = read(cloud, "runs/tiny/metrics.jsonl")
    assert numbers_of(rows) == numbers_of((tmp_path / "here" / "metrics.jsonl").read_text())
    (events,) = (tmp_path / "two").glob("workdirs/*/events.jsonl")
    assert read(cloud, "runs/tiny/events.jsonl") == events.read_text()

    # Older steps were removed there, too.
    steps = sorted(int(name) for name in listed(cloud, "runs/tiny/checkpoints"))
    assert steps == [80, 100, 120]

    # From a third machine: the newest step, or one by its address, and nothing is written there.
    there = ("gs://bucket/runs/tiny", "gs://bucket/runs/tiny/checkpoints/120")
    nowhere = ("gs://bucket/runs/none", "gs://bucket/runs/tiny/checkpoints/last")
    found = run_in_turn(
        cloud,
        tmp_path / "three",
        *(
            ("evaluate", "--json", "--checkpoint", at, "--corpus", str(corpus))
            for at in (*there, *nowhere)
        ),
        ("evaluate", "--json", there[0], "--like", there[1], "--corpus", str(corpus)),
    )
    code, out, err = found.pop()
    assert code == 0 and json.loads(out)["rows_of"] == there[1], err
    last = [r for r in map(json.loads, rows.splitlines()) if r.get("split")][-1]
    for code, out, err in found[:2]:
        assert code == 0, err
        assert json.loads(out)["step"] == 120
        assert json.loads(out)["mlm_loss"] == last["mlm_loss"]
    for place, (code, _, err) in zip(nowhere, found[2:], strict=True):
        assert code == 2 and f"--checkpoint {place}: there is no" in err

    # The mean of its steps, each of which is read where it lies.
    mean = tmp_path / "mean"
    averaged = run(
        cloud, tmp_path / "three", "average", "--checkpoint", there[0], "--output", str(mean)
    )
    assert averaged.returncode == 0, averaged.stderr
    assert "the mean of 3 checkpoints, step 120" in averaged.stdout

    # A different run is refused there as anywhere.
    other = run(cloud, tmp_path / "two", *command, "--set", "seed=9")
    assert other.returncode == 3 and "seed: 0 -> 9" in other.stderr
    assert "workdir gs://bucket/runs/tiny holds a run that differs" in other.stderr


def test_what_is_copied_and_taken_back(tmp_path, monkeypatch):
    """A folder stands for the bucket."""
    from etils import epath

    there = tmp_path / "bucket" / "run"
    monkeypatch.setattr(
        location,
        "path_of",
        lambda place: epath.Path(str(place).replace("gs://b/run", str(there))),
    )

    def machine(name: str) -> Path:
        monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / name))
        return location.opened_to_write("gs://b/run", process=1, lease=None).path

    def fill(home: Path, *names: str) -> None:
        for name in names:
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(name)
            os.utime(home / name, (1, 1))  # as a copy keeps the time of its source
        location.at(home).sync()

    def files(folder: Path) -> set[str]:
        return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}

    fill(machine("one"), "config.json", "tokenizer/vocab.txt", "metrics.aside.jsonl")
    fill(machine("one"), "tensorboard/run/train/first")
    taken = {"config.json", "tokenizer/vocab.txt", "metrics.aside.jsonl"}
    assert files(there) == {*taken, "tensorboard/run/train/first"}
    # A machine that is lost while it writes down what is copied has what it wrote before.
    (record,) = (tmp_path / "one").rglob("*copied*")
    before = record.read_text()
    with monkeypatch.context() as lost, pytest.raises(StorageFailed):
        lost.setattr(os, "fsync", lambda descriptor: os.close(-1))  # an OSError
        fill(machine("one"), "config.json", "events.jsonl")
    assert record.read_text() == before
    (there / "events.jsonl").unlink()
    # Another machine has the logs, and writes the curves anew.
    two = machine("two")
    assert files(two) == taken
    # One that has none of its own, as of a run that is done, leaves those that are there.
    fill(two, "result.json")
    taken |= {"result.json"}
    assert files(there) == {*taken, "tensorboard/run/train/first"}
    fill(two, "tensorboard/run/train/second")
    assert files(there) == {*taken, "tensorboard/run/train/second"}
    # Somebody removes the run from the bucket, and begins another one there.
    shutil.rmtree(there)
    assert files(machine("two")) == set()
    fill(two, "config.json", "tokenizer/vocab.txt")
    assert files(there) == {"config.json", "tokenizer/vocab.txt"}


def test_whatever_a_bucket_raises_is_a_failure_of_storage(tmp_path):
    class HttpError(Exception):  # as gcsfs has it
        pass

    with pytest.raises(HttpError), location.at(tmp_path).failures():
        raise HttpError("a directory has no such errors: this one is ours")
    refused = pytest.raises(StorageFailed, match="gs://b/run cannot be written to: 503")
    with refused, location.at("gs://b/run").failures():
        raise HttpError("503")


def test_a_place_that_is_not_in_a_bucket(tmp_path):
    found = location.opened(tmp_path)
    assert (found.path, found.name, found.is_in_bucket) == (tmp_path, str(tmp_path), False)
    for place in ("s3://b/run", "gs://bucket"):
        with pytest.raises(UsageError, match="gs://BUCKET/PATH"):
            location.opened(place)


def test_a_bucket_that_cannot_be_read(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError("403: no permission")

    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path))
    monkeypatch.setattr(location, "_take_back", refuse)
    with pytest.raises(StorageFailed, match="gs://b/run cannot be read: 403: no permission"):
        location.opened("gs://b/run")


@pytest.mark.chaos
def test_fine_tuning_in_a_bucket_goes_on_from_another_machine(cloud, tmp_path):
    """Attempts, results and checkpoints are in the bucket; another machine only reports them."""
    from tests import tiny_tasks

    tiny_tasks.sst2(tmp_path / "sst2")
    tiny_tasks.encoder(tmp_path / "encoder")
    words = [
        *("finetune", "--checkpoint", str(tmp_path / "encoder"), "--task", "sst2"),
        *("--data", str(tmp_path / "sst2"), "--workdir", "gs://bucket/tuned", "--length", "24"),
        *("--epochs", "1", "--batch-size", "16", "--learning-rate", "1e-2", "--restarts", "1"),
    ]
    done = run(cloud, tmp_path / "one", *words)
    assert done.returncode == 0, done.stderr
    result = json.loads(read(cloud, "tuned/result.json"))
    assert result["steps"] == 10
    assert "sst2" in read(cloud, "tuned/results.md")
    again = run(cloud, tmp_path / "two", *words)
    assert again.returncode == 0, again.stderr
    assert json.loads(read(cloud, "tuned/result.json")) == result
    assert '"save"' in read(cloud, "tuned/events.jsonl")


@pytest.mark.chaos
def test_the_doctor_saves_beside_a_workdir_in_a_bucket_and_leaves_nothing(tmp_path, cloud):
    cache = tmp_path / "cache"
    good, bad = run_in_turn(
        cloud,
        cache,
        ("doctor", "--workdir", "gs://bucket/checked/run", "--json"),
        ("doctor", "--workdir", "gs://not-there/run", "--json"),
    )
    assert good[0] == 0, good[1]
    found = {check["check"]: check for check in json.loads(good[1])["checks"]}
    assert "verified and restored" in found["saving"]["found"], found
    assert found["checkpoint"]["found"] == "no checkpoint yet"
    there = "print([p.name for p in path.iterdir()] if path.exists() else [])"
    assert ask(cloud, there, "checked") == "[]\n"
    assert not cache.exists()
    assert bad[0] == 7, bad
    found = {check["check"]: check for check in json.loads(bad[1])["checks"]}
    assert "roles/storage.objectUser" in found["saving"]["remedy"], found
