"""Workdirs in a bucket, which is a local server with the interface of Cloud Storage."""

import json
import shutil

import pytest

from bert_jax.__main__ import main
from bert_jax.errors import StorageFailed, Unreachable, UsageError, WorkdirTaken
from bert_jax.workdir import location, log_reader, run_directory, storage
from bert_jax.workdir.metrics_log import JsonLines
from tests.faulty_bucket import reached


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
def test_a_run_in_a_bucket_is_read_by_its_address(bucket, trained, corpus, tmp_path, capsys):
    """The newest step, or one by its address; nothing is written there."""
    place, on = location.at(bucket), ["--corpus", str(corpus)]
    for file in trained.rglob("*"):
        if file.is_file():
            (place.root / str(file.relative_to(trained))).write_bytes(file.read_bytes())
    there, step = storage.objects(place.root), f"{bucket}/checkpoints/200"
    last = [row for row in log_reader.read_rows(trained) if row.get("split")][-1]
    for at, more in ((bucket, ["--eval-set-from", step]), (step, [])):
        assert main(["evaluate", "--json", at, *on, *more]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["step"], found["rows_of"]) == (200, step)
        assert found["mlm_loss"] == last["mlm_loss"]
    for nowhere in (f"{bucket}-none", f"{bucket}/checkpoints/last"):
        assert main(["evaluate", nowhere, *on]) == 2
        assert f"{nowhere}: no workdir" in capsys.readouterr().err
    assert main(["average", bucket, "--output-dir", str(tmp_path / "mean")]) == 0
    assert "the mean of 3 checkpoints, step 200" in capsys.readouterr().out
    # A different run is refused there as anywhere.
    other = ["pretrain", str(trained / "config.json"), *on, "--workdir", bucket, "--set", "seed=9"]
    assert main(other) == 3
    assert f"workdir {bucket} holds a run that differs" in capsys.readouterr().err
    assert storage.objects(place.root) == there


@pytest.mark.chaos
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # of gcsfs
def test_the_doctor_saves_beside_a_workdir_in_a_bucket_and_leaves_nothing(bucket, capsys):
    found = []
    for workdir, code in ((f"{bucket}/checked/run", 0), ("gs://not-there/run", 7)):
        assert main(["doctor", "--workdir", workdir, "--json"]) == code
        checks = json.loads(capsys.readouterr().out)["checks"]
        found.append({check["check"]: check for check in checks})
    good, bad = found
    assert "read back" in good["saving"]["found"], good
    assert good["checkpoint"]["found"] == "no checkpoint yet"
    assert storage.objects(location.at(bucket).root).keys() == {"config.json"}
    assert "roles/storage.objectUser" in bad["saving"]["remedy"], bad
