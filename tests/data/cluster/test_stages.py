"""The stages of a job, run without an engine, against `prepare` of one machine."""

import csv
import dataclasses
import gzip
import hashlib
import io
import json
import logging
import subprocess
import sys
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path

import numpy as np
import pytest

from bert_jax import errors
from bert_jax.data.cluster import alike, package, reports, run, stages
from bert_jax.data.cluster.shared import Shared
from bert_jax.data.cluster.values import SAMPLED, Candidates, Job
from bert_jax.data.corpus import dedup
from bert_jax.data.corpus.append import append
from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.corpus.store import SPLITS, open_corpus
from bert_jax.data.corpus.survey import Lowest, Unit
from bert_jax.errors import BertJaxError, DataDamaged, UsageError
from bert_jax.progress import note
from tests.data.cluster.plain import make
from tests.data.corpus.test_prepare import files_of, text_of
from tests.faulty_bucket import reached


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr("bert_jax.data.corpus.dedup.PART_BYTES", 1500)
    monkeypatch.setattr("bert_jax.data.corpus.join.SHARD_TOKENS", 800)
    monkeypatch.setattr("bert_jax.data.corpus.survey._UNIT_BYTES", 5000)


@pytest.fixture
def sources(tmp_path):
    """Files of several kinds, of which some documents are in several."""
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.txt").write_text(text_of(90))
    (folder / "b.txt.gz").write_bytes(gzip.compress(text_of(60, seed=1).encode()))
    again = [*text_of(90).split("\n\n")[10:40], *text_of(60, seed=2).split("\n\n")]
    rows = [{"text": text} for text in again] + [{"text": None}]
    (folder / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "d.txt").write_text(text_of(60, seed=1)[:4000] + "\n\n" + "long " * 900)
    return folder


def job_of(
    sources: Path, output: str, *, ranges: int = 1, sample_bytes: int = 1 << 20, **options
) -> tuple[Job, list[Unit]]:
    request, given = run.request_of([str(sources)], output, options)
    job = Job(request=request, output=Shared(output), sample_bytes=sample_bytes, ranges=ranges)
    if given is not None:
        stages.keep_tokenizer(job, given)
    return job, request.units(request.reading)


OPTIONS = {
    "given": {},
    "wordpiece": {"vocab_size": 140},
    "held out": {"vocab_size": 140, "validation_sources": ["held.txt"]},
    "test set": {"vocab_size": 140, "decontaminate": ["tests.txt"]},
    "near": {"vocab_size": 140, "near_duplicates": 0.5},
    "near, held out, bad file": {
        "vocab_size": 140,
        "near_duplicates": 0.5,
        "decontaminate": ["tests.txt"],
        "validation_sources": ["held.txt"],
        "skip_bad": "file",
    },
    "bad file": {"vocab_size": 140, "skip_bad": "file"},
    "bad record": {"vocab_size": 140, "skip_bad": "record", "skip_bad_limit": 0.2},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_job_makes_the_bytes_of_one_machine(tmp_path, sources, monkeypatch, name):
    """With ranges of hashes or without, each stage once or three times, in any order."""
    monkeypatch.chdir(tmp_path)
    options = {"validation_fraction": 0.1} | OPTIONS[name]
    Path("held.txt").write_text(text_of(20, seed=5) + "\n\n" + text_of(90)[:900])
    Path("tests.txt").write_text(text_of(90).split("\n\n")[3].replace("\n", " ") + " and more")
    if "near" in name:
        near = [edited(text, number) for number, text in enumerate(text_of(90).split("\n\n"))]
        (sources / "e.txt").write_text("\n\n".join(near))
    if "bad" in name:
        broken = (sources / "c.jsonl").read_text() + "{broken\n"
        (sources / "c.jsonl").write_text(broken)
    if name == "given":
        prepare([str(sources)], Path("first"), vocab_size=140, validation_fraction=0.1)
        options["tokenizer"] = "first/tokenizer"
    here = prepare([str(sources)], Path("here"), workers=1, **options)
    assert here.manifest["counts"]["total"]["duplicate_documents"] > 30
    assert len(here.train.shards) > 3
    if "near" in name:
        assert sum(here.manifest["near_duplicate_documents"].values()) > 30
    for number, (ranges, times) in enumerate(((1, 1), (7, 1), (3, 3))):
        job, units = job_of(sources, f"there{number}", ranges=ranges, **options)
        assert len(units) > 2
        assert make(job, units, times=times, seed=number) == here.fingerprint
        job.folder.remove_all()
        assert files_of(Path(f"there{number}")) == {
            name: content for name, content in files_of(Path("here")).items() if name != ".lock"
        }


def edited(text: str, number: int) -> str:
    """Returns a text with another word in one place in thirty or so, or in one in three."""
    words, step = text.split(" "), (37, 31, 29, 3)[number % 4]
    for place in range(number % step, len(words), step):
        words[place] = f"word{number}"
    return " ".join(words)


def test_groups_hang_together_by_any_number_of_steps():
    """Against a search from document to document."""
    draw = np.random.default_rng(0)
    for size in (0, 1, 5, 40, 300):
        pairs = draw.integers(0, 200, (size, 2), dtype=np.uint64) << np.uint64(31)
        near = {int(each): {int(each)} for each in pairs.ravel()}
        for a, b in pairs.tolist():
            together = near[a] | near[b]
            near.update(dict.fromkeys(together, together))
        expected = {place: min(together) for place, together in near.items()}
        parts = [alike.groups([part.tobytes()]) for part in np.array_split(pairs, 4)]
        for found in (alike.groups([pairs.tobytes()]), alike.groups(parts)):
            rows = np.frombuffer(found, np.uint64).reshape(-1, 2)
            assert rows.tolist() == sorted(map(list, expected.items()))
        by_unit = alike.groups_by_unit(found)
        assert [unit for unit, _ in by_unit] == sorted({place >> 32 for place in expected})
        assert sum(len(of) for _, of in by_unit) == len(found)


def test_only_what_is_lost_is_encoded_again(tmp_path, sources, monkeypatch):
    job, units = job_of(sources, str(tmp_path / "c"), vocab_size=140, validation_fraction=0.1)
    first = make(job, units)
    pieces = sorted((tmp_path / "c/.parts/pieces").iterdir())
    pieces[0].unlink()
    pieces[1].write_bytes(b"damaged")
    encoded = []
    real = stages.encode_to_file
    monkeypatch.setattr(
        stages, "encode_to_file", lambda *of: encoded.append(of[2].name) or real(*of)
    )
    trained = []
    monkeypatch.setattr(
        "bert_jax.data.corpus.trained_tokenizer.train_wordpiece",
        lambda *_, **__: trained.append(1),
    )
    assert make(job, units) == first
    assert sorted(encoded) == [piece.name for piece in pieces[:2]] and not trained


def test_a_tokenizer_of_another_job_is_not_taken(tmp_path, sources):
    """Nor do its files stay beside those of the right one."""
    output = str(tmp_path / "c")
    first = {"vocab_size": 140, "validation_fraction": 0.1}
    here = prepare([str(sources)], tmp_path / "here", **first)
    for options in (first, first | {"tokenizer": "sentencepiece", "vocab_size": 50}, first):
        fingerprint = make(*job_of(sources, output, **options))
        (tmp_path / "c/corpus.json").unlink()
    assert fingerprint == here.fingerprint
    prepare([str(sources)], tmp_path / "other", tokenizer="bpe", vocab_size=400, workers=1)
    given = {"tokenizer": str(tmp_path / "other/tokenizer"), "validation_fraction": 0.1}
    make(*job_of(sources, output, **given))
    assert not (tmp_path / "c/.parts/trained").exists() or not [
        *(tmp_path / "c/.parts/trained").iterdir()
    ]
    names = {file.name for file in (tmp_path / "c/tokenizer").iterdir()}
    assert names == {file.name for file in (tmp_path / "other/tokenizer").iterdir()}


def test_a_piece_that_is_damaged_is_made_again(tmp_path, sources):
    """Also where its beginning is whole."""
    job, units = job_of(sources, str(tmp_path / "c"), vocab_size=140, validation_fraction=0.1)
    first = make(job, units)
    (piece, *_) = sorted((tmp_path / "c/.parts/pieces").iterdir())
    damaged = bytearray(piece.read_bytes())
    with zipfile.ZipFile(piece) as archive:
        end = archive.start_dir
    damaged[end - 2] ^= 1  # of the last array, of which the number of tokens says nothing
    piece.write_bytes(damaged)
    with pytest.raises(DataDamaged, match=rf"{piece} was damaged and is removed now: run the same"):
        make(job, units)
    assert not piece.exists()
    assert make(job, units) == first


def test_long_documents_are_those_of_one_machine(tmp_path, monkeypatch):
    """Their pieces are on one side, and in the sample in the same order."""
    monkeypatch.setattr("bert_jax.data.sources.document.LONGEST_DOCUMENT_BYTES", 3000)
    source = tmp_path / "long.txt"
    source.write_text("\n\n".join(text_of(60, seed=n).replace("\n\n", "\n") for n in range(12)))
    options = {"vocab_size": 140, "validation_fraction": 0.3}
    here = prepare([str(source)], tmp_path / "here", workers=1, **options)
    assert make(*job_of(source, str(tmp_path / "c"), **options)) == here.fingerprint


def test_what_a_late_worker_writes_is_not_read(tmp_path, sources, monkeypatch):
    """That of an earlier try, which had more ranges."""
    output = str(tmp_path / "c")
    options = {"vocab_size": 140, "validation_fraction": 0.1}
    job, units = job_of(sources, output, ranges=9, **options)
    first = make(job, units)
    again = dataclasses.replace(job, ranges=2, attempt="2")
    assert make(again, units) == first
    real = stages.losers

    def late(job, of, words):
        (job.scratch / "known").write("999999.u64", bytes(8))
        return real(job, of, words)

    monkeypatch.setattr(stages, "losers", late)
    with pytest.raises(BertJaxError, match="is written by another job"):
        make(dataclasses.replace(job, attempt="3"), units)


@pytest.mark.parametrize("name", ["tokenizers", "bert-jax"])
def test_a_worker_with_other_packages_is_refused(tmp_path, sources, name):
    job, units = job_of(sources, str(tmp_path / "c"), vocab_size=140)
    other = dataclasses.replace(job, versions={**job.versions, name: "0.0.1"})
    with pytest.raises(UsageError, match=f"a worker has {name} .*, and the command 0.0.1"):
        make(other, units)


def test_parts_do_not_depend_on_where_units_end():
    draw = np.random.default_rng(0)
    decisions = draw.choice([0, 0, 0, 1, 2], 500).astype(np.uint8)
    sizes = draw.integers(1, 4000, 500).astype(np.uint32)

    def parts(cuts: list[int]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {split: [] for split in SPLITS}
        begun = dict.fromkeys(SPLITS, 0)
        for start, end in zip([0, *cuts], [*cuts, 500], strict=True):
            of, text = decisions[start:end], sizes[start:end]
            order = dedup.order_of(of, text, begun, b"")
            for side, split in enumerate(SPLITS):
                last = -1
                for at, part in order.parts[split].items():
                    found[split] += [part] * int((of[last + 1 : at + 1] == side).sum())
                    last = at
                assert not (of[last + 1 :] == side).any()
                begun[split] += dedup.kept_bytes(of, text)[split]
        return found

    whole = parts([])
    assert whole["train"][-1] > 100
    starts = np.cumsum(sizes[decisions == 0], dtype=np.int64) - sizes[decisions == 0]
    assert whole["train"] == (starts // dedup.PART_BYTES).tolist()
    for _ in range(20):
        assert parts(sorted(draw.choice(500, draw.integers(0, 40)).tolist())) == whole


@pytest.mark.parametrize("budget", [0, 1, 300, 5000, 10**6])
def test_the_sample_is_that_of_one_machine(budget):
    draw = np.random.default_rng(1)
    rows = np.zeros(200, SAMPLED)
    # Pieces of a long document have one priority.
    rows["priority"] = draw.permutation(10_000)[:200] // 50 * 50
    rows["digest"] = draw.integers(0, 2**64 - 1, (200, 2), np.uint64)
    rows["size"], rows["number"] = draw.integers(1, 60, 200), np.arange(200)
    lowest = Lowest(budget)
    for row in rows:
        digest = row["digest"].astype(">u8").tobytes()
        lowest.add(int(row["priority"]), digest, int(row["size"]), int(row["number"]))
    parts = [Candidates(part.tobytes()) for part in np.split(draw.permutation(rows), [20, 21, 150])]
    some = Candidates.lowest(budget, parts[:2])
    found = Candidates.lowest(budget, [parts[3], some, parts[2]])
    assert found.array["number"].tolist() == lowest.numbers()


def test_the_notes_of_two_stages_of_one_process_that_overlap():
    logger, first, second = logging.getLogger("bert_jax"), [], []
    usual = logger.level
    logger.setLevel(logging.WARNING)
    try:
        one, other = reports._noted(first), reports._noted(second)
        one.__enter__()
        other.__enter__()
        one.__exit__(None, None, None)
        note("of the second alone")
        other.__exit__(None, None, None)
        assert (first, second) == ([], ["of the second alone"])
        assert logger.level == logging.WARNING
    finally:
        logger.setLevel(usual)


@pytest.mark.parametrize("kind", ["disk", "memory", "bucket"])
def test_a_folder_that_all_see(tmp_path, kind):
    with reached() as _:
        place = {"disk": str(tmp_path), "memory": "memory://shared", "bucket": "gs://bucket/shared"}
        folder = Shared(place[kind]) / "of"
        assert folder.names() == {} and not folder.has("a")
        folder.write("a", b"one")
        (folder / "inner").write("b", b"two")
        before = folder.names()
        assert before.keys() == {"a"} and folder.has("a") and folder.read("a") == b"one"
        folder.write("a", b"three")
        assert folder.names() != before and folder.read("a") == b"three"
        assert folder.fetch("a", tmp_path).read_bytes() == b"three"
        folder.remove(["a", "never"])
        assert not folder.has("a") and (folder / "inner").has("b")
        folder.remove_all()
        assert not (folder / "inner").has("b")
        folder.remove_all()


def test_a_job_in_a_bucket(tmp_path, sources):
    here = prepare([str(sources)], tmp_path / "here", vocab_size=140, validation_fraction=0.1)
    with reached() as _:
        job, units = job_of(sources, "gs://bucket/c", vocab_size=140, validation_fraction=0.1)
        assert make(job, units, times=2) == here.fingerprint
        job.folder.remove_all()
        for name in files_of(tmp_path / "here"):
            if name != ".lock":
                file = tmp_path / "copy" / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(job.output.read(name))
    assert open_corpus(tmp_path / "copy", verify=SPLITS).fingerprint == here.fingerprint


def test_the_text_of_a_unit_is_fetched_once(tmp_path, sources, monkeypatch):
    read, real = [], Shared.read
    monkeypatch.setattr(Shared, "read", lambda self, name: read.append(name) or real(self, name))
    job, units = job_of(sources, str(tmp_path / "c"), vocab_size=140)
    make(job, units)
    fetched = [name for name in read if name.startswith("texts/")]
    assert len(fetched) == len({*fetched}) == len(units) > 1


# --- reports --------------------------------------------------------------------------------------


def test_an_error_of_a_stage_is_the_error_of_the_job(tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"a\xff")
    job, units = job_of(tmp_path / "bad.txt", str(tmp_path / "c"), vocab_size=140)
    with pytest.raises(UsageError) as raised:
        make(job, units)
    found = reports.error_of(job.scratch)
    assert type(found) is UsageError and str(found) == str(raised.value)
    assert "bad.txt, line 1: not UTF-8" in str(found)


@pytest.mark.parametrize("kind", ["os", "errno", "Exception", "brief", "NoSuch", "__builtins__"])
def test_an_error_that_is_none_of_ours_is_a_plain_one(tmp_path, kind):
    said = json.dumps({"kind": kind, "lines": ["words"]}).encode()
    (Shared(str(tmp_path)) / "reports").write("error.json", said)
    found = reports.error_of(Shared(str(tmp_path)))
    assert type(found) is BertJaxError and str(found) == "words"
    assert hasattr(errors, kind) or kind in ("Exception", "NoSuch")


def test_notes_and_signs_reach_the_one_who_waits(tmp_path, sources, monkeypatch):
    (sources / "d.txt").write_text("Eine Zeile über Häuser und Bäume, die nicht endet " * 400)
    job, units = job_of(sources, str(tmp_path / "c"), vocab_size=400, validation_fraction=0.1)
    heard, write, signs = reports.Reports(job.scratch), Shared.write, []

    def watched(self: Shared, name: str, data: bytes) -> None:
        write(self, name, data)
        if self.place.endswith("/alive"):
            signs.append(heard.alive())

    assert [*heard.notes()] == [] and heard.alive() == {}
    with monkeypatch.context() as patch:
        patch.setattr(Shared, "write", watched)
        make(job, units)
    assert all(len(sign) == 1 for sign in signs) and signs
    reports._logged.clear()  # as in another process
    notes = [*heard.notes()]
    assert any("train wordpiece on" in note for note in notes)
    assert [*heard.notes()] == [] and heard.alive() == {}
    (job.scratch / "reports/notes").write("0.json", json.dumps(["\x1b]0;title\x07"]).encode())
    assert [*heard.notes()] == [r"\x1b]0;title\x07"]


def test_workers_that_are_gone_are_missed():
    """A process that another one replaced is not, nor one that is slow."""
    lost = run.Hope(60).lost
    assert lost(0, {}, 0) is None and lost(60, {}, 0) is None
    assert lost(61, {}, 0) == "no worker has begun"

    silent = "a worker at work has given no sign of life"
    lost = run.Hope(60).lost
    for now in range(0, 1000, 10):
        assert lost(now, {"a": now, "b": now}, 0) is None
    assert lost(1040, {"a": 1040, "b": 990}, 0) is None
    assert lost(1060, {"a": 1060, "b": 990}, 0) == silent
    assert lost(1070, {"a": 1070, "b": 990}, 1) is None  # the other one goes on
    assert lost(1100, {"b": 990}, 1) is None
    assert lost(1170, {"b": 990}, 1) == silent
    assert lost(1180, {"b": 990, "c": 1}, 1) is None  # another process
    for now in range(1180, 1500, 10):
        assert lost(now, {"b": 990, "c": now}, 1) is None
    assert lost(1510, {"b": 990}, 1) is None
    assert lost(1810, {"b": 990}, 1) is None
    assert lost(1811, {"b": 990}, 1) == "no worker has been at work"
    assert lost(1820, {}, 2) is None
    assert lost(2121, {}, 2) == "no worker has been at work"


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runner", "sources", "output", "options", "message"),
    [
        ("DirectRunner", ["a.txt"], "c", {"workers": 2}, "those of a runner stand after --"),
        ("DirectRunner", ["-"], "c", {}, "`source` - is of this machine alone"),
        ("DirectRunner", ["docs:"], "c", {}, "`source` docs: is of this machine alone"),
        ("DataflowRunner", ["a.txt"], "gs://b/c", {}, "`source` a.txt: Dataflow reads from"),
        ("DataflowRunner", ["tfds:wiki"], "gs://b/c", {}, "`source` tfds:wiki: Dataflow reads"),
        ("DataflowRunner", ["gs://b/a.txt"], "c", {}, "`output` c: Dataflow writes to"),
        ("dataflow", ["a.txt"], "gs://b/c", {}, "`source` a.txt: Dataflow reads from"),
        ("DirectRunner", ["a.txt"], "ftp://b/c", {}, "`output` ftp://b/c: a job writes to a disk"),
        ("DirectRunner", ["a.txt"], "hf:b/c", {}, "`output` hf:b/c: a job writes to a disk"),
        ("DirectRunner", ["gs://b/d/"], "gs://b/d/c", {}, "lies in the folder `source` gs://b/d/"),
        ("DirectRunner", ["gs://b/**/a.txt"], "gs://b/c", {}, "lies in the folder `source`"),
        ("DirectRunner", [], "c", {}, "no `source` given"),
    ],
)
def test_what_a_job_cannot_have(tmp_path, monkeypatch, runner, sources, output, options, message):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text(text_of(30))
    with pytest.raises(UsageError, match=message):
        run.prepare_on(runner, (), sources, output, **options)


def test_another_corpus_is_not_written_over(tmp_path, sources):
    output = tmp_path / "c"
    corpus = prepare([str(sources)], output, vocab_size=140, validation_fraction=0.1)
    before = files_of(output)
    found = run.prepare_on(
        "DirectRunner", (), [str(sources)], str(output), vocab_size=140, validation_fraction=0.1
    )
    assert found == corpus.manifest
    same = {"vocab_size": 140, "validation_fraction": 0.1}
    for asked, other, difference in (
        (sources, {"vocab_size": 110}, "its vocab_size is 140, not 110"),
        (sources, {"validation_sources": ["gs://b/v"]}, "validation source is none, not gs://b/v"),
        (sources / "a.txt", {}, f"its source is {sources}, not {sources}/a.txt"),
    ):
        with pytest.raises(UsageError, match=f"c holds another corpus .*{difference}"):
            run.prepare_on("DirectRunner", (), [str(asked)], str(output), **same | other)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter.doc").touch()
    with pytest.raises(UsageError, match="exists and is not a corpus"):
        run.prepare_on("DirectRunner", (), [str(sources)], str(tmp_path / "mine"))
    assert files_of(output) == before


def test_a_corpus_that_was_added_to_is_finished(tmp_path, sources, capsys):
    output, options = tmp_path / "c", {"vocab_size": 140, "validation_fraction": 0.1}
    prepare([str(sources)], output, **options)
    (tmp_path / "more.txt").write_text(text_of(40, seed=9))
    corpus = append([str(tmp_path / "more.txt")], output)
    found = run.prepare_on("DirectRunner", (), [str(sources)], str(output), **options)
    assert found == corpus.manifest
    assert f"{output} is finished already, and has been added to 1 time" in capsys.readouterr().err


def test_other_files_in_a_bucket_are_left_alone(sources):
    with reached() as _:
        mine = Shared("gs://bucket/mine/train")
        mine.write("images.tar", b"")
        with pytest.raises(UsageError, match="gs://bucket/mine exists and is not a corpus"):
            run.prepare_on("DirectRunner", (), [str(sources)], "gs://bucket/mine")
        assert mine.has("images.tar")
        assert not Shared("gs://bucket/mine").is_foreign(("train",))
        assert not Shared("gs://bucket/nothing").is_foreign(("train",))


def test_a_corpus_in_the_memory_of_this_process_is_refused(sources):
    """It would be gone with it."""
    with pytest.raises(UsageError, match="`output` memory://c: a job writes to a disk"):
        run.prepare_on("DirectRunner", (), [str(sources)], "memory://c")


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
        "import sys, bert_jax.data.cluster.stages as s;"
        "assert s.__file__.startswith(sys.argv[1]), s.__file__;"
        "assert not {'jax', 'tensorflow', 'apache_beam'} & sys.modules.keys()"
    )
    there = str(tmp_path / "there")
    subprocess.run(
        [sys.executable, "-c", code, there], env={"PYTHONPATH": there}, cwd=tmp_path, check=True
    )
