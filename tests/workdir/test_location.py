"""Workdirs in a bucket, which is a local server with the interface of Cloud Storage."""

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
from bert_jax.errors import StorageFailed, Unreachable, UsageError, WorkdirTaken
from bert_jax.workdir import location, log_reader, run_directory, storage
from bert_jax.workdir.metrics_log import JsonLines
from tests import tiny_corpus
from tests.faulty_bucket import environment, reached, serving
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


def made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def run(cloud: dict, cache: Path, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "bert_jax", *words],
        env=cloud | {"TMPDIR": str(made(cache))},
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
        env=cloud | {"TMPDIR": str(made(cache))},
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
    """Returns the output of the code `what`, in which `path` is a place in the bucket."""
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


def read_log(cloud: dict, run: str, log: str) -> str:
    parts = f"sorted(p for p in path.iterdir() if p.name.startswith('{log}-'))"
    return ask(cloud, f"for p in {parts}: sys.stdout.write(p.read_text())", run)


def listed(cloud: dict, name: str) -> list[str]:
    return ask(cloud, "for p in path.iterdir(): print(p.name)", name).split()


@pytest.mark.chaos
def test_a_run_in_a_bucket_resumes_on_another_machine(tmp_path, cloud, corpus):
    """Killed after a save; its local folder is lost; the same command ends with the same rows."""
    config = str(tiny_corpus.write_config(tmp_path / "tiny.json", _CONFIG))
    command = ("pretrain", config, "--corpus", str(corpus), "--workdir", "gs://bucket/runs/tiny")
    here = str(tmp_path / "here")
    assert main(["pretrain", config, "--corpus", str(corpus), "--workdir", here]) == 0
    first = subprocess.Popen(
        [sys.executable, "-m", "bert_jax", *command],
        env=cloud | {"TMPDIR": str(made(tmp_path / "one"))},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + HUNG
    while True:
        assert first.poll() is None, first.communicate()[1]
        assert time.monotonic() < deadline
        logs = list((tmp_path / "one").glob("*/events.jsonl"))
        if logs and '{"event": "save"' in logs[0].read_text():
            break
        time.sleep(0.02)
    first.kill()
    first.communicate()
    shutil.rmtree(tmp_path / "one")

    second = run(cloud, tmp_path / "two", *command)
    assert second.returncode == 0, second.stderr
    assert "resuming at step" in second.stderr
    rows = read_log(cloud, "runs/tiny", "metrics")
    assert numbers_of(rows) == numbers_of((tmp_path / "here" / "metrics.jsonl").read_text())
    events = read_log(cloud, "runs/tiny", "events").splitlines()
    assert [json.loads(event)["event"] for event in events].count("start") == 2
    assert list((tmp_path / "two").iterdir()) == [], "the local folder is removed"

    # Older steps were removed in the bucket.
    steps = sorted(int(name) for name in listed(cloud, "runs/tiny/checkpoints"))
    assert steps == [80, 100, 120]

    # From a third machine: the newest step, or one by its address, and nothing is written there.
    there = ("gs://bucket/runs/tiny", "gs://bucket/runs/tiny/checkpoints/120")
    nowhere = ("gs://bucket/runs/none", "gs://bucket/runs/tiny/checkpoints/last")
    found = run_in_turn(
        cloud,
        tmp_path / "three",
        *(("evaluate", "--json", at, "--corpus", str(corpus)) for at in (*there, *nowhere)),
        ("evaluate", "--json", there[0], "--eval-set-from", there[1], "--corpus", str(corpus)),
    )
    code, out, err = found.pop()
    assert code == 0 and json.loads(out)["rows_of"] == there[1], err
    last = [r for r in map(json.loads, rows.splitlines()) if r.get("split")][-1]
    for code, out, err in found[:2]:
        assert code == 0, err
        assert json.loads(out)["step"] == 120
        assert json.loads(out)["mlm_loss"] == last["mlm_loss"]
    for place, (code, _, err) in zip(nowhere, found[2:], strict=True):
        assert code == 2 and f"{place}: no workdir" in err

    # The mean of its steps, read from the bucket.
    mean = tmp_path / "mean"
    averaged = run(cloud, tmp_path / "three", "average", there[0], "--output-dir", str(mean))
    assert averaged.returncode == 0, averaged.stderr
    assert "the mean of 3 checkpoints, step 120" in averaged.stdout

    # A different run is refused there as anywhere.
    other = run(cloud, tmp_path / "two", *command, "--set", "seed=9")
    assert other.returncode == 3 and "seed: 0 -> 9" in other.stderr
    assert "workdir gs://bucket/runs/tiny holds a run that differs" in other.stderr


@pytest.fixture(scope="module")
def near():
    """A server that this process reaches."""
    with reached() as address:
        yield address


@pytest.fixture
def bucket(near, tmp_path):
    """The address of a run, which has a config."""
    address = f"gs://bucket/{tmp_path.name}"
    location.at(address).write_text("config.json", "{}")
    return address


def append(place: location.Location, log: str, *steps: int) -> None:
    lines = JsonLines(place.path / log)
    for step in steps:
        lines.row({"step": step, "time": 1})
    lines.close()


def steps_of(address: str) -> list[int]:
    """The steps in the log as another machine reads it."""
    return [row["step"] for row in log_reader.read_rows(location.opened(address).path)]


def test_a_log_in_a_bucket_is_a_sequence_of_parts(bucket):
    first = location.opened(bucket)
    append(first, "metrics.jsonl", 1, 2)
    first.sync()
    first.sync()
    append(first, "metrics.jsonl", 3)
    assert steps_of(bucket) == [1, 2], "a row that is not uploaded is lost with its machine"
    first.sync()
    assert steps_of(bucket) == [1, 2, 3]
    second = location.opened(bucket)
    append(second, "metrics.jsonl", 4)
    second.sync()
    assert steps_of(bucket) == [1, 2, 3, 4]
    parts = [name for name in second.names() if name.startswith("metrics")]
    assert parts == [f"metrics-00000{number}.jsonl" for number in (1, 2, 3)]
    # A copy on a disk is read, and continued.
    copy = second.path.parent / f"{second.path.name}-copy"
    storage.copy_tree(second.root, copy)
    append(location.at(copy), "metrics.jsonl", 5)
    assert [row["step"] for row in log_reader.read_rows(copy)] == [1, 2, 3, 4, 5]
    assert len(log_reader.set_aside_after(copy, 3)) == 3
    assert [row["step"] for row in log_reader.read_rows(copy)] == [1, 2, 3]
    shutil.rmtree(copy)


@pytest.mark.parametrize("step", [0, 1, 3, 4, 6])
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_log_in_a_bucket_is_rewound(bucket, monkeypatch, step, is_killed):
    """Also by a process that ends between two requests: the next one completes the work."""
    trainer = location.opened(bucket)
    for rows in ((1, 2), (3, 4), (5,)):
        append(trainer, "metrics.jsonl", *rows)
        trainer.sync()
    resumed = location.opened(bucket)
    if is_killed and step < 5:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(type(resumed.root), "unlink", _killed)
            log_reader.set_aside_after(resumed.path, step)
        resumed = location.opened(bucket)
    assert [row["step"] for row in log_reader.set_aside_after(resumed.path, step)] == [
        *range(1, min(step, 5) + 1)
    ]
    append(resumed, "metrics.jsonl", step + 1)
    resumed.sync()
    assert steps_of(bucket) == [*range(1, min(step, 5) + 1), step + 1]
    aside = log_reader.read_lines(location.opened(bucket).path / "metrics.aside.jsonl")
    assert {row["step"] for row in aside} == {*range(step + 1, 6)}


def _killed(*_, **__):
    raise KeyboardInterrupt


def test_a_process_that_lost_the_workdir_uploads_nothing(bucket):
    """Neither before its upload nor if the next trainer has written the part meanwhile."""

    def taken(patience):
        raise WorkdirTaken("process 7 trains")

    late, checks = location.opened(bucket), []
    append(late, "metrics.jsonl", 1)
    late.guard = taken
    with pytest.raises(WorkdirTaken):
        late.sync()
    assert steps_of(bucket) == []
    next_one = location.opened(bucket)
    append(next_one, "metrics.jsonl", 2)
    next_one.sync()
    late.guard = lambda patience: checks.append(patience) if not checks else taken(patience)
    with pytest.raises(WorkdirTaken):
        late.sync()
    assert steps_of(bucket) == [2]


def test_a_part_without_an_answer_is_written_again(bucket, monkeypatch):
    trainer, write = location.opened(bucket), storage.write_version
    append(trainer, "metrics.jsonl", 1)
    with monkeypatch.context() as patch, pytest.raises(Unreachable):
        patch.setattr(storage, "write_version", lambda *a: write(*a) and raised(TimeoutError()))
        trainer.sync(patience=0)
    append(trainer, "metrics.jsonl", 2)
    trainer.sync()
    assert steps_of(bucket) == [1, 2]


def raised(error: Exception):
    raise error


def test_the_other_files_of_a_run(bucket):
    place = location.opened(bucket)
    for name in ("tokenizer/vocab.txt", "result.json", "tensorboard/run/train/first"):
        (place.path / name).parent.mkdir(parents=True, exist_ok=True)
        (place.path / name).write_text(name)
    place.sync()
    second = location.opened(bucket)
    here = {str(p.relative_to(second.path)) for p in second.path.rglob("*") if p.is_file()}
    assert here == {"config.json", "tokenizer/vocab.txt", "result.json"}
    # A process that draws no curves leaves the curves of the process before it.
    second.sync()
    curves = second.root / "tensorboard"
    assert len(storage.objects(curves)) == 1
    (second.path / "tensorboard").mkdir()
    (second.path / "tensorboard" / "second").write_text("1")
    second.sync()
    (second.path / "tensorboard" / "second").write_text("12")
    second.sync()
    assert [object.size for object in storage.objects(curves).values()] == [1, 1]


@pytest.mark.parametrize(
    ("name", "is_free"),
    [("tokenizer/vocab.txt", True), ("metrics-000001.jsonl", False), ("restart-1/x", False)],
)
def test_a_place_without_a_config(bucket, name, is_free):
    """An interrupted start is free for a run; a place with other files is not."""
    place = location.at(f"{bucket}/other")
    (place.root / name).write_text("")
    opened = location.opened(place.name)
    assert run_directory.is_free(opened.path) is is_free
    (opened.path / "config.json").write_text("{}")
    opened.sync()
    assert storage.objects(place.root).keys() == {name, "config.json"}


def test_errors_of_a_bucket_are_failures_of_storage(tmp_path, monkeypatch):
    class HttpError(Exception):  # as gcsfs has it
        pass

    with pytest.raises(HttpError), location.at(tmp_path).failures():
        raise HttpError("a folder has no such errors: a fault of the program")
    with (
        pytest.raises(StorageFailed, match=r"gs://b/run cannot be .*: 503"),
        location.at("gs://b/run").failures(),
    ):
        raise HttpError("503")
    with monkeypatch.context() as patch, pytest.raises(StorageFailed, match="403: no permission"):
        patch.setattr(storage, "names_in", lambda _: raised(PermissionError("403: no permission")))
        location.opened("gs://b/run")
    found = location.opened(tmp_path)
    assert (found.path, found.name, found.is_in_bucket) == (tmp_path, str(tmp_path), False)
    for place in ("s3://b/run", "gs://bucket", "gs://b/../run", "gs://b/run*"):
        with pytest.raises(UsageError, match="gs://BUCKET/PATH"):
            location.opened(place)


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
    assert "read back" in found["saving"]["found"], found
    assert found["checkpoint"]["found"] == "no checkpoint yet"
    there = "print([p.name for p in path.iterdir()] if path.exists() else [])"
    assert ask(cloud, there, "checked") == "[]\n"
    assert not list(cache.glob("bert-jax-*")), "the local folders are removed"
    assert bad[0] == 7, bad
    found = {check["check"]: check for check in json.loads(bad[1])["checks"]}
    assert "roles/storage.objectUser" in found["saving"]["remedy"], found
