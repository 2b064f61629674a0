"""Stages that are repeated in any order, compared with `prepare` on one machine; and the command of
a job, up to the runner.
"""

import csv
import dataclasses
import gzip
import hashlib
import io
import json
import subprocess
import sys
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path

import numpy as np
import pytest

from bert_jax import errors
from bert_jax.data.cluster import package, reports, run
from bert_jax.data.corpus import near, vocabulary
from bert_jax.data.corpus import prepare as preparing
from bert_jax.data.corpus.folder import Folder
from bert_jax.data.corpus.job import Job, Unit
from bert_jax.data.corpus.options import CorpusOptions
from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.corpus.store import SPLITS, open_corpus
from bert_jax.errors import BertJaxError, UsageError
from bert_jax.progress import note
from tests.data.cluster.plain import make
from tests.data.corpus.test_prepare import files_of, text_of
from tests.faulty_bucket import reached


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr("bert_jax.data.corpus.job.PART_BYTES", 1500)
    monkeypatch.setattr("bert_jax.data.corpus.job.SHARD_TOKENS", 800)
    monkeypatch.setattr("bert_jax.data.corpus.job.UNIT_BYTES", 5000)


@pytest.fixture
def sources(tmp_path):
    """Files of several kinds; some documents are in several files."""
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.txt").write_text(text_of(90))
    (folder / "b.txt.gz").write_bytes(gzip.compress(text_of(60, seed=1).encode()))
    again = [*text_of(90).split("\n\n")[10:40], *text_of(60, seed=2).split("\n\n")]
    rows = [{"text": text} for text in again] + [{"text": None}]
    (folder / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "d.txt").write_text(text_of(60, seed=1)[:4000] + "\n\n" + "long " * 900)
    return folder


PLAIN = {"vocab_size": 140, "validation_fraction": 0.1}


def made(sources: Path, output: str, *, times: int = 1, seed: int = 0, **options):
    """Makes a corpus with the engine that repeats stages. Returns its fingerprint."""
    chosen = CorpusOptions(source=[str(sources)], **{**PLAIN, **options})  # type: ignore[arg-type]

    def run_stages(job: Job, units: list[Unit]) -> None:
        assert len(units) > 2 or sources.is_file()
        make(job, units, times=times, seed=seed)

    return preparing.make(chosen, Folder(output), lambda: run_stages)["fingerprint"]


OPTIONS = {
    "given": {},
    "held out": {"validation_source": ["held.txt"]},
    "test set": {"decontaminate": ["tests.txt"]},
    "known": {"known": ["known"]},
    "near, held out, bad": {
        "dedup_threshold": 0.5,
        "decontaminate": ["tests.txt"],
        "validation_source": ["held.txt"],
        "on_bad_record": "skip",
        "bad_record_limit": 0.2,
    },
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_job_makes_the_bytes_of_one_machine(tmp_path, sources, monkeypatch, name):
    """With any units and ranges of hashes, each stage once or three times, in any order."""
    monkeypatch.chdir(tmp_path)
    options = PLAIN | OPTIONS[name]
    Path("held.txt").write_text(text_of(20, seed=5) + "\n\n" + text_of(90)[:900])
    Path("tests.txt").write_text(text_of(90).split("\n\n")[3].replace("\n", " ") + " and more")
    if "near" in name:
        edits = [edited(text, number) for number, text in enumerate(text_of(90).split("\n\n"))]
        (sources / "e.txt").write_text("\n\n".join(edits))
    if "bad" in name:
        broken = (sources / "c.jsonl").read_text() + "{broken\n"
        (sources / "c.jsonl").write_text(broken)
        (sources / "f.txt.gz").write_bytes(gzip.compress(text_of(20, seed=9).encode())[:-9])
    if name == "given":
        prepare([str(sources)], Path("first"), **PLAIN)
        options["tokenizer"] = "first/tokenizer"
    if name == "known":
        prepare([str(sources / "b.txt.gz")], Path("known"), **PLAIN)
    here = prepare([str(sources)], Path("here"), workers=1, **options)
    assert here.manifest["counts"]["total"]["duplicate_documents"] > 30
    assert len(here.train.shards) > 3
    if "near" in name:
        assert sum(here.manifest["near_duplicate_documents"].values()) > 30
    if "bad" in name:
        assert here.manifest["skipped_files"] and here.manifest["skipped_records"]
    for number, (unit_bytes, per_range, times) in enumerate(
        ((5000, 64, 1), (5000, 1, 1), (8000, 2, 3), (100, 1, 1))
    ):
        monkeypatch.setattr("bert_jax.data.corpus.job.UNIT_BYTES", unit_bytes)
        monkeypatch.setattr("bert_jax.data.corpus.job._UNITS_PER_RANGE", per_range)
        there = f"there{number}"
        made(sources, there, times=times, seed=number, **options)
        assert files_of(Path(there)) == files_of(Path("here"))


def edited(text: str, number: int) -> str:
    """Returns a text in which about one word in thirty, or one in three, is replaced."""
    words, step = text.split(" "), (37, 31, 29, 3)[number % 4]
    for place in range(number % step, len(words), step):
        words[place] = f"word{number}"
    return " ".join(words)


def test_groups_are_connected_by_any_number_of_steps():
    """Compared with a graph search over documents."""
    draw = np.random.default_rng(0)
    for size in (0, 1, 5, 40, 300):
        pairs = draw.integers(0, 200, (size, 2), dtype=np.uint64) << np.uint64(31)
        connected = {int(each): {int(each)} for each in pairs.ravel()}
        for a, b in pairs.tolist():
            together = connected[a] | connected[b]
            connected.update(dict.fromkeys(together, together))
        expected = {place: min(together) for place, together in connected.items()}
        parts = [near.groups([part.tobytes()]) for part in np.array_split(pairs, 4)]
        for found in (near.groups([pairs.tobytes()]), near.groups(parts)):
            rows = np.frombuffer(found, np.uint64).reshape(-1, 2)
            assert rows.tolist() == sorted(map(list, expected.items()))
        by_unit = near.groups_by_unit(found)
        assert [unit for unit, _ in by_unit] == sorted({place >> 32 for place in expected})
        assert sum(len(of) for _, of in by_unit) == len(found)


def test_long_documents_are_those_of_one_machine(tmp_path, monkeypatch):
    """Their pieces are in one split, and in the sample in the same order."""
    monkeypatch.setattr("bert_jax.data.sources.document.LONGEST_DOCUMENT_BYTES", 3000)
    source = tmp_path / "long.txt"
    source.write_text("\n\n".join(text_of(60, seed=n).replace("\n\n", "\n") for n in range(12)))
    options = PLAIN | {"validation_fraction": 0.3}
    here = prepare([str(source)], tmp_path / "here", workers=1, **options)
    assert made(source, str(tmp_path / "c"), **options) == here.fingerprint


@pytest.mark.parametrize("budget", [0, 1, 300, 5000, 10**6])
def test_the_sample_does_not_depend_on_the_order_of_merging(budget):
    """Documents of the lowest priorities, up to and including the one that fills the budget."""
    draw = np.random.default_rng(1)
    rows = np.zeros(200, vocabulary._SAMPLED)
    # The pieces of a long document have the same priority.
    rows["priority"] = draw.permutation(10_000)[:200] // 50 * 50
    rows["digest"] = draw.integers(0, 2**64 - 1, 200, np.uint64)
    rows["size"], rows["number"] = draw.integers(1, 60, 200), np.arange(200)
    expected, size = [], 0
    for row in sorted(rows, key=lambda row: (row["priority"], -int(row["digest"]))):
        if size < budget:
            expected.append(int(row["number"]))
        size += int(row["size"])
    parts = [part.tobytes() for part in np.split(draw.permutation(rows), [20, 21, 150])]
    some = vocabulary.lowest(budget, parts[:2])
    (found,) = vocabulary.wanted(vocabulary.lowest(budget, [parts[3], some, parts[2]])) or [(0, [])]
    assert found[1] == expected


@pytest.mark.parametrize("kind", ["disk", "memory", "bucket"])
def test_a_shared_folder(tmp_path, kind):
    with reached() as _:
        place = {"disk": str(tmp_path), "memory": "memory://shared", "bucket": "gs://bucket/shared"}
        folder = Folder(place[kind]) / "of"
        assert folder.names() == set() and not folder.has("a")
        folder.write("a", b"one")
        with (folder / "inner").writing("b") as file:
            file.write(b"two")
        assert folder.names() == {"a", "inner"} and folder.has("a") and folder.read("a") == b"one"
        folder.write("a", b"three")
        assert folder.read("a") == b"three"
        with (folder / "inner").here() as copy:
            assert (copy / "b").read_bytes() == b"two"
        folder.remove(["a", "never"])
        assert not folder.has("a") and (folder / "inner").has("b")
        folder.remove_all()
        assert not (folder / "inner").has("b")
        folder.remove_all()


def test_a_job_in_a_bucket(tmp_path, sources):
    here = prepare([str(sources)], tmp_path / "here", **PLAIN)
    with reached() as _:
        assert made(sources, "gs://bucket/c", times=2) == here.fingerprint
        assert ".parts" not in Folder("gs://bucket/c").names()
        for name in files_of(tmp_path / "here"):
            file = tmp_path / "copy" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(Folder("gs://bucket/c").read(name))
    assert open_corpus(tmp_path / "copy", verify=SPLITS).fingerprint == here.fingerprint


# --- reports --------------------------------------------------------------------------------------


def job_at(place: Path, **fields) -> Job:
    options = CorpusOptions(source=("a.txt",))
    return Job(
        options=options, output=Folder(str(place)), described={}, by_character=False, **fields
    )


def test_an_error_of_a_stage_is_the_error_of_the_job(tmp_path):
    def stage(_: Job) -> None:
        raise UsageError("bad.txt, line 1: not UTF-8", "fix it")

    job = job_at(tmp_path)
    with pytest.raises(UsageError) as raised:
        reports.reported(job, stage)
    found = reports.error_of(job.scratch)
    assert type(found) is UsageError and found.args == raised.value.args


@pytest.mark.parametrize("name", ["tokenizers", "bert-jax"])
def test_a_worker_with_other_packages_is_rejected(tmp_path, name):
    job = job_at(tmp_path)
    other = dataclasses.replace(job, versions={**job.versions, name: "0.0.1"})
    with pytest.raises(UsageError, match=f"a worker has {name} .*, but the command has 0.0.1"):
        reports.reported(other, list, ())


@pytest.mark.parametrize("kind", ["errno", "Exception", "NoSuch"])
def test_an_error_of_an_unknown_kind_is_a_plain_error(tmp_path, kind):
    report = json.dumps({"kind": kind, "lines": ["words"]}).encode()
    (Folder(str(tmp_path)) / "reports").write("error.json", report)
    found = reports.error_of(Folder(str(tmp_path)))
    assert type(found) is BertJaxError and str(found) == "words"
    assert hasattr(errors, kind) or kind in ("Exception", "NoSuch")


def test_notes_reach_the_command(tmp_path):
    job = job_at(tmp_path)
    seen: set[str] = set()
    assert [*reports.new_notes(job.scratch, seen)] == []
    reports.reported(job, lambda _: note("train wordpiece on 1 MB"))
    reports._logged.clear()  # as in another process
    assert [*reports.new_notes(job.scratch, seen)] == ["train wordpiece on 1 MB"]
    assert [*reports.new_notes(job.scratch, seen)] == []
    (job.scratch / "reports/notes").write("0.json", json.dumps(["\x1b]0;title\x07"]).encode())
    assert [*reports.new_notes(job.scratch, seen)] == [r"\x1b]0;title\x07"]


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runner", "sources", "output", "message"),
    [
        ("DirectRunner", ["docs:"], "c", "`source` docs: is only on this machine"),
        ("DataflowRunner", ["a.txt"], "gs://b/c", "`source` a.txt: Dataflow reads from"),
        ("DataflowRunner", ["gs://b/a.txt"], "c", "`output` c: Dataflow writes to"),
        ("dataflow", ["a.txt"], "gs://b/c", "`source` a.txt: Dataflow reads from"),
        ("DirectRunner", ["a.txt"], "ftp://b/c", "`output` ftp://b/c: name a folder"),
        ("DirectRunner", ["gs://b/d/"], "gs://b/d/c", "is inside `source` gs://b/d/"),
        ("DirectRunner", ["gs://b/**/a.txt"], "gs://b/c", "is inside `source`"),
    ],
)
def test_invalid_options_of_a_job(tmp_path, monkeypatch, runner, sources, output, message):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text(text_of(30))
    with pytest.raises(UsageError, match=message):
        run.prepare_on(runner, (), sources, output)


def test_other_files_in_a_bucket_are_not_overwritten(sources):
    with reached() as _:
        mine = Folder("gs://bucket/mine/train")
        mine.write("images.tar", b"")
        with pytest.raises(UsageError, match="gs://bucket/mine exists and is not a corpus"):
            run.prepare_on("DirectRunner", (), [str(sources)], "gs://bucket/mine")
        assert mine.has("images.tar")


# --- the package of the workers -------------------------------------------------------------------


def test_the_package_of_the_workers(tmp_path):
    wheel = package.write_wheel(tmp_path, ["gcs"])
    first = wheel.read_bytes()
    assert package.write_wheel(tmp_path, ["gcs"]).read_bytes() == first
    with zipfile.ZipFile(wheel) as archive:
        (record,) = (name for name in archive.namelist() if name.endswith("/RECORD"))
        rows = [*csv.reader(io.StringIO(archive.read(record).decode()))]
        assert {row[0] for row in rows} == {*archive.namelist()}
        for name, digest, size in rows:
            if name != record:
                content = archive.read(name)
                sha = urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                assert (digest, int(size)) == (f"sha256={sha}", len(content))
        metadata = archive.read(record.replace("RECORD", "METADATA")).decode()
        archive.extractall(tmp_path / "there")
    assert "Requires-Dist: tokenizers==" in metadata and "gcsfs" in metadata
    assert "Requires-Dist: jax" not in metadata and "tensorflow" not in metadata
    code = (
        "import sys, bert_jax.data.corpus.pipeline as s, bert_jax.data.cluster.reports;"
        "assert s.__file__.startswith(sys.argv[1]), s.__file__;"
        "assert not {'jax', 'tensorflow', 'apache_beam'} & sys.modules.keys()"
    )
    there = str(tmp_path / "there")
    subprocess.run(
        [sys.executable, "-c", code, there], env={"PYTHONPATH": there}, cwd=tmp_path, check=True
    )
