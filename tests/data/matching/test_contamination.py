"""Test sets with text in the sources: planted records are found, reported and removed."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.corpus.store import Corpus
from bert_jax.data.matching.contamination import Contamination
from bert_jax.data.sources.stream import SourceOptions
from bert_jax.errors import UsageError

VOCABULARY = [f"word{i}" for i in range(3000)]


def text(count: int, draw: random.Random) -> str:
    return " ".join(draw.choice(VOCABULARY) for _ in range(count))


@pytest.fixture
def test_sets(tmp_path):
    """A set of 40 records with 20 words; one of 10 with 10 words and 5 with 5."""
    draw = random.Random(3)
    long = [text(20, draw) for _ in range(40)]
    short = [text(10, draw) for _ in range(10)] + [text(5, draw) for _ in range(5)]
    (tmp_path / "long.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in long))
    (tmp_path / "short.txt").write_text("\n".join(short) + "\n")
    return long, short


def made(folder: Path, sets: list[object], *, source: str = "text.txt", **options: Any) -> Corpus:
    """Makes the corpus `folder / "c"` without the records of test sets."""
    usual = {"vocab_size": 300, "validation_fraction": 0.2, "workers": 1}
    return prepare(
        [folder / source], folder / "c", decontaminate=[*map(str, sets)], **usual | options
    )


def test_a_bad_record_of_a_test_set_is_an_error(test_sets, tmp_path):
    """Only bad records of the text are skipped: in a test set they would stay in the corpus."""
    (tmp_path / "text.txt").write_text("\n\n".join(test_sets[0]) + "\n")
    with (tmp_path / "long.jsonl").open("a") as file:
        file.write('{"text": "cut in the')
    with pytest.raises(UsageError, match=r"long\.jsonl, line 41 is not JSON"):
        made(tmp_path, [tmp_path / "long.jsonl"], on_bad_record="skip", bad_record_limit=1.0)


def test_planted_records_are_found_named_and_removed(test_sets, tmp_path, capsys):
    long, short = test_sets
    draw = random.Random(4)
    # Another spelling; cut to 13 words; to 12, too few; a whole short record; a part of one.
    planted = [
        long[0].upper(),
        ", ".join(long[1].split()[3:16]),
        short[0],
        short[2] + " " + long[2],
    ]
    innocent = [" ".join(long[3].split()[:12]), " ".join(short[1].split()[:9]), short[12]]
    texts = [text(60, draw) for _ in range(100)]
    for number, piece in enumerate(planted + innocent):
        texts[7 * number] += f" {piece} {text(30, draw)}"
    (tmp_path / "text.txt").write_text("\n\n".join(texts) + "\n")
    sets = [str(tmp_path / name) for name in ("long.jsonl", "short.txt")]
    corpus = made(tmp_path, sets)
    said = capsys.readouterr().err
    assert f"{sets[0]}: 3 of 40 records occur in the text\n" in said
    too_short = "(5 with fewer than 8 words are skipped)"
    assert f"{sets[1]}: 2 of 15 records occur in the text {too_short}\n" in said
    manifest = corpus.manifest
    assert manifest["counts"]["total"]["documents"] == 100 - len(planted)
    assert sum(manifest["contaminated_documents"].values()) == len(planted)
    assert manifest["decontaminated_of"] == {
        sets[0]: {"records": 40, "looked_for": 40, "found": 3},
        sets[1]: {"records": 15, "looked_for": 10, "found": 2},
    }
    # The paths of the sets do not matter, but their content does.
    moved = tmp_path / "moved.jsonl"
    moved.write_bytes((tmp_path / "long.jsonl").read_bytes())
    assert made(tmp_path, [moved, sets[1]]).fingerprint == corpus.fingerprint
    with pytest.raises(UsageError, match="its decontaminate is"):
        made(tmp_path, sets[:1])


def test_a_set_of_short_records_is_rejected(tmp_path):
    (tmp_path / "short.txt").write_text("one two three\nfour\n")
    with pytest.raises(UsageError, match="no record has 8 words or more"):
        Contamination([str(tmp_path / "short.txt")], SourceOptions())


def test_matches_in_skipped_files_do_not_count(test_sets, tmp_path, capsys):
    long, _ = test_sets
    draw = random.Random(5)
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("\n\n".join(text(60, draw) for _ in range(40)) + "\n")
    packed = gzip.compress(f"{long[0]}\n".encode() * 9)
    (folder / "b.txt.gz").write_bytes(packed[:-9])
    corpus = made(tmp_path, [tmp_path / "long.jsonl"], source="texts", on_bad_record="skip")
    assert corpus.manifest["skipped_files"]
    (counts,) = corpus.manifest["decontaminated_of"].values()
    assert counts["found"] == 0 and sum(corpus.manifest["contaminated_documents"].values()) == 0


@pytest.mark.parametrize(
    ("letters", "enough"),
    [("日本語の文章を学習する機械と辞書", 26), ("กขคงจฉชซญฎฏฐฑฒณดตถทธนบปผฝพฟภมยรลวศษสหฬอฮ", 52)],
    ids=["Japanese", "Thai"],
)
def test_a_word_without_spaces_has_several_characters(letters, enough, tmp_path):
    """13 characters are an everyday phrase; the characters of 13 words are not."""
    draw = random.Random(6)
    record = "".join(draw.choice(letters) for _ in range(80))
    (tmp_path / "set.txt").write_text(f"{record}\n")
    found = Contamination([str(tmp_path / "set.txt")], SourceOptions())

    def is_in(part: str) -> bool:
        return bool(found.records_in(f"before {part} and after".encode()))

    assert is_in(record[7 : 7 + enough]) and not is_in(record[7 : 6 + enough])


def test_all_held_out_splits_of_a_folder_are_compared(tmp_path, capsys):
    """A benchmark of the hub: `validation` and `test` are compared, `train` is not."""
    draw = random.Random(5)
    of = {split: [text(20, draw) for _ in range(4)] for split in ("train", "validation", "test")}
    folder = tmp_path / "bench"
    folder.mkdir()
    for split, records in of.items():
        lines = "".join(json.dumps({"text": record}) + "\n" for record in records)
        (folder / f"{split}-00000-of-00001.jsonl").write_text(lines)
    (folder / "dev.json").write_text("[]")
    texts = [text(60, draw) for _ in range(40)]
    for number, split in enumerate(("train", "validation", "validation", "test")):
        texts[number] += " " + of[split][number]
    (tmp_path / "text.txt").write_text("\n\n".join(texts) + "\n")
    corpus = made(tmp_path, [folder])
    found = {"records": 8, "looked_for": 8, "found": 3}
    assert corpus.manifest["decontaminated_of"] == {str(folder): found}
    assert corpus.manifest["counts"]["total"]["documents"] == 40 - 3
    said = capsys.readouterr().err
    assert f"{folder}: skipped 2 files: dev.json, train-00000" in said
    for source in ({"decontaminate": ["tfds:x"]}, {"validation_source": ["tfds:x"]}):
        with pytest.raises(UsageError, match=r"tfds:x: name its split, for example tfds:x:test"):
            prepare([str(tmp_path / "text.txt")], tmp_path / "d", vocab_size=300, **source)
