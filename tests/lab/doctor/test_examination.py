"""`doctor`: broken setups are reported with their fix, and nothing is changed on disk."""

import contextlib
import dataclasses
import errno
import json
import os
import random
import shutil
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from bert_jax.__main__ import main
from bert_jax.config import CheckpointConfig
from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.corpus.store import open_corpus
from bert_jax.memory import fit
from bert_jax.progress import ABANDONED
from bert_jax.runtime import distributed
from bert_jax.runtime.distributed import Connection
from bert_jax.update.state import TrainState
from bert_jax.workdir import location, run_directory
from bert_jax.workdir.checkpoint import Checkpoints
from bert_jax_lab.doctor import examination, hosts, machine, settings, speed, storage, versions
from bert_jax_lab.doctor.arguments import Arguments
from bert_jax_lab.doctor.examination import Report, examine
from bert_jax_lab.doctor.finding import Finding, of_error
from bert_jax_lab.doctor.speed import Timing
from tests import tiny_corpus

# Its steps are shared with other tests and compiled once.
_CONFIG = tiny_corpus.tiny_config(checkpoint=CheckpointConfig(every_steps=200, keep_last=2))
_PHASE = dataclasses.replace(_CONFIG.phases[0], max_predictions=-1)


@pytest.fixture(scope="module")
def good(shared) -> Path:
    """A corpus of documents without common text."""

    def fill(directory: Path) -> None:
        draw = random.Random(0)
        words = ["".join(draw.choices("abcdefgh", k=4)) for _ in range(60)]
        texts = [
            "\n".join(" ".join(draw.choices(words, k=10)).capitalize() + "." for _ in range(12))
            for _ in range(60)
        ]
        (directory / "words.txt").write_text("\n\n".join(texts))
        prepare(
            [str(directory / "words.txt")], directory / "tokens", vocab_size=240,
            validation_fraction=0.2, workers=1,
        )  # fmt: skip

    return shared("doctor", fill) / "tokens"


class Place:
    """A setup to break: a config, a copy of the corpus, and a workdir that does not exist."""

    def __init__(self, directory: Path, good: Path, patch: pytest.MonkeyPatch):
        self.directory, self.patch = directory, patch
        self.corpus, self.workdir = directory / "corpus", directory / "runs" / "first"
        shutil.copytree(good, self.corpus)
        self.given: dict[str, Any] = {
            "config": str(tiny_corpus.write_config(directory / "tiny.json", _CONFIG)),
            "corpus": self.corpus,
            "workdir": self.workdir,
        }
        patch.setattr(storage, "_PROBE_BYTES", 2**16)

    def change(self, **changes: Any) -> None:
        """Replaces sections of the config."""
        config = dataclasses.replace(_CONFIG, **changes)
        tiny_corpus.write_config(self.directory / "tiny.json", config)

    def shard(self) -> Path:
        return next((self.corpus / "train").glob("*.tokens.npy"))

    def measured(self, *timings: Timing) -> None:
        """Replaces the measurement of the steps."""
        self.patch.setattr(speed, "time_steps", lambda _, __, kept: kept.extend(timings))

    def report(self) -> Report:
        return examine(Arguments(**self.given))


@pytest.fixture
def place(tmp_path, good, monkeypatch) -> Place:
    return Place(tmp_path, good, monkeypatch)


@pytest.fixture
def unmeasured(place) -> Place:
    """The setup, with an invented step time."""
    place.measured(Timing(1.0, 0.01))
    return place


def tree(directory: Path) -> dict[str, tuple]:
    """Every file with its content and modification time, and every folder."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes()) if path.is_file() else ()
        for path in directory.rglob("*")
    }


def test_a_good_setup_passes_and_is_unchanged(place, capsys):
    before, began = tree(place.directory), time.monotonic()
    command = ["doctor", place.given["config"], "--corpus", str(place.corpus)]
    assert main([*command, "--workdir", str(place.workdir), "--json"]) == 0
    assert time.monotonic() - began < 60
    told = json.loads(capsys.readouterr().out)
    assert [c["check"] for c in told["checks"]] == [
        "versions", "config", "corpus", "devices", "export", "mesh", "memory",
        "masked slots", "vocabulary", "padding", "predictions", "epochs", "text",
        "workdir", "checkpoint", "saving", "room", "step", "hours", "save interval",
    ]  # fmt: skip
    assert {check["result"] for check in told["checks"]} == {"passed"}, told
    found = {check["check"]: check["found"] for check in told["checks"]}
    assert "s per step" in found["step"] and found["hours"].startswith("about ")
    assert "read back" in found["saving"]
    assert tree(place.directory) == before


def test_a_report_has_all_failures_and_the_code_of_the_first(place, capsys):
    """Fixes name options of the command; nothing is changed."""
    place.shard().write_bytes(place.shard().read_bytes()[:-2])
    place.workdir.mkdir(parents=True)
    run_directory.write_config(place.workdir, _CONFIG)
    before = tree(place.directory)
    place.patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1))
    command = ["doctor", place.given["config"], "--corpus", str(place.corpus)]
    command += ["--workdir", str(place.workdir), "--set", "data.masked_lm_prob=0.5"]
    assert main([*command, "--set", "phases.0.max_predictions=5", "--set", "mesh.fsdp=3"]) == 4
    out = capsys.readouterr().out
    results = {
        line.split("│")[1].strip(): line.split("│")[2].strip()
        for line in out.splitlines()
        if line.count("│") == 4
    }
    wrong = {name: result for name, result in results.items() if name and result != "passed"}
    assert wrong == {
        "corpus": "failed", "mesh": "failed", "memory": "skipped", "masked slots": "warned",
        "vocabulary": "skipped", "padding": "skipped", "predictions": "skipped",
        "epochs": "skipped", "text": "skipped",
        "workdir": "skipped", "room": "skipped",
        "step": "skipped", "hours": "skipped", "save interval": "skipped",
    }  # fmt: skip
    assert "--set phases.0.max_predictions=16" in out.replace("\n", "")
    assert out.splitlines()[-1].startswith("6 passed, 1 warned, 2 failed, 11 skipped, in ")
    assert tree(place.directory) == before


# --- broken set-ups -------------------------------------------------------------------------------


Break = Callable[[Place], Any]


def changed(**sections: Any) -> Break:
    """Replaces sections of the config."""
    return lambda place: place.change(**sections)


def phase(**fields: Any) -> Break:
    return changed(phases=(dataclasses.replace(_PHASE, **fields),))


def model(**fields: Any) -> dict[str, Any]:
    return {"model": dataclasses.replace(_CONFIG.model, **fields)}


def given(**arguments: Any) -> Break:
    return lambda place: place.given.update(arguments)


def patched(target: Any, name: str, value: Any) -> Break:
    return lambda place: place.patch.setattr(target, name, value)


def raising(error: Exception) -> Callable[..., None]:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


def another_tokenizer(place: Place) -> None:
    for name in ("vocab.txt", "tokenizer.json"):
        file = place.corpus / "tokenizer" / name
        file.write_text(file.read_text().replace("##a", "##q"))


def single_sentences(place: Place) -> None:
    def opened(*arguments: Any, **options: Any) -> Any:
        corpus = open_corpus(*arguments, **options)
        starts = jax.numpy.arange(corpus.train.sentence_starts.size)
        train = dataclasses.replace(corpus.train, document_starts=starts)
        return dataclasses.replace(corpus, train=train)

    place.patch.setattr("bert_jax_lab.doctor.corpus.open_corpora", opened)


def repeated_text(place: Place) -> None:
    source = tiny_corpus.write(place.directory / "stories.txt")
    shutil.rmtree(place.corpus)
    options = {"vocab_size": 240, "validation_fraction": 0.2, "workers": 1}
    prepare([str(source)], place.corpus, **options)


def text_in_other_letters(place: Place) -> None:
    source = place.directory / "greek.txt"
    words = ["λόγος", "φῶς", "νόμος", "πόλις"]
    source.write_text("\n\n".join(f"{' '.join(words)} {n}." for n in range(20)), encoding="utf-8")
    shutil.move(place.corpus / "tokenizer", place.directory / "tokenizer")
    shutil.rmtree(place.corpus)
    options = {"tokenizer": str(place.directory / "tokenizer"), "validation_fraction": 0.2}
    prepare([str(source)], place.corpus, workers=1, **options)


def read_only_workdir(place: Place) -> None:
    place.workdir.mkdir(parents=True)
    # Tests may run as root, who may write to every directory.
    place.patch.setattr(storage.os, "access", lambda path, mode: False)


def slow_saves(place: Place) -> None:
    place.measured(Timing(1.0, 0.001))
    found = Finding(result="passed", found=""), storage.SaveTime(2.0, 1e-6)
    place.patch.setattr(storage, "saves", lambda _: found)


def compiles_for_ever(place: Place) -> None:
    wait = threading.Event()
    place.patch.setattr(speed, "time_steps", lambda *_: wait.wait(3))
    place.given["seconds"] = 0.0


def save_steps(place: Place, *steps: int) -> None:
    zero, some = jax.numpy.zeros((), "int32"), jax.numpy.ones(8)
    saver = Checkpoints(place.workdir, CheckpointConfig(keep_last=3))
    for step in steps:
        saver.save(TrainState(zero, {"a": some}, {"a": some}, some), step=step)
    saver.close()


def another_run(place: Place) -> None:
    place.workdir.mkdir(parents=True)
    other = dataclasses.replace(_CONFIG, seed=5)
    run_directory.create(place.workdir, other, open_corpus(place.corpus), init_from=None)
    save_steps(place, 10)


def something_else(place: Place) -> None:
    place.workdir.mkdir(parents=True)
    (place.workdir / "thesis.tex").touch()


def damaged_step(place: Place) -> None:
    """Saves two steps and damages the second."""
    place.workdir.mkdir(parents=True)
    save_steps(place, 10, 20)
    files = (place.workdir / "checkpoints" / "20").rglob("*")
    victim = max((f for f in files if f.is_file()), key=lambda f: (len(f.parts), str(f)))
    victim.write_bytes(b"x" + victim.read_bytes()[1:])


def no_tracker(place: Place) -> None:
    place.change(trackers=("wandb",))
    place.patch.setattr("importlib.util.find_spec", lambda name: None)


class UnreachableBucket:
    """An address in a bucket that this machine cannot reach."""

    def __truediv__(self, name: str) -> "UnreachableBucket":
        return self

    def exists(self) -> bool:
        raise OSError("Cannot connect to host storage.googleapis.com")

    is_dir = iterdir = write_text = exists


def bucket_out_of_reach(place: Place) -> None:
    place.given["workdir"] = "gs://bucket/run"
    place.patch.setattr(location, "path_of", lambda path: UnreachableBucket())


_FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
_IN_USE = RuntimeError("Unable to initialize backend 'tpu': already in use by process 12")
_LONG = model(max_position_embeddings=1024)
_VERSIONS = {"flax": "0.1"}
# A setup, the check that finds the fault, its result, exit code, and words of its fix.
_BROKEN: dict[str, tuple[Break, str, str, int, str]] = {
    "small vocabulary": (changed(**model(vocab_size=50)), "vocabulary", "failed", 2, "set model.v"),
    "another tokenizer": (another_tokenizer, "corpus", "failed", 4, "run prepare again"),
    "missing shard": (lambda p: p.shard().unlink(), "corpus", "failed", 4, "tokens.npy is missing"),
    "no corpus": (lambda p: (p.corpus / "corpus.json").unlink(), "corpus", "failed", 2, "prepare"),
    "few slots": (phase(max_predictions=2), "masked slots", "warned", 0, "max_predictions=5"),
    "small corpus": (phase(steps=10**6), "epochs", "warned", 0, "times as much text"),
    "short documents": (
        changed(**_LONG, phases=(dataclasses.replace(_PHASE, sequence_length=1024),)),
        "padding", "warned", 0, "set phases.0.sequence_length=",
    ),
    "single sentences": (single_sentences, "text", "warned", 0, "by blank lines"),
    "repeated text": (repeated_text, "text", "warned", 0, "drop repeated lines"),
    "other letters": (text_in_other_letters, "vocabulary", "warned", 0, "trained on it"),
    "read-only workdir": (read_only_workdir, "saving", "failed", 7, "make it writable"),
    "full disk": (
        patched(location.Location, "write_text", raising(_FULL)),
        "saving", "failed", 7, "free the storage",
    ),
    "workdir of one host": (
        patched(location.Location, "names", lambda self: []),
        "saving", "failed", 7, "all hosts must see the same `workdir`",
    ),
    "bucket out of reach": (bucket_out_of_reach, "saving", "failed", 7, "is reachable"),
    "no room": (
        patched(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**5)),
        "room", "failed", 7, "set checkpoint.keep_last=1",
    ),
    "slow saves": (slow_saves, "save interval", "warned", 0, "set checkpoint.every_steps="),
    "slow steps": (
        lambda place: place.measured(Timing(1.0, 800.0)),
        "step", "warned", 0, "set deadline_seconds=8000",
    ),
    "compiles for ever": (compiles_for_ever, "step", "warned", 0, "set compute.layer_loop=scan"),
    "another run": (another_run, "workdir", "failed", 3, "or another `workdir`"),
    "something else": (something_else, "workdir", "failed", 2, "choose another directory"),
    "damaged step": (damaged_step, "checkpoint", "warned", 0, "restore a copy of checkpoints/20"),
    "few devices": (given(topology="v3:4x8"), "devices", "failed", 2, "every host of the slice"),
    "no devices": (
        patched(machine.jax, "devices", raising(_IN_USE)), "devices", "failed", 2, "accelerator"
    ),
    "wrong products": (
        patched(machine.jnp, "matmul", lambda x, y: x @ y + 1),
        "devices", "failed", 2, "use another machine",
    ),
    "odd batch": (phase(global_batch_size=15), "mesh", "failed", 2, "14 or 16"),
    "wrong field": (
        given(overrides=["model.hiden_size=64"]), "config", "failed", 2, "mean 'hidden_size'?"
    ),
    "little memory": (
        patched(fit, "free_bytes", lambda _: 10**5), "memory", "failed", 2, "more devices"
    ),
    "no tracker": (no_tracker, "config", "failed", 2, "pip install 'wandb>=0.22'"),
    "wrong pair": (
        patched(versions, "installed", lambda *names: {n: _VERSIONS.get(n, "99.0") for n in names}),
        "versions", "failed", 2, "pip install 'flax",
    ),
    "no checkpoint": (given(init_from=Path("nothing")), "init-from", "failed", 2, "nothing"),
}  # fmt: skip


@pytest.mark.parametrize("name", _BROKEN)
def test_a_broken_setup_is_reported_with_its_fix(unmeasured, name):
    place, (broken, check, result, code, remedy) = unmeasured, _BROKEN[name]
    broken(place)
    finding = place.report().findings[check]
    assert (finding.result, finding.exit_code) == (result, code), finding
    assert remedy in finding.remedy, finding
    assert not list(place.directory.rglob("*.doctor-*")), "it left something behind"


# --- hosts ----------------------------------------------------------------------------------------


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def connection(port: int, rank: int) -> Connection:
    return Connection(coordinator=f"127.0.0.1:{port}", num_processes=2, process_id=rank)


@pytest.mark.parametrize(
    ("ahead", "version", "result", "words"),
    [
        (0.2, "1", "passed", "2 processes met"),
        (-9, "1", "warned", "process 1 is 9 s off"),
        (90, "1", "failed", "timedatectl set-ntp true"),
        (0, "2", "failed", "the same versions on every host"),
    ],
)
def test_clocks_and_versions_of_hosts(ahead, version, result, words):
    answers = [
        {"versions": {"jax": "1"}, "time": 1e9},
        {"versions": {"jax": version}, "time": 1e9 + ahead},
    ]
    finding = hosts.judge(answers, "here")
    assert finding.result == result and words in f"{finding.found} {finding.remedy}", finding


def test_processes_meet_although_a_port_scanner_sends_nothing(port, monkeypatch):
    monkeypatch.setattr(hosts, "_ANSWER_SECONDS", 0.2)
    first = threading.Thread(target=lambda: hosts.roll_call(connection(port, 0), seconds=20))
    first.start()
    with contextlib.ExitStack() as closing:
        for _ in range(100):
            with contextlib.suppress(ConnectionRefusedError):
                closing.enter_context(socket.create_connection(("127.0.0.1", port)))
                break
            time.sleep(0.1)
        hosts.roll_call(connection(port, 1), seconds=20)
        first.join(20)
    assert not first.is_alive()


@pytest.mark.parametrize(
    ("rank", "taken", "words"),
    [
        (0, True, "end the process that uses it"),
        (0, False, "process 1 did not reach"),
        (1, False, "process 0 does not answer"),
    ],
)
def test_a_missing_process_is_named(port, monkeypatch, rank, taken, words):
    """jax itself aborts the process, with a stack trace of C++."""
    monkeypatch.setattr(hosts, "_MEETING_SECONDS", 0.2)
    with contextlib.ExitStack() as held:
        if taken:
            held.enter_context(socket.create_server(("", port)))
        findings = examine(Arguments(connection=connection(port, rank))).findings
    assert findings["hosts"].result == "failed"
    assert words in findings["hosts"].remedy and str(port) in findings["hosts"].remedy
    # A call of jax would wait for the others.
    assert findings["devices"].result == "skipped"


def test_the_worst_finding_of_all_processes_counts(monkeypatch):
    one = {"config": Finding(result="passed", found="fine"), "corpus": of_error(OSError(5, "bad"))}
    other = {"config": of_error(ValueError("odd")), "corpus": Finding(result="passed", found="ok")}
    said = [json.dumps({n: dataclasses.asdict(f) for n, f in own.items()}) for own in (one, other)]
    monkeypatch.setattr(distributed, "exchange", lambda *_, **__: said)
    merged = examination.merged(one)
    assert list(merged) == ["config", "corpus"]
    assert merged["config"].found == "process 1: ValueError: odd"
    assert (merged["corpus"].exit_code, merged["corpus"].found) == (7, "bad")
    assert Report(findings=merged).exit_code == 7  # the first documented code


def test_an_error_in_a_check_does_not_hide_other_checks(unmeasured):
    unmeasured.patch.setattr(settings, "masks", lambda config: 1 / 0)
    findings = unmeasured.report().findings
    assert findings.pop("masked slots").found == "ZeroDivisionError: division by zero"
    assert {finding.result for finding in findings.values()} == {"passed"}


def test_an_abandoned_compilation_does_not_end_the_process(unmeasured, capsys):
    """Only the `bert-jax` command exits without waiting for the compilation (`ABANDONED`)."""
    compiles_for_ever(unmeasured)
    command = ["doctor", unmeasured.given["config"], "--corpus", str(unmeasured.corpus), "--json"]
    with unmeasured.patch.context() as patch:
        steps = speed.steps
        patch.setattr(speed, "steps", lambda *found, seconds: steps(*found, seconds=0.0))
        assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["warned"] == 1
    assert any(thread.name == ABANDONED for thread in threading.enumerate())
