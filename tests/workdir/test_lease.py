"""A workdir has one trainer: a second one is refused, and says who the first one is."""

import json
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
from bert_jax.workdir import bucket, lease, location, recovery, run_directory
from bert_jax.workdir.lease import only_trainer
from tests import tiny_corpus
from tests.faulty_bucket import control, environment, serving

_SINCE = r" since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(lease, "_HERE_SECONDS", 0.3)
    monkeypatch.setattr(lease, "_POLL_SECONDS", 0.05)


@pytest.fixture(scope="module")
def address():
    with serving() as found:
        yield found


@pytest.fixture(params=["folder", "bucket"])
def workdir(request, tmp_path, monkeypatch):
    """A folder that machines share, and has no locks among them; or a place in a bucket."""
    if request.param == "folder":
        (tmp_path / "run").mkdir()
        yield str(tmp_path / "run")
        return
    import gcsfs
    from etils.epath import gpath

    bucket.choose_gcsfs()
    # A test before may have asked for a path where TensorFlow was to serve it: etils keeps that.
    gpath._is_tf_installed.cache_clear()
    address = request.getfixturevalue("address")
    for name, value in environment(address).items():
        monkeypatch.setenv(name, value)
    gcsfs.GCSFileSystem.clear_instance_cache()
    control(address, faults={}, latency=0.0, stream=0.0)
    yield f"gs://bucket/{tmp_path.name}"
    gcsfs.GCSFileSystem.clear_instance_cache()


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Goes on as another machine, which has locks of its own."""

    def change(name: str) -> None:
        lock = tmp_path / f"lock-of-{name}"
        for kind in (location.Location, location._InBucket):
            monkeypatch.setattr(kind, "lock", lock)
        monkeypatch.setattr(lease.file_lock, "identity", lambda _: name)
        monkeypatch.setattr(lease.socket, "gethostname", lambda: name)

    return change


def lease_of(workdir: str):
    return location.at(workdir).versioned(location.LEASE)


def killed(workdir: str) -> lease.Lease:
    """Returns the lease of a process that no longer renews it."""
    held = only_trainer(workdir)
    found = held.__enter__()
    assert found is not None
    found._ended.set()
    found._lost = "gone"  # so that it is not given back
    held.__exit__(None, None, None)
    found._ended.clear()
    found._lost = ""
    return found


def test_a_second_trainer_is_refused(tmp_path, corpus, capsys):
    """Whatever writes there is refused with code 2, and changes nothing."""
    config = tiny_corpus.write_config(tmp_path / "tiny.json", tiny_corpus.tiny_config())
    workdir = tmp_path / "run"
    commands = [
        ["pretrain", str(config), "--corpus", str(corpus), "--workdir", str(workdir)],
        ["finetune", "--task", "cola", "--checkpoint", str(tmp_path), "--workdir", str(workdir)],
    ]
    by = f"process {os.getpid()} on {socket.gethostname()} trains in {workdir}"
    said = rf"error: {by}{_SINCE}; wait until it has ended, end it, or choose another"
    with only_trainer(workdir):
        for command in commands:
            assert main(command) == 2
            assert re.search(said, capsys.readouterr().err.splitlines()[-1])
        names = {path.name for path in workdir.iterdir()}
        assert names == {location.LOCK, location.LEASE}
        assert run_directory.is_free(workdir)
    assert not workdir.exists(), "nothing came to be there"

    workdir.mkdir()
    (workdir / run_directory.CONFIG).write_text("{}")
    with only_trainer(workdir):
        assert main(["checkpoints", "rollback", str(workdir), "--step", "1"]) == 2
        assert re.search(said, capsys.readouterr().err)
    assert [path.name for path in workdir.iterdir()] == [run_directory.CONFIG]


@pytest.mark.parametrize("workdir", ["bucket"], indirect=True)
@pytest.mark.parametrize("is_saved", [True, False], ids=["saved", "not saved yet"])
@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["same machine", "another machine"])
def test_no_command_writes_to_a_run_in_training(
    workdir, tmp_path, corpus, monkeypatch, capsys, is_saved, is_elsewhere
):
    """The trainer's log has rows that the bucket does not have yet: none may be lost."""
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "first"))
    config = tiny_corpus.tiny_config()
    named = str(tiny_corpus.write_config(tmp_path / "tiny.json", config))
    logs = location._stand_in(workdir, "process-0")
    with only_trainer(workdir):
        run_directory.create(logs, config, open_corpus(corpus), init_from=None)
        if is_saved:
            location._copy_changes(logs, workdir)
        (logs / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')

        def content():
            place = location.at(workdir)
            here = {path: path.read_bytes() for path in logs.rglob("*") if path.is_file()}
            return here, place.names(), is_saved and place.read_text(run_directory.CONFIG)

        before = content()
        if is_elsewhere:
            monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "second"))
        for command, code in [
            (("pretrain", named, "--corpus", str(corpus), "--workdir", workdir), 2),
            (("checkpoints", "list", workdir), 0 if is_saved else 2),
            (("evaluate", workdir, "--corpus", str(corpus)), 5 if is_saved else 2),
        ]:
            assert main([*command]) == code, capsys.readouterr().err
            assert content() == before, command


@pytest.mark.parametrize("workdir", ["bucket"], indirect=True)
def test_a_rollback_begins_with_the_rows_of_the_trainer_before(
    workdir, tmp_path, corpus, monkeypatch
):
    """The trainer saves once more and ends while the command waits for the workdir."""
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
    home = tmp_path / "home"
    run_directory.create(home, tiny_corpus.tiny_config(), open_corpus(corpus), init_from=None)
    location.copy_tree(bucket.path_of(home), bucket.path_of(workdir))
    take, found = lease._take, []

    def wait_and_take(place, held):
        location.at(workdir).write_text("metrics.jsonl", '{"step": 1, "loss": 2.0}\n')
        return take(place, held)

    def roll_back(directory, step):
        found.append((step, (directory / "metrics.jsonl").read_text()))

    monkeypatch.setattr(lease, "_take", wait_and_take)
    monkeypatch.setattr(recovery, "roll_back", roll_back)
    assert main(["checkpoints", "rollback", workdir, "--step", "1"]) == 0
    assert found == [(1, '{"step": 1, "loss": 2.0}\n')]


def test_one_that_was_killed_holds_nothing_on_its_machine(tmp_path):
    """The operating system lets go of its lock, and with it of the lease; both files are there."""
    workdir = tmp_path / "run"
    code = f"""
import os, signal
from bert_jax.workdir.lease import only_trainer
with only_trainer({str(workdir)!r}):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    assert (workdir / location.LOCK).exists() and (workdir / location.LEASE).exists()
    began = time.monotonic()
    with only_trainer(workdir):
        assert time.monotonic() - began < 1


def test_one_that_is_about_to_end_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "_HERE_SECONDS", 60.0)
    first = only_trainer(tmp_path)
    first.__enter__()
    waits = []
    wait = lease._Watch.wait

    def ends_meanwhile(watch, *arguments, **options):
        waits.append(arguments)
        if len(waits) == 2:
            first.__exit__(None, None, None)
        wait(watch, *arguments, **options)

    monkeypatch.setattr(lease._Watch, "wait", ends_meanwhile)
    with only_trainer(tmp_path):
        assert len(waits) == 2


def test_another_machine_is_refused_while_the_lease_is_renewed(workdir, machine, monkeypatch):
    monkeypatch.setattr(lease, "_RENEWAL_SECONDS", 0.2)
    machine("first")
    with only_trainer(workdir) as held:
        machine("second")
        began = time.monotonic()
        name = rf"process {os.getpid()} on first trains in {workdir}{_SINCE}; wait"
        with pytest.raises(UsageError, match=name), only_trainer(workdir):
            pass
        assert time.monotonic() - began < 5
        held.renew()
    assert lease_of(workdir).read() is None, "it is given back"
    with only_trainer(workdir):
        pass


def test_all_processes_see_what_process_0_writes(workdir, tmp_path, monkeypatch):
    """A folder of each host's own would be gone on from by one process, and begun by another."""
    mesh, told = jax.make_mesh((1,), ("x",)), []
    monkeypatch.setattr(lease, "_SEEN_SECONDS", 0.2)
    with only_trainer(workdir) as held:
        assert held is not None
        monkeypatch.setattr(jax, "process_index", lambda: 3)
        monkeypatch.setattr(distributed, "broadcast_from_main", lambda *_, mesh: held.number)
        monkeypatch.setattr(distributed, "largest", lambda number, mesh: told.append(number) or 3)
        for place in (workdir, tmp_path / "own"):
            refused = pytest.raises(UsageError, match="process 3 does not see there what process 0")
            with refused, only_trainer(place, mesh=mesh):
                pass
    assert told == [0, 3]


def test_the_lease_of_a_dead_machine_runs_out(workdir, machine, monkeypatch):
    """Whoever wakes up afterwards has lost it, and leaves the new one alone."""
    monkeypatch.setattr(lease, "SECONDS", 0.9)
    machine("first")
    first = killed(workdir)
    machine("second")
    began = time.monotonic()
    with only_trainer(workdir) as second:
        assert 0.5 < time.monotonic() - began < 4
        lost = rf"on second trains in {workdir}{_SINCE}: this process had not renewed"
        for _ in range(2):
            with pytest.raises(WorkdirTaken, match=lost):
                first.renew()
        place = location.opened_to_write(workdir, process=0, lease=first)
        (place.path / "config.json").write_text("{}")
        with pytest.raises(WorkdirTaken):
            place.sync()
        if place.is_in_bucket:
            assert place.names() == [location.LEASE]
        first.release()
        second.renew()


def test_a_machine_takes_back_its_own(workdir, machine):
    """Its lock is free, so the process that had both is gone: nothing is waited for."""
    machine("first")
    killed(workdir)
    began = time.monotonic()
    with only_trainer(workdir):
        assert time.monotonic() - began < 1


@pytest.mark.parametrize("skew", [-60, 60])
def test_clocks_that_differ_by_a_minute(workdir, machine, monkeypatch, skew):
    """A lease just written is not over; one that was seen to run out is."""
    monkeypatch.setattr(lease, "SECONDS", 0.9)
    machine("first")
    killed(workdir)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + skew)
    machine("second")
    began = time.monotonic()
    with only_trainer(workdir):
        assert 0.5 < time.monotonic() - began < 4


def test_an_old_lease_is_over_at_once(tmp_path, machine):
    machine("first")
    killed(str(tmp_path))
    old = time.time() - 3600
    os.utime(tmp_path / location.LEASE, (old, old))
    machine("second")
    began = time.monotonic()
    with only_trainer(tmp_path):
        assert time.monotonic() - began < 1


@pytest.mark.parametrize(
    "text",
    [
        " ",
        "[" * 100_000,
        "x" * 10_000,
        "\0",
        '{"process": 1, "host": "$(touch x)", "since": "2026-01-01 00:00:00 UTC"}',
        '{"process": "1\\n2", "host": "a", "since": "2026-01-01 00:00:00 UTC"}',
    ],
    ids=["empty", "deep", "long", "nul", "command", "lines"],
)
def test_a_lease_that_says_nothing(workdir, machine, monkeypatch, text):
    """It names nobody, and runs out like any other."""
    monkeypatch.setattr(lease, "SECONDS", 0.3)
    assert lease_of(workdir).replace(text, None) is not None
    monkeypatch.setattr(lease, "_HERE_SECONDS", 0.1)
    machine("second")
    assert lease._holder(lease_of(workdir).read()) == ("another process", "")
    with only_trainer(workdir) as held:
        held.renew()


def test_one_that_somebody_removed_is_written_again(workdir, machine):
    machine("first")
    with only_trainer(workdir) as held:
        file = lease_of(workdir)
        file.remove("another version")
        found = file.read()
        file.remove(found.tag)
        assert file.read() is None
        held.renew()
        assert json.loads(file.read().text)["token"] == json.loads(found.text)["token"]


def test_only_the_version_that_was_read_is_replaced(workdir):
    file = lease_of(workdir)
    assert file.replace("one", "none") is None and file.read() is None
    first = file.replace("one", None)
    assert file.replace("two", None) is None
    second = file.replace("two and more", first)
    assert file.replace("three", first) is None
    assert file.read().text == "two and more" and 0 <= file.read().age < 30
    third = file.replace("3", second)
    assert file.read()[:2] == ("3", third)
    file.remove(second)
    assert file.read() is not None
    file.remove(third)
    assert file.read() is None


@pytest.mark.parametrize("workdir", ["bucket"], indirect=True)
def test_a_lost_answer_is_no_lost_lease(workdir, machine, monkeypatch):
    """The bucket has the renewal, and the connection is dropped: the next try meets itself."""
    machine("first")
    replace, answers = bucket.VersionedObject.replace, []

    def dropped(self, text, tag):
        answers.append(replace(self, text, tag))
        if len(answers) % 2:
            raise TimeoutError
        return answers[-1]

    monkeypatch.setattr(bucket.VersionedObject, "replace", dropped)
    monkeypatch.setattr(location.network, "_FIRST_PAUSE", 0.01)
    with only_trainer(workdir) as held:
        held.renew()
        held.renew()
    assert answers[1] is None and answers[3] is None


@pytest.mark.parametrize("workdir", ["bucket"], indirect=True)
def test_a_bucket_that_fails_costs_no_lease(workdir, machine, address, monkeypatch):
    machine("first")
    with only_trainer(workdir) as held:
        control(address, faults={"insert": [403, 1000]})
        with pytest.raises(StorageFailed, match="cannot be read or written to"):
            held.renew(patience=0)
        control(address, faults={})
        held.renew()
