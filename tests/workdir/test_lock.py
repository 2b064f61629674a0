"""A workdir has one trainer: a second one is refused, and the message names the first one."""

import os
import re
import socket
import subprocess
import sys
import time

import jax
import pytest

from bert_jax.__main__ import main
from bert_jax.data.corpus.store import open_corpus
from bert_jax.errors import StorageFailed, UsageError, WorkdirTaken
from bert_jax.runtime import distributed
from bert_jax.workdir import location, lock, recovery, run_directory, storage
from bert_jax.workdir.lock import only_trainer
from tests import tiny_corpus
from tests.faulty_bucket import control, reached


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(lock, "_GRACE_SECONDS", 0.3)
    monkeypatch.setattr(lock, "_POLL_SECONDS", 0.05)
    monkeypatch.setattr(lock, "_RENEWAL_SECONDS", 0.2)


@pytest.fixture(scope="module")
def address():
    with reached() as found:
        yield found


@pytest.fixture
def bucket(address, tmp_path):
    control(address, faults={}, latency=0.0, stream=0.0)
    return f"gs://bucket/{tmp_path.name}"


@pytest.fixture(params=["folder", "bucket"])
def workdir(request, tmp_path):
    """A folder, or a place in a bucket."""
    return str(tmp_path / "run") if request.param == "folder" else request.getfixturevalue("bucket")


def owner_of(bucket: str) -> storage.Version | None:
    return storage.read_version(storage.path_of(f"{bucket}/{location.OWNER}"))


def killed(bucket: str, monkeypatch) -> lock._Owner:
    """Returns the owner of a process that no longer renews its object."""
    with monkeypatch.context() as patch:
        patch.setattr(lock, "_RENEWAL_SECONDS", 3600)
        owner = lock._Owner(location.at(bucket))
        owner.take()
    return owner


def test_every_command_that_writes_is_refused(tmp_path, corpus, capsys, monkeypatch):
    """With code 2; nothing is changed. Another process on this machine trains."""
    config = tiny_corpus.write_config(tmp_path / "tiny.json", tiny_corpus.tiny_config())
    run = tmp_path / "run"
    commands = [
        ["pretrain", str(config), "--corpus", str(corpus), "--workdir", str(run)],
        ["finetune", "--task", "cola", str(tmp_path), "--workdir", str(run)],
    ]
    by = f"process {os.getpid()} on {socket.gethostname()} trains in {run}"
    with only_trainer(run):
        for command in commands:
            assert main(command) == 2
            assert by in capsys.readouterr().err.splitlines()[-1]
        assert {path.name for path in run.iterdir()} == {location.LOCK}
        assert run_directory.is_free(run)
    assert not run.exists(), "the folder that only the lock has made is removed"

    run.mkdir()
    (run / run_directory.CONFIG).write_text("{}")
    with only_trainer(run):
        assert main(["checkpoints", "rollback", str(run), "--step", "1"]) == 2
        assert by in capsys.readouterr().err
    assert [path.name for path in run.iterdir()] == [run_directory.CONFIG]


@pytest.mark.parametrize("is_saved", [True, False], ids=["saved", "not saved yet"])
def test_no_command_writes_to_a_run_in_training(bucket, tmp_path, corpus, capsys, is_saved):
    """The trainer has rows that the bucket does not have yet: none may be lost."""
    config = tiny_corpus.tiny_config()
    named = str(tiny_corpus.write_config(tmp_path / "tiny.json", config))
    with only_trainer(bucket) as guard:
        trainer = location.opened(bucket, guard=guard)
        run_directory.create(trainer.path, config, open_corpus(corpus), init_from=None)
        if is_saved:
            trainer.sync()
        (trainer.path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')

        def content():
            found = [path for path in trainer.path.rglob("*") if path.is_file()]
            there = storage.objects(trainer.root)
            there.pop(location.OWNER)  # renewed meanwhile
            return {path: path.read_bytes() for path in found}, there

        before = content()
        for command, code in [
            (("pretrain", named, "--corpus", str(corpus), "--workdir", bucket), 2),
            (("checkpoints", "list", bucket), 0 if is_saved else 2),
            (("evaluate", bucket, "--corpus", str(corpus)), 5 if is_saved else 2),
        ]:
            assert main([*command]) == code, capsys.readouterr().err
            assert content() == before, command


def test_a_rollback_begins_with_the_rows_of_the_trainer_before(
    bucket, corpus, monkeypatch, tmp_path
):
    """The trainer saves once more and ends while the command waits for the workdir."""
    run = location.opened(bucket)
    run_directory.create(run.path, tiny_corpus.tiny_config(), open_corpus(corpus), init_from=None)
    run.sync()
    take, found = lock._Owner.take, []

    def wait_and_take(owner):
        (run.path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
        run.sync()
        take(owner)

    def roll_back(directory, step):
        found.append((step, (directory / "metrics.jsonl").read_text()))

    monkeypatch.setattr(lock._Owner, "take", wait_and_take)
    monkeypatch.setattr(recovery, "roll_back", roll_back)
    assert main(["checkpoints", "rollback", bucket, "--step", "1"]) == 0
    assert found == [(1, '{"step": 1, "loss": 2.0}\n')]


def test_a_killed_process_holds_no_folder(tmp_path):
    run = tmp_path / "run"
    code = f"""
import os, signal
from bert_jax.workdir.lock import only_trainer
with only_trainer({str(run)!r}):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    assert (run / location.LOCK).exists()
    with only_trainer(run):
        pass


def test_a_process_that_is_about_to_end_is_waited_for(workdir, monkeypatch):
    monkeypatch.setattr(lock, "_GRACE_SECONDS", 60.0)
    first = only_trainer(workdir)
    first.__enter__()
    sleep, waits = time.sleep, []

    def ends_meanwhile(seconds):
        waits.append(seconds)
        if len(waits) == 2:
            first.__exit__(None, None, None)
        sleep(seconds)

    monkeypatch.setattr(lock.time, "sleep", ends_meanwhile)
    with only_trainer(workdir):
        assert len(waits) >= 2


def test_a_second_trainer_is_refused_while_the_object_is_renewed(bucket):
    with only_trainer(bucket) as guard:
        name = rf"process {os.getpid()} on \S+ trains in {bucket}; wait"
        with pytest.raises(UsageError, match=name), only_trainer(bucket):
            pass
        guard(None)
    assert owner_of(bucket) is None, "it is given back"
    with only_trainer(bucket):
        pass


def test_all_processes_see_what_process_0_writes(tmp_path, monkeypatch):
    """With one folder per host, one process would resume and another one would begin at step 0."""
    mesh, told = jax.make_mesh((1,), ("x",)), []
    monkeypatch.setattr(lock, "_SEEN_SECONDS", 0.2)
    with only_trainer(tmp_path / "run"):
        monkeypatch.setattr(jax, "process_index", lambda: 3)
        monkeypatch.setattr(distributed, "broadcast_from_main", lambda *_: os.getpid())
        monkeypatch.setattr(distributed, "largest", lambda number: told.append(number) or 3)
        for place in ("run", "own"):
            refused = pytest.raises(UsageError, match="process 3 does not see the files")
            with refused, only_trainer(tmp_path / place, mesh=mesh):
                pass
    assert told == [0, 3]


@pytest.mark.parametrize("skew", [-60, 0, 60])
def test_a_stale_owner_is_replaced(bucket, monkeypatch, skew):
    """A process that continues afterwards has lost the workdir, and writes nothing. The clock of
    the second machine may be wrong."""
    monkeypatch.setattr(lock, "SECONDS", 1.5)
    first = killed(bucket, monkeypatch)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + skew)
    began = time.monotonic()
    with only_trainer(bucket) as second:
        # The server's times are whole seconds.
        assert 0.4 < time.monotonic() - began < 10
        lost = rf"process {os.getpid()} on \S+ trains in {bucket}: this process had not renewed"
        for _ in range(2):
            with pytest.raises(WorkdirTaken, match=lost):
                first.renew(None)
        late = location.opened(bucket, guard=first.renew)
        (late.path / "config.json").write_text("{}")
        with pytest.raises(WorkdirTaken):
            late.sync()
        assert late.names() == [location.OWNER]
        first.release()
        second(None)
    first._ended.set()


def test_a_stale_owner_is_replaced_by_one_process(bucket, monkeypatch):
    """Both have seen that the owner is gone."""
    monkeypatch.setattr(lock, "SECONDS", 0.0)
    killed(bucket, monkeypatch)._ended.set()
    monkeypatch.setattr(lock, "SECONDS", 60.0)
    seen = owner_of(bucket)
    assert seen is not None
    others = [lock._Owner(location.at(bucket)) for _ in range(2)]
    written = [owner._write(seen.generation) for owner in others]
    assert [generation is not None for generation in written] == [True, False]


def test_a_removed_object_is_written_again(bucket):
    with only_trainer(bucket) as guard:
        found = owner_of(bucket)
        assert found is not None
        storage.path_of(f"{bucket}/{location.OWNER}").unlink()
        guard(None)
        again = owner_of(bucket)
        assert again is not None and again.text.split('"token"')[1][:36] in found.text


def test_only_the_version_that_was_read_is_replaced(bucket):
    place = storage.path_of(f"{bucket}/object")
    assert storage.write_version(place, b"one", "7") is None
    assert storage.read_version(place) is None
    first = storage.write_version(place, b"one", None)
    assert first and storage.write_version(place, b"two", None) is None
    second = storage.write_version(place, b"two", first)
    assert second and storage.write_version(place, b"three", first) is None
    found = storage.read_version(place)
    assert found is not None and found[:2] == ("two", second) and 0 <= found.age < 30
    storage.remove_version(place, first)
    assert storage.read_version(place) is not None
    storage.remove_version(place, second)
    assert storage.read_version(place) is None


def test_a_lost_answer_does_not_lose_the_workdir(bucket, monkeypatch):
    """The bucket has the renewal, and the connection is dropped: the next request finds it."""
    write, answers = storage.write_version, []

    def dropped(*arguments):
        answers.append(write(*arguments))
        if len(answers) % 2:
            raise TimeoutError
        return answers[-1]

    monkeypatch.setattr(lock, "_RENEWAL_SECONDS", 3600)
    monkeypatch.setattr(storage, "write_version", dropped)
    monkeypatch.setattr(storage.network, "_FIRST_PAUSE", 0.01)
    with only_trainer(bucket) as guard:
        guard(None)
        guard(None)
    assert answers[1] is None and answers[3] is None


def test_a_bucket_that_fails_does_not_lose_the_workdir(bucket, address):
    with only_trainer(bucket) as guard:
        control(address, faults={"insert": [403, 1000]})
        with pytest.raises(StorageFailed, match=re.escape(bucket)):
            guard(0)
        control(address, faults={})
        guard(None)
