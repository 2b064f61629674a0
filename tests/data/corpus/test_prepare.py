"""`prepare`: reproducible bytes, splits that do not leak, and clear errors."""

import csv
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax import file_lock
from bert_jax.data.corpus import decide, encode
from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.corpus.store import Split
from bert_jax.data.matching import identity
from bert_jax.data.sources import document
from bert_jax.data.tokenizer import training
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.errors import DataDamaged, StorageFailed, UsageError
from tests.limits import HUNG
from tests.paths import ROOT

WORDS = ["the", "a", "red", "blue", "old", "new", "cat", "dog", "bird", "sees", "hears", "likes"]
WORDS += ["house", "tree", "river"]


def text_of(count: int, *, seed: int = 0) -> str:
    draw = np.random.default_rng(seed)
    documents = []
    for number in range(count):
        sentences = [
            " ".join(draw.choice(WORDS, draw.integers(4, 9))).capitalize() + f" {number}."
            for _ in range(draw.integers(2, 6))
        ]
        documents.append(" ".join(sentences[:2]) + "\n" + " ".join(sentences[2:]))
    return "\n\n".join(documents) + "\n"


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source.txt"
    path.write_text(text_of(300))
    return path


@pytest.fixture
def vocabulary(tmp_path):
    path = tmp_path / "vocab.txt"
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."]
    digits = [*"0123456789", *(f"##{digit}" for digit in "0123456789")]
    path.write_text("\n".join([*special, *WORDS, *digits]) + "\n")
    return path


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr("bert_jax.data.corpus.job.PART_BYTES", 4000)
    monkeypatch.setattr("bert_jax.data.corpus.job.SHARD_TOKENS", 4000)


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def made(source: Path, output: Path, tokenizer: Path, **options: Any):
    chosen = {"validation_fraction": 0.1, "workers": 1} | options
    return prepare([source], output, tokenizer=tokenizer, **chosen)


# --- one corpus, however it is made ---------------------------------------------------------------


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "given"])
def test_bytes_are_equal_for_any_number_of_workers(tmp_path, source, vocabulary, kind):
    options = {"tokenizer": str(vocabulary)} if kind == "given" else {"tokenizer": kind}
    options |= {"bpe": {"vocab_size": 300}, "wordpiece": {"vocab_size": 120}}.get(kind, {})
    written = []
    for workers in [1, 2, 3] if kind == "given" else [1, 2]:
        output = tmp_path / f"{workers}"
        prepare([str(source)], output, validation_fraction=0.1, workers=workers, **options)
        written.append(files_of(output))
    assert len(written[0]) > 12
    assert all(files == written[0] for files in written[1:])


def test_the_manifest(tmp_path, source, vocabulary):
    with source.open("a") as stream:
        # Two duplicates, and a document without tokens.
        stream.write("\n\n".join(["", *source.read_text().split("\n\n")[:2], "\u200b"]))
    corpus = made(source, tmp_path / "c", vocabulary)
    manifest = json.loads((tmp_path / "c/corpus.json").read_text())
    assert manifest == corpus.manifest
    assert not (tmp_path / "c/.parts").exists()
    assert manifest["sources"] == [str(source)]
    assert manifest["tokenizer"] == {
        "kind": "wordpiece",
        "hash": load_tokenizer(vocabulary).hash,
        "vocab_size": 41,
        "special_ids": {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4},
        "lowercase": True,
        "strip_accents": True,
    }
    counts = manifest["counts"]
    assert counts["total"]["documents"] == 300
    assert counts["total"]["duplicate_documents"] == 2
    assert counts["total"]["empty_documents"] == 1
    assert counts["total"]["words"] == len(text_of(300).split())
    for name, total in counts["total"].items():
        assert total == counts["train"][name] + counts["validation"][name]
    assert 10 < counts["validation"]["documents"] < 60

    tokens = np.concatenate(corpus.train.shards)
    share = np.bincount(tokens) / len(tokens)
    entropy = -sum(p * math.log(p) for p in share if p)
    assert manifest["unigram_entropy_nats"] == pytest.approx(entropy, abs=1e-12)
    on_disk = {str(p.relative_to(tmp_path / "c")) for p in (tmp_path / "c").rglob("*.npy")}
    assert set(manifest["files"]) == on_disk


def test_the_fingerprint_depends_on_the_content_only(tmp_path, source, vocabulary):
    def fingerprint(name, text=None, **options):
        path = tmp_path / f"{name}.txt"
        path.write_text(text or source.read_text())
        return made(path, tmp_path / name, vocabulary, **options).fingerprint

    first = fingerprint("first")
    assert fingerprint("second") == first
    assert fingerprint("third", seed=1) != first
    assert fingerprint("fourth", validation_fraction=0.2) != first
    # A token moved to another position: counts and sizes stay the same.
    changed = source.read_text().replace("The cat", "Cat the", 1)
    assert changed != source.read_text()
    assert fingerprint("fifth", changed) != first


def test_a_large_vocabulary_is_stored_in_32_bits(tmp_path, source, vocabulary):
    words = vocabulary.read_text() + "".join(f"w{i}\n" for i in range(65536))
    vocabulary.write_text(words + "zebra\n")
    source.write_text(text_of(20) + "\nThe zebra.\n")
    corpus = made(source, tmp_path / "c", vocabulary, validation_fraction=0.3)
    tokens = np.concatenate([*corpus.train.shards, *corpus.validation.shards])
    assert tokens.dtype == np.uint32 and tokens.max() == 41 + 65536


# --- finished, interrupted, damaged ---------------------------------------------------------------


def test_a_finished_corpus_is_reused(tmp_path, source, vocabulary, capsys):
    def run(**changes):
        options = {"vocab_size": 120, "validation_fraction": 0.1, "workers": 1, **changes}
        return prepare([str(source)], tmp_path / "c", **options)

    first = run()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "c").rglob("*")}
    source.rename(source.with_name("moved.txt"))
    capsys.readouterr()
    assert run(workers=2).fingerprint == first.fingerprint
    assert "finished already; the sources were not read again" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "c").rglob("*")} == before
    for changes, difference in [
        ({"vocab_size": 130}, "its vocab_size is 120, not 130"),
        ({"lowercase": False}, "its lowercase is True, not False"),
        ({"seed": 5}, "its seed is 0, not 5"),
        ({"tokenizer": str(vocabulary)}, "its tokenizer is 'wordpiece', not 'given'"),
        ({"validation_source": ["held.txt"]}, "its validation source is none, not held.txt"),
    ]:
        with pytest.raises(UsageError) as caught:
            run(**changes)
        assert difference in str(caught.value) and "`output`" in str(caught.value)
    with pytest.raises(UsageError, match=rf"its source is {source}, not other\.txt"):
        prepare(["other.txt"], tmp_path / "c", vocab_size=120, validation_fraction=0.1)
    given = made(source.with_name("moved.txt"), tmp_path / "g", vocabulary).manifest["sources"]
    vocabulary.write_text(vocabulary.read_text() + "zebra\n")
    with pytest.raises(UsageError, match="its tokenizer is another one"):
        made(given[0], tmp_path / "g", vocabulary)
    shard = tmp_path / "c/train/00000.tokens.npy"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\xff")
    with pytest.raises(DataDamaged, match=r"00000\.tokens\.npy"):
        run()


SCRIPT = """
import os, sys, time
from pathlib import Path
from bert_jax.data.corpus import encode, job, prepare as module

job.PART_BYTES = job.SHARD_TOKENS = 4000
encode_documents = encode.encode_documents

def slowly(*arguments, **options):
    time.sleep(0.4)
    return encode_documents(*arguments, **options)

encode.encode_documents = slowly
if __name__ == "__main__":
    module.prepare(
        [sys.argv[1]], Path(sys.argv[2]), tokenizer=sys.argv[4], validation_fraction=0.1,
        workers=int(sys.argv[3]),
    )
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0]
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_killed_run_leaves_no_process_and_is_resumed(tmp_path, source, vocabulary):
    """SIGKILL, which no process can catch, while pieces are being written."""
    output, script = tmp_path / "c", tmp_path / "script.py"
    script.write_text(SCRIPT)
    running = subprocess.Popen(
        [sys.executable, script, source, output, "2", vocabulary],
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + HUNG
    while len(list(output.glob(".parts/pieces/*.npz"))) < 3:
        assert running.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    tasks = Path(f"/proc/{running.pid}/task").glob("*/children")
    children = [child for task in tasks for child in task.read_text().split()]
    assert len(children) >= 2
    running.send_signal(signal.SIGKILL)
    running.wait()
    while any(is_alive(int(child)) for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not (output / "corpus.json").exists()
    kept = {path.stem for path in output.glob(".parts/pieces/*.npz")}
    encoded = []
    with pytest.MonkeyPatch.context() as patch:
        real = encode.encode_piece
        patch.setattr(encode, "encode_piece", lambda *of: encoded.append(of[2].key) or real(*of))
        again = made(source, output, vocabulary)
    assert encoded and not kept & {*encoded}
    assert files_of(output) == files_of(made(source, tmp_path / "whole", vocabulary).directory)
    assert again.manifest["counts"]["total"]["documents"] == 300


def test_a_trained_tokenizer_is_kept_for_the_same_options_only(tmp_path, source, monkeypatch):
    """Also if a run with a given tokenizer happened in between."""

    def run(vocab_size=None, **options):
        return prepare(
            [str(source)], tmp_path / "c", vocab_size=vocab_size, validation_fraction=0.1,
            workers=1, **options,
        )  # fmt: skip

    def stop(*_, **__):
        raise KeyboardInterrupt

    trained, train = [], training.train_tokenizer
    monkeypatch.setattr(
        training, "train_tokenizer",
        lambda *of, **options: trained.append(options["vocab_size"]) or train(*of, **options),
    )  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(encode, "encode_documents", stop)
        for vocab_size, expected in ((120, [120]), (120, [120]), (130, [120, 130])):
            with pytest.raises(KeyboardInterrupt):
                run(vocab_size)
            assert trained == expected
        shutil.copytree(tmp_path / "c/tokenizer", tmp_path / "given")
        with pytest.raises(KeyboardInterrupt):
            run(tokenizer=str(tmp_path / "given"))
    assert run(130).vocab_size == 130
    assert trained == [120, 130, 130]


def test_a_damaged_piece_is_removed_and_made_again(tmp_path, source, vocabulary, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("bert_jax.data.corpus.shards.cut", None)  # after the pieces
        with pytest.raises(TypeError):
            made(source, tmp_path / "c", vocabulary)
    first, second = sorted((tmp_path / "c/.parts/pieces").iterdir())[:2]
    first.write_bytes(b"damaged")
    data = bytearray(second.read_bytes())
    data[len(data) // 2] ^= 1
    second.write_bytes(data)
    whole = made(source, tmp_path / "whole", vocabulary)
    assert files_of(made(source, tmp_path / "c", vocabulary).directory) == files_of(whole.directory)


def test_a_source_that_changes_between_the_passes_is_rejected(
    tmp_path, source, vocabulary, monkeypatch
):
    real = decide.begun
    monkeypatch.setattr(decide, "begun", lambda whole: source.write_text("x") and real(whole))
    with pytest.raises(UsageError, match=r"source\.txt: changed while they were read"):
        made(source, tmp_path / "c", vocabulary)


# --- refusals -------------------------------------------------------------------------------------


def test_a_failed_command_leaves_no_files(tmp_path, vocabulary):
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"one\n\n\xe9 two\n")
    one = tmp_path / "one.txt"
    one.write_text("only one document\n")
    mine = tmp_path / "mine"
    mine.mkdir()
    for source in ("none.txt", str(bad), str(one)):
        for output in (tmp_path / "new", mine):
            with pytest.raises(UsageError):
                prepare([source], output, tokenizer=str(vocabulary), workers=1)
            assert output.exists() == (output == mine)
            assert not [*mine.iterdir()]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": [""]}, "`source` is empty"),
        ({"source": []}, "no `source`"),
        ({"source": "a.txt"}, "`source` is a single string, a.txt; make it a list"),
        ({"source": ["missing.txt"]}, "missing.txt: no such file or folder"),
        ({"validation_source": [" "]}, "`validation_source` is empty"),
        ({"decontaminate": [""]}, "`decontaminate` is empty"),
        ({"known": ["nowhere"]}, "nowhere is not a corpus"),
        ({"vocab_size": 0}, "`vocab_size` 0"),
        ({"validation_fraction": 0}, "`validation_fraction` 0 must be between 0 and 1"),
        ({"validation_fraction": 1.0}, "`validation_fraction` 1.0 must be between 0 and 1"),
        ({"dedup_threshold": 0.2}, "`dedup_threshold` 0.2 must be between 0.3 and 1"),
        ({"seed": -1}, "`seed` -1"),
        ({"workers": 0}, "`workers` 0 must be at least 1"),
        ({"tokenizer": "wordpeice"}, "wordpeice is neither a kind nor a file"),
        ({"tokenizer": "bpe", "lowercase": True}, "`lowercase` does not apply to `tokenizer` bpe"),
        ({"tokenizer": "sentencepiece", "strip_accents": "yes"}, "does not apply to `tokenizer`"),
        ({"strip_accents": True}, "`strip_accents` True must be auto, yes or no"),
        ({"tokenizer": "characters", "dedup_threshold": 0.8}, "compares words"),
    ],
)
def test_invalid_options_are_rejected(tmp_path, source, options, message):
    with pytest.raises(UsageError) as caught:
        prepare(**{"source": [source], "output": tmp_path / "c", "workers": 1, **options})
    assert message in str(caught.value)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" \n\n\t\n", "empty: no document contains text"),
        ("One.\nTwo.\nThree.\n", "only one document; next-sentence pairs need another document"),
        ("Same.\n\nSame.\n", "only one document"),
        ("One.\n\nTwo.\n\nThree.\n", "validation would get 0 of 3 documents and needs at least 2"),
    ],
)
@pytest.mark.parametrize("trained", [True, False])
def test_a_corpus_that_is_too_small_is_rejected(
    tmp_path, monkeypatch, vocabulary, text, expected, trained
):
    """Before anything is trained or encoded."""
    monkeypatch.setattr(training, "train_tokenizer", None)
    monkeypatch.setattr(encode, "encode_documents", None)
    (tmp_path / "a.txt").write_text(text)
    tokenizer = "wordpiece" if trained else str(vocabulary)
    with pytest.raises(UsageError) as caught:
        prepare([str(tmp_path / "a.txt")], tmp_path / "c", tokenizer=tokenizer, workers=1)
    assert caught.value.exit_code == 2
    assert "a.txt: " in str(caught.value) and expected in str(caught.value)


def test_an_output_inside_a_source_is_rejected(tmp_path, source):
    folder = tmp_path / "texts"
    folder.mkdir()
    shutil.copy(source, folder)
    with pytest.raises(UsageError, match="would be read as text"):
        prepare([str(folder)], folder / "corpus", workers=1)
    assert [path.name for path in folder.iterdir()] == [source.name]


def test_a_glob_does_not_read_the_files_of_the_corpus(tmp_path, source):
    """The vocabulary is a text file that exists when the sources are read again."""
    (tmp_path / "data").mkdir()
    shutil.copy(source, tmp_path / "data")
    glob, output = str(tmp_path / "data/**/*.txt"), tmp_path / "data/corpus"
    found = prepare([glob], output, vocab_size=300, workers=1)
    alone = prepare([str(source)], tmp_path / "alone", vocab_size=300, workers=1)
    assert (output / "tokenizer/vocab.txt").is_file()
    assert found.manifest["counts"] == alone.manifest["counts"]


def test_two_commands_with_the_same_output(tmp_path, source, vocabulary):
    output = tmp_path / "corpus"
    refused = pytest.raises(UsageError, match=rf"process {os.getpid()} on .* is writing {output}; ")
    with file_lock.hold(output / ".lock"), refused:
        made(source, output, vocabulary)
    # The lock file of a killed process is not held, and is removed.
    assert [path.name for path in output.iterdir()] == [".lock"]
    made(source, output, vocabulary)
    names = ["corpus.json", "keys", "tokenizer", "train", "validation"]
    assert sorted(path.name for path in output.iterdir()) == names


def test_a_folder_with_other_files_is_not_overwritten(tmp_path, source):
    (tmp_path / "c/train").mkdir(parents=True)
    (tmp_path / "c/train/mine").write_text("precious")
    (tmp_path / "file").write_text("precious")
    for name in ("c", "file"):
        with pytest.raises(UsageError, match="exists and is not a corpus: choose another `output`"):
            prepare([str(source)], tmp_path / name, workers=1)
    assert [*files_of(tmp_path / "c")] == ["train/mine"]


def test_output_that_cannot_be_written(tmp_path, source):
    (tmp_path / "file").touch()
    with pytest.raises(StorageFailed) as caught:
        prepare([str(source)], tmp_path / "file" / "c", workers=1)
    assert caught.value.exit_code == 7
    assert str(tmp_path / "file") in str(caught.value)


# --- the split ------------------------------------------------------------------------------------


def ids_of(split: Split) -> list[list[int]]:
    """Returns the ids of each document of one split."""
    tokens = np.concatenate(split.shards)
    sentences, documents = split.starts()
    starts = sentences[documents]
    return [tokens[first:end].tolist() for first, end in pairwise(starts)]


def test_the_split_is_by_content(tmp_path, source, vocabulary):
    """For any order of the documents, and for copies in other files."""

    def held_out(name: str, *sources: Path, seed: int = 0) -> set[tuple[int, ...]]:
        options = {"validation_fraction": 0.3, "seed": seed, "workers": 1}
        corpus = prepare([*sources], tmp_path / name, tokenizer=vocabulary, **options)
        return {tuple(ids) for ids in ids_of(corpus.validation)}

    first = held_out("first", source)
    assert 0.2 < len(first) / 300 < 0.4
    backwards = tmp_path / "backwards.txt"
    backwards.write_text("\n\n".join(reversed(source.read_text().strip().split("\n\n"))))
    assert held_out("backwards", backwards, source) == first
    assert held_out("other seed", source, seed=1) != first


def test_no_document_is_in_both_splits(tmp_path, vocabulary, monkeypatch):
    """Tested on the ids of a whole corpus, with copies in other files in another spelling. All
    pieces of a document that is too long are in the same split, also if the document repeats.
    """
    monkeypatch.setattr(document, "LONGEST_LINE_BYTES", 300)
    monkeypatch.setattr(document, "LONGEST_DOCUMENT_BYTES", 900)
    monkeypatch.setattr(identity, "_BEGINNING_BYTES", 250)
    texts = text_of(300).rstrip("\n").split("\n\n")
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    copies = [text.upper().replace("\n", "  \n") for text in texts[::2]]
    copies += [text.replace(".", " ;").replace(" the ", ", the-") for text in texts[::3]]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in copies))
    with (tmp_path / "c.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([["text"], *([t.replace(" ", "\n", 4)] for t in texts[::4])])
    lines = [[f"The {n} old dog {r} likes the red house." for n in range(90)] for r in range(20)]
    records = ["\n".join(record) for record in lines]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in records))
    again = (record.upper().replace(" ", "  ") for record in records)
    (tmp_path / "e.txt").write_text("\n\n".join(again))

    sources = [str(tmp_path / name) for name in ("a.txt", "b.jsonl", "c.csv", "d.jsonl", "e.txt")]
    options = {"tokenizer": str(vocabulary), "validation_fraction": 0.3, "workers": 1}
    corpus = prepare(sources, tmp_path / "corpus", **options)
    tokenizer = load_tokenizer(corpus.directory / "tokenizer")
    words, of_record = {}, {}
    for split in (corpus.train, corpus.validation):
        found = [tokenizer.decode(ids) for ids in ids_of(split)]
        words[split.name] = [re.sub(r"\W", "", text).casefold() for text in found]
        of_record[split.name] = {n for text in found for n in re.findall(r"dog (\d+) likes", text)}
    train, held_out = set(words["train"]), set(words["validation"])
    assert not train & held_out and train and held_out
    assert sum(map(len, words.values())) == len(train | held_out), "each is there once"
    assert {re.sub(r"\W", "", text).casefold() for text in texts} <= train | held_out
    assert not of_record["train"] & of_record["validation"]
    assert of_record["train"] | of_record["validation"] == {str(r) for r in range(20)}
    assert of_record["validation"] and len(train | held_out) > len(texts) + 3 * len(records)


# --- documents of other corpora -------------------------------------------------------------------


def test_documents_of_known_corpora_are_skipped(tmp_path, vocabulary, capsys):
    """Documents of both splits, in another spelling, and of a corpus that skipped others."""
    texts = text_of(300).rstrip("\n").split("\n\n")
    places = []
    for number, first in enumerate((0, 80, 160)):
        path = tmp_path / f"{number}.txt"
        path.write_text("\n\n".join(text.upper() for text in texts[first : first + 100]))
        output = tmp_path / f"c{number}"
        options = {"validation_fraction": 0.2, "known": [*places]}
        corpus = made(path, output, vocabulary, **options)
        assert corpus.manifest["counts"]["total"]["documents"] == (80 if number else 100)
        assert corpus.manifest["counts"]["total"]["duplicate_documents"] == (20 if number else 0)
        places.append(output)
    (tmp_path / "all.txt").write_text("\n\n".join(texts))
    options = {"validation_fraction": 0.2, "known": places, "workers": 2}
    corpus = made(tmp_path / "all.txt", tmp_path / "rest", vocabulary, **options)
    assert corpus.manifest["counts"]["total"]["documents"] == 40
    assert made(tmp_path / "all.txt", tmp_path / "rest", vocabulary, **options)
    assert "finished already" in capsys.readouterr().err
    with pytest.raises(UsageError, match="its known is"):
        made(tmp_path / "all.txt", tmp_path / "rest", vocabulary, **options | {"known": places[:2]})
    with pytest.raises(UsageError, match=r"all 100 documents were dropped .100 duplicate"):
        made(tmp_path / "0.txt", tmp_path / "none", vocabulary, known=places)


def test_a_known_corpus_must_be_complete_and_comparable(tmp_path, source, vocabulary):
    made(source, tmp_path / "c", vocabulary)
    with pytest.raises(UsageError, match=r"`known` .*: only one of the two corpora"):
        made(source, tmp_path / "d", Path("characters"), known=[tmp_path / "c"])
    keys = tmp_path / "c/keys/train.u64"
    data = keys.read_bytes()
    for damage in (lambda: keys.write_bytes(bytes([data[0] ^ 1]) + data[1:]), keys.unlink):
        damage()
        with pytest.raises(DataDamaged, match=r"train\.u64 is missing, or was altered"):
            made(source, tmp_path / "d", vocabulary, known=[tmp_path / "c"])
    assert not (tmp_path / "d").exists()
