"""A corpus that grows is the corpus that is made in one go, but for how its shards are cut."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import bert_jax
from bert_jax import file_lock
from bert_jax.__main__ import main
from bert_jax.data.corpus.append import append
from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.corpus.store import SPLITS, Corpus, Split, open_corpus
from bert_jax.errors import DataDamaged, UsageError
from tests.data.corpus.test_prepare import files_of, text_of
from tests.paths import ROOT

FILES = 10
# What of a manifest does not depend on how the text came.
_SAME = ("counts", "unknown_share", "lost", "text", "options", "characters")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr("bert_jax.data.corpus.dedup.PART_BYTES", 3000)
    monkeypatch.setattr("bert_jax.data.corpus.join.SHARD_TOKENS", 3000)


@pytest.fixture
def files(tmp_path) -> list[str]:
    """Texts of which each repeats some of those before, spelt otherwise, and some of its own."""
    every = text_of(400).rstrip("\n").split("\n\n")
    draw, paths = np.random.default_rng(5), []
    for number, part in enumerate(np.array_split(np.array(every), FILES)):
        before = every[: max(20, 40 * number)]
        copies = [text.upper().replace(" ", "  ") for text in draw.choice(before, 9).tolist()]
        texts = [
            *part.tolist(),
            *copies,
            part[0].item().replace(".", " !"),
            "Zebra \u00a7 caf\u00e9.",
        ]
        path = tmp_path / f"{number}.txt"
        path.write_text("\n\n".join(texts) + "\n")
        paths.append(str(path))
    return paths


@pytest.fixture
def vocabulary(tmp_path, files) -> str:
    prepare(files[:1], tmp_path / "for-words", vocab_size=120, validation_fraction=0.2, workers=1)
    return str(tmp_path / "for-words/tokenizer")


def documents_of(split: Split) -> Counter[tuple[int, ...]]:
    tokens = np.concatenate(split.shards)
    starts = split.sentence_starts[split.document_starts]
    return Counter(tuple(tokens[first:end].tolist()) for first, end in pairwise(starts))


def assert_same_corpus(one: Corpus, other: Corpus) -> None:
    for split in SPLITS:
        assert documents_of(getattr(one, split)) == documents_of(getattr(other, split))
    for name in _SAME:
        assert one.manifest.get(name) == other.manifest.get(name), name
    entropies = [corpus.manifest["unigram_entropy_nats"] for corpus in (one, other)]
    assert entropies[0] == entropies[1]
    assert one.manifest["sources"] == other.manifest["sources"]


@pytest.mark.parametrize("cuts", [(1,), (9,), (5,), (2, 4, 7), tuple(range(1, FILES))], ids=str)
@pytest.mark.parametrize("workers", [1, 2])
def test_the_corpus_made_in_one_go(tmp_path, files, vocabulary, cuts, workers):
    options = {"tokenizer": vocabulary, "validation_fraction": 0.2, "seed": 3}
    whole = prepare(files, tmp_path / "whole", workers=1, **options)
    output = tmp_path / "grown"
    prepare(files[: cuts[0]], output, workers=1, **options)
    for begin, end in pairwise((*cuts, FILES)):
        before = files_of(output)
        described = json.loads(before.pop("corpus.json"))
        grown = append(files[begin:end], output, workers=workers)
        after = files_of(output)
        assert {name: after[name] for name in before} == before, "old files stay"
        assert described["files"].items() < grown.manifest["files"].items()
        assert len(after) > len(before) + 1
        entry = grown.manifest["appended"][-1]
        assert entry["sources"] == files[begin:end] and sum(entry["documents"].values())
    assert_same_corpus(open_corpus(output, verify=SPLITS), whole)
    assert whole.manifest["counts"]["total"]["duplicate_documents"] == 10 * FILES + FILES - 1
    assert not (output / ".parts").exists() and not (output / ".lock").exists()


def test_old_documents_come_first_in_their_order(tmp_path, files, vocabulary):
    options = {"tokenizer": vocabulary, "validation_fraction": 0.2, "workers": 1}
    old = prepare(files[:4], tmp_path / "c", **options)
    tokens = {split: np.concatenate(getattr(old, split).shards) for split in SPLITS}
    new = append(files[4:], tmp_path / "c", workers=1)
    for split in SPLITS:
        grown = np.concatenate(getattr(new, split).shards)
        assert len(grown) > len(tokens[split])
        np.testing.assert_array_equal(grown[: len(tokens[split])], tokens[split])
    assert new.fingerprint != old.fingerprint
    assert new.tokenizer_hash == old.tokenizer_hash


def test_from_python_places_are_paths_or_texts(tmp_path, files, vocabulary):
    options = {"validation_fraction": 0.2, "workers": 1}
    prepare(files[:4], tmp_path / "texts", tokenizer=vocabulary, **options)
    expected = append(files[4:], tmp_path / "texts", workers=1)
    paths, place = [*map(Path, files)], str(tmp_path / "paths")
    bert_jax.prepare(paths[:4], place, tokenizer=Path(vocabulary), **options)
    assert bert_jax.append(paths[4:], place, workers=1).fingerprint == expected.fingerprint
    for call in (bert_jax.prepare, bert_jax.append):
        with pytest.raises(UsageError, match=r"`source` is one place, .*; make it a list"):
            call(files[0], place)


def test_a_trained_vocabulary_stays(tmp_path, files):
    old = prepare(files[:5], tmp_path / "c", vocab_size=120, validation_fraction=0.2, workers=1)
    before = files_of(tmp_path / "c/tokenizer")
    new = append(
        files[5:], tmp_path / "c", vocab_size=120, tokenizer="wordpiece", seed=0, workers=1
    )
    assert files_of(tmp_path / "c/tokenizer") == before
    assert new.manifest["tokenizer"] == old.manifest["tokenizer"]
    assert new.manifest["options"] == old.manifest["options"]


def test_the_same_text_again_changes_nothing(tmp_path, files, vocabulary, capsys):
    output = tmp_path / "c"
    prepare(files[:3], output, tokenizer=vocabulary, validation_fraction=0.2, workers=1)
    append(files[3:5], output, workers=1)
    before = files_of(output)
    for again in (files[3:5], files[:1], files[:5]):
        append(again, output, workers=1)
        assert "has all of these documents already: nothing to do" in capsys.readouterr().err
        assert files_of(output) == before
    # The command that began it finds it finished.
    prepare(files[:3], output, tokenizer=vocabulary, validation_fraction=0.2, workers=1)
    assert "is finished already, and has been added to 1 time since" in capsys.readouterr().err
    assert files_of(output) == before


def test_the_order_of_fields_means_nothing(tmp_path, files, vocabulary):
    """A manifest whose keys were sorted has the same fingerprint, and is the same corpus."""
    grown = []
    for name in ("as-written", "sorted"):
        output = tmp_path / name
        prepare(files[:2], output, tokenizer=vocabulary, validation_fraction=0.2, workers=1)
        manifest = json.loads((output / "corpus.json").read_text())
        (output / "corpus.json").write_text(json.dumps(manifest, sort_keys=name == "sorted"))
        grown.append(append(files[2:4], output, workers=1))
    assert_same_corpus(*grown)


def test_a_held_out_side_of_its_own(tmp_path, files, vocabulary):
    """Nothing is drawn: all that is added is trained on, but for what is held out."""
    held_out, options = files[9:], {"tokenizer": vocabulary, "workers": 1}
    whole = prepare(files[:9], tmp_path / "whole", validation_sources=held_out, **options)
    prepare(files[:2], tmp_path / "c", validation_sources=held_out, **options)
    grown = append(files[2:9], tmp_path / "c", workers=1)
    for split in SPLITS:
        assert documents_of(getattr(grown, split)) == documents_of(getattr(whole, split))
    assert grown.manifest["counts"] == whole.manifest["counts"]
    assert grown.manifest["validation_sources"] == held_out
    with pytest.raises(UsageError, match=r"side already.*leave `validation_source` out"):
        append(files[2:9], tmp_path / "c", validation_sources=held_out)


def test_records_that_are_left_out_are_added_up(tmp_path, files, vocabulary):
    rows = [{"text": text} for text in text_of(60, seed=9).split("\n\n")] + [{"text": None}]
    for name, part in (("a", rows[:30]), ("b", rows[30:])):
        lines = [json.dumps(row) for row in [*part, {"text": " "}]]
        (tmp_path / f"{name}.jsonl").write_text("\n".join([*lines, "no JSON"]) + "\n")
    sources = [str(tmp_path / f"{name}.jsonl") for name in "ab"]
    options = {"skip_bad": "record", "skip_bad_limit": 0.2, "workers": 1}
    making = {"tokenizer": vocabulary, "validation_fraction": 0.2, **options}
    whole = prepare(sources, tmp_path / "whole", **making)
    prepare(sources[:1], tmp_path / "c", **making)
    grown = append(sources[1:], tmp_path / "c", **options)
    assert_same_corpus(grown, whole)
    for name in ("skipped_records", "records_without_text"):
        assert grown.manifest[name] == whole.manifest[name], name


def test_other_fields_and_encodings_are_the_files_own(tmp_path, files, vocabulary):
    output = tmp_path / "c"
    prepare(files[:3], output, tokenizer=vocabulary, validation_fraction=0.2, workers=1)
    rows = [json.dumps({"content": text}) for text in text_of(30, seed=8).split("\n\n")]
    (tmp_path / "new.jsonl").write_text("\n".join(rows))
    grown = append([str(tmp_path / "new.jsonl")], output, text_field="content", workers=1)
    assert sum(grown.manifest["appended"][0]["documents"].values()) == 30
    (tmp_path / "old.txt").write_bytes("Der Käse.\n\nDie Öfen.\n".encode("cp1252"))
    append([str(tmp_path / "old.txt")], output, encoding="cp1252", workers=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"language": "de"}, "was made with `language` en, not de: leave `language` out"),
        ({"document": "line"}, "was made with `document` blank, not line"),
        ({"paragraph": "blank"}, "was made with `paragraph` line, not blank"),
        ({"lowercase": False}, "was made with `lowercase` yes, not no"),
        ({"strip_accents": False}, "was made with `strip_accents` yes, not no"),
        ({"seed": 1}, "was made with `seed` 0, not 1"),
        ({"validation_fraction": 0.3}, "was made with `validation_fraction` 0.2, not 0.3"),
        ({"vocab_size": 130}, "was made with `vocab_size` 120, not 130"),
        ({"tokenizer": "bpe"}, "was made with `tokenizer` wordpiece, not bpe"),
        (
            {"seed": 1, "language": "de"},
            "`seed` 0, not 1; was made with `language` en, not de: leave `seed` and `language` out",
        ),
    ],
    ids=str,
)
def test_other_options_are_refused(tmp_path, files, options, said):
    prepare(files[:2], tmp_path / "c", vocab_size=120, validation_fraction=0.2, workers=1)
    before = files_of(tmp_path / "c")
    with pytest.raises(UsageError) as caught:
        append(files[2:], tmp_path / "c", **options)
    assert said in str(caught.value) and "another `output`" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert files_of(tmp_path / "c") == before


def test_what_it_was_made_with_may_be_said_again(tmp_path, files, vocabulary):
    making = {"language": "de-AT", "document": "file", "seed": 4, "validation_fraction": 0.3}
    for number in range(10):
        (tmp_path / f"book{number}.txt").write_text(text_of(3, seed=number))
    books = [str(tmp_path / f"book{number}.txt") for number in range(10)]
    prepare(books[:8], tmp_path / "c", tokenizer=vocabulary, workers=1, **making)
    grown = append(
        books[8:], tmp_path / "c", tokenizer=vocabulary, lowercase=True, workers=1, **making
    )
    assert grown.manifest["counts"]["total"]["documents"] == 10
    other = prepare(
        files[:1], tmp_path / "other", vocab_size=112, validation_fraction=0.2, workers=1
    )
    with pytest.raises(UsageError, match="was made with another `tokenizer` than"):
        append(books[8:], tmp_path / "c", tokenizer=str(other.directory / "tokenizer"))


def test_where_there_is_nothing_to_add_to(tmp_path, files, vocabulary):
    with pytest.raises(UsageError, match=r"is not a corpus: it has no corpus\.json; .* makes one"):
        append(files, tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    output = tmp_path / "c"
    prepare(files[:2], output, tokenizer=vocabulary, validation_fraction=0.2, workers=1)
    with pytest.raises(UsageError, match="no `source` given"):
        append([], output)
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(UsageError, match=r"empty\.txt: empty: no document with text"):
        append([str(tmp_path / "empty.txt")], output)
    with pytest.raises(TypeError, match="no option 'colour'"):
        append(files, output, colour="red")


@pytest.mark.parametrize("changed", [False, True])
def test_another_version_that_cuts_sentences_is_said(tmp_path, files, vocabulary, changed, capsys):
    output = tmp_path / "c"
    prepare(files[:2], output, tokenizer=vocabulary, validation_fraction=0.2, workers=1)
    manifest = json.loads((output / "corpus.json").read_text())
    if changed:
        manifest["versions"]["sentencex"] = "0.6.1"
    (output / "corpus.json").write_text(json.dumps(manifest))
    assert "appended" in append(files[2:], output, workers=1).manifest
    said = f"{output} was cut into sentences by sentencex 0.6.1, new text is by"
    assert (said in capsys.readouterr().err) == changed


def test_a_damaged_shard_is_named_before_anything_is_added(tmp_path, files, vocabulary):
    """It has an id that the vocabulary lacks, which cannot be counted with the others."""
    prepare(files[:1], tmp_path / "c", tokenizer=vocabulary, validation_fraction=0.2, workers=1)
    shard = tmp_path / "c/train/00000.tokens.npy"
    shard.write_bytes(shard.read_bytes()[:-2] + b"\xff\xff")
    before = files_of(tmp_path / "c")
    with pytest.raises(DataDamaged, match=r"00000\.tokens\.npy has another checksum"):
        append(files[1:2], tmp_path / "c", workers=1)
    assert files_of(tmp_path / "c") == before


@pytest.mark.parametrize("damage", ["missing", "altered", "outside"])
def test_damaged_digests_are_noticed(tmp_path, files, vocabulary, damage):
    output = tmp_path / "c"
    prepare(files[:2], output, tokenizer=vocabulary, validation_fraction=0.2, workers=1)
    file = output / "digests/00000.u64"
    if damage == "missing":
        file.unlink()
    elif damage == "altered":
        file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
    else:
        manifest = json.loads((output / "corpus.json").read_text())
        shutil.move(file, tmp_path / "00000.u64")
        manifest["digests"] = {"../00000.u64": manifest["digests"]["digests/00000.u64"]}
        (output / "corpus.json").write_text(json.dumps(manifest))
    with pytest.raises(DataDamaged, match=r"00000\.u64 is missing, or is not what was written"):
        append(files[2:], output)


# --- interrupted, and at once ---------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["encode_units", "digests.add", "write_whole"])
def test_an_interrupted_addition_leaves_the_corpus_as_it_was(
    tmp_path, files, vocabulary, monkeypatch, moment
):
    output, options = tmp_path / "c", {"validation_fraction": 0.2, "workers": 1}
    old = prepare(files[:3], output, tokenizer=vocabulary, **options)
    before = files_of(output)

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"bert_jax.data.corpus.prepare.{moment}", stop)
        with pytest.raises(KeyboardInterrupt):
            append(files[3:9], output, workers=1)
    left = files_of(output)
    assert {name: left[name] for name in before} == before
    assert len(left) > len(before) or moment == "encode_units"
    assert open_corpus(output, verify=SPLITS).fingerprint == old.fingerprint
    # With other text, of which there is less: nothing is left of the first attempt.
    grown = append(files[3:4], output, workers=1)
    whole = prepare(files[:4], tmp_path / "whole", tokenizer=vocabulary, **options)
    assert_same_corpus(grown, whole)
    on_disk = {name for name in files_of(output) if name.endswith(".npy")}
    assert set(grown.manifest["files"]) == on_disk


SCRIPT = """
import os, sys, time
from pathlib import Path
from bert_jax.data.corpus import append, dedup, encode, join

dedup.PART_BYTES = join.SHARD_TOKENS = 3000
encode_to_file = encode.encode_to_file

def slowly(*arguments):
    time.sleep(0.4)
    return encode_to_file(*arguments)

encode.encode_to_file = slowly
if __name__ == "__main__":
    append.append(sys.argv[2:], Path(sys.argv[1]), workers=2)
"""


def test_a_killed_addition_goes_on_and_meets_no_other(tmp_path, files, vocabulary):
    output, options = tmp_path / "c", {"validation_fraction": 0.2, "workers": 1}
    prepare(files[:2], output, tokenizer=vocabulary, **options)
    before = files_of(output)
    (tmp_path / "script.py").write_text(SCRIPT)
    running = subprocess.Popen(
        [sys.executable, tmp_path / "script.py", output, *files[2:]],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )
    waited = threading.Event()
    for _ in range(1500):
        if len(list(output.glob(".parts/*.npz"))) >= 3:
            break
        assert running.poll() is None
        waited.wait(0.02)
    try:
        for again in (
            lambda: append(files[2:], output),
            lambda: prepare(files[:2], output, tokenizer=vocabulary, **options),
        ):
            with pytest.raises(UsageError, match=rf"process {running.pid} on .* is writing"):
                again()
    finally:
        running.kill()
        running.wait()
    kept = {path.name: path.stat().st_mtime_ns for path in output.glob(".parts/*.npz")}
    assert len(kept) >= 3
    left = files_of(output)
    assert {name: left[name] for name in before} == before

    encoded: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        from bert_jax.data.corpus import encode

        real = encode.encode_to_file
        patch.setattr(
            encode, "encode_to_file", lambda part, *rest: encoded.append(1) or real(part, *rest)
        )
        grown = append(files[2:], output, workers=1)
    whole = prepare(files, tmp_path / "whole", tokenizer=vocabulary, **options)
    assert_same_corpus(grown, whole)
    size = sum(len(Path(file).read_bytes()) for file in files[2:])
    assert len(encoded) <= size / 3000 + 2 - len(kept)


def test_a_lock_is_held(tmp_path, files, vocabulary):
    output = tmp_path / "c"
    prepare(files[:2], output, tokenizer=vocabulary, validation_fraction=0.2, workers=1)
    said = pytest.raises(UsageError, match=rf"process {os.getpid()} on .* is writing {output}; ")
    with file_lock.hold(output / ".lock"), said:
        append(files[2:], output)


# --- the command ----------------------------------------------------------------------------------


def test_the_command(tmp_path, files, capsys):
    output = str(tmp_path / "c")
    making = ["--vocab-size", "120", "--validation-fraction", "0.2", "--strip-accents", "yes"]
    assert main(["prepare", "--source", files[0], "--output", output, *making]) == 0
    assert "its last addition" not in capsys.readouterr().out
    more = ["prepare", "--append", "--source", files[1], "--source", files[2], "--output", output]
    assert main(more) == 0
    out = capsys.readouterr().out
    added = open_corpus(output).manifest["appended"][0]["documents"]
    assert (
        f"its last addition: {sum(added.values())} documents, {added['validation']} of them" in out
    )
    assert main([*more, *making]) == 0
    assert main([*more, "--strip-accents", "no", "--seed", "1"]) == 2
    err = capsys.readouterr().err
    assert "was made with --strip-accents yes, not no" in err and "leave --strip-accents" in err
