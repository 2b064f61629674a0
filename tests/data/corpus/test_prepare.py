import csv
import io
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from bert_jax import file_lock
from bert_jax.data.corpus import join
from bert_jax.data.corpus.dedup import HashSet
from bert_jax.data.corpus.encode import read_part
from bert_jax.data.corpus.pool import Pool, count
from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.corpus.store import SPLITS, Split
from bert_jax.data.corpus.survey import Looked, Lowest, gather, look_through, texts_of, units_of
from bert_jax.data.matching import identity
from bert_jax.data.sources import document
from bert_jax.data.sources.stream import SourceOptions
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.data.tokenizer.training import train_wordpiece
from bert_jax.errors import BertJaxError, DataDamaged, StorageFailed, UsageError
from tests.data.surveyed import survey
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
    monkeypatch.setattr("bert_jax.data.corpus.dedup.PART_BYTES", 4000)
    monkeypatch.setattr("bert_jax.data.corpus.join.SHARD_TOKENS", 4000)


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece", "given"])
def test_the_bytes_do_not_depend_on_the_number_of_workers(tmp_path, source, vocabulary, kind):
    tokenizer = str(vocabulary) if kind == "given" else kind
    written = []
    for workers in [1, 2, 3] if kind == "given" else [1, 2]:
        output = tmp_path / f"{workers}"
        prepare(
            [str(source)],
            output,
            tokenizer=tokenizer,
            vocab_size={"sentencepiece": 60, "wordpiece": 120}.get(kind),
            validation_fraction=0.1,
            workers=workers,
        )
        written.append(files_of(output))
    assert len(written[0]) > 12
    assert all(files == written[0] for files in written[1:])


def test_a_command_that_makes_nothing_leaves_nothing(tmp_path, monkeypatch, vocabulary):
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"one\n\n\xe9 two\n")
    one = tmp_path / "one.txt"
    one.write_text("only one document\n")
    mine = tmp_path / "mine"
    mine.mkdir()
    for source in ("none.txt", str(bad), str(one), "-"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"only one\n")))
        for output in (tmp_path / "new", mine):
            with pytest.raises(UsageError):
                prepare([source], output, tokenizer=str(vocabulary), workers=1)
            assert output.exists() == (output == mine)
            assert not [*mine.iterdir()]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sources": [""]}, "`source` names nothing: is a variable of the shell not set"),
        ({"sources": []}, "no `source` given"),
        ({"validation_sources": [" "]}, "`validation_source` names nothing"),
        ({"decontaminate": [""]}, "`decontaminate` names nothing"),
        ({"vocab_size": 0}, "`vocab_size` 0: five special tokens"),
    ],
)
def test_what_is_refused_before_anything_is_read(tmp_path, source, options, said):
    given = {"sources": [str(source)], "output": tmp_path / "c"} | options
    with pytest.raises(UsageError, match=re.escape(said)):
        prepare(**given)
    assert not (tmp_path / "c").exists()


def test_a_size_beside_a_vocabulary_is_said_to_be_unused(tmp_path, source, vocabulary, capsys):
    options = {"tokenizer": str(vocabulary), "validation_fraction": 0.1, "workers": 1}
    prepare([str(source)], tmp_path / "c", vocab_size=9000, **options)
    assert f"9,000 is not used: `tokenizer` {vocabulary} has 41" in capsys.readouterr().err


def test_two_vocabularies_in_one_place_one_after_the_other(tmp_path, source):
    """As in a notebook, and by as many processes as this one."""
    place, found = tmp_path / "c", []
    for vocab_size in (120, 160):
        prepare([str(source)], place, vocab_size=vocab_size, validation_fraction=0.1, workers=1)
        found.append(files_of(place))
        shutil.rmtree(place)
    prepare([str(source)], tmp_path / "d", vocab_size=160, validation_fraction=0.1, workers=1)
    assert files_of(tmp_path / "d") == found[1] != found[0]


def test_the_manifest(tmp_path, source, vocabulary):
    with source.open("a") as stream:
        # Two duplicates, and a document that encodes to nothing.
        stream.write("\n\n".join(["", *source.read_text().split("\n\n")[:2], "\u200b"]))
    corpus = prepare(
        [str(source)], tmp_path / "c", tokenizer=str(vocabulary), validation_fraction=0.1, workers=1
    )
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
    assert str(join._entropy(np.array([0, 7]))) == "0.0"  # not -0.0
    on_disk = {str(p.relative_to(tmp_path / "c")) for p in (tmp_path / "c").rglob("*.npy")}
    assert set(manifest["files"]) == on_disk


def test_the_fingerprint_is_of_the_content_alone(tmp_path, source, vocabulary):
    def fingerprint(name, text=None, **options):
        path = tmp_path / f"{name}.txt"
        path.write_text(text or source.read_text())
        options = {"tokenizer": str(vocabulary), "validation_fraction": 0.1, **options}
        return prepare([str(path)], tmp_path / name, workers=1, **options).fingerprint

    first = fingerprint("first")
    assert fingerprint("second") == first
    assert fingerprint("third", seed=1) != first
    assert fingerprint("fourth", validation_fraction=0.2) != first
    # A token moved to another place: counts and sizes are the same.
    changed = source.read_text().replace("The cat", "Cat the", 1)
    assert changed != source.read_text()
    assert fingerprint("fifth", changed) != first


def test_the_split_is_by_content_and_disjoint(source):
    def split_of(sources, seed=0):
        return dict(survey(sources, validation_fraction=0.3, seed=seed)[1])

    first = split_of([str(source)])
    assert 0.2 < sum(split == "validation" for split in first.values()) / 300 < 0.4
    backwards = source.with_name("backwards.txt")
    backwards.write_text("\n\n".join(reversed(source.read_text().strip().split("\n\n"))))
    assert split_of([str(backwards), str(source)]) == first
    assert split_of([str(source)], seed=1) != first


def test_a_finished_corpus_is_not_made_again(tmp_path, source, capsys):
    def run(**changes):
        options = {"vocab_size": 120, "validation_fraction": 0.1, "workers": 1, **changes}
        return prepare([str(source)], tmp_path / "c", **options)

    first = run()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "c").rglob("*")}
    capsys.readouterr()
    assert run(workers=2).fingerprint == first.fingerprint
    assert "finished already" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "c").rglob("*")} == before

    vocabulary = tmp_path / "c/tokenizer/vocab.txt"
    for changes, difference in [
        ({"vocab_size": 130}, "its vocab_size is 120, not 130"),
        ({"lowercase": False}, "its lowercase is True, not False"),
        ({"seed": 5}, "its seed is 0, not 5"),
        ({"tokenizer": str(vocabulary)}, "its tokenizer is 'wordpiece', not 'given'"),
    ]:
        with pytest.raises(UsageError) as caught:
            run(**changes)
        assert difference in str(caught.value) and "another `output`" in str(caught.value)
    other = source.with_name("other.txt")
    other.write_text(source.read_text())
    with pytest.raises(UsageError, match=rf"its source is {source}, not {other}\): choose another"):
        prepare([str(other)], tmp_path / "c", vocab_size=120, validation_fraction=0.1)


def test_what_was_trained_on_is_not_found_held_out(tmp_path, vocabulary):
    """The same texts, of which one moves to the held-out side, are another corpus."""
    texts = [tmp_path / f"{number}.txt" for number in range(3)]
    for seed, text in enumerate(texts):
        text.write_text(text_of(20, seed=seed))

    def run(held_out):
        return prepare(
            texts[held_out:],
            tmp_path / "c",
            validation_sources=texts[:held_out],
            tokenizer=vocabulary,
            workers=1,
        )

    first = run(1)
    assert run(1).fingerprint == first.fingerprint
    with pytest.raises(UsageError, match=r"its validation source is .*, not "):
        run(2)


def with_vocabulary(source, vocabulary, output):
    return prepare(
        [str(source)], output, tokenizer=str(vocabulary), validation_fraction=0.1, workers=1
    )


def test_another_given_tokenizer_is_another_corpus(tmp_path, source, vocabulary):
    def run():
        return with_vocabulary(source, vocabulary, tmp_path / "c")

    run()
    vocabulary.write_text(vocabulary.read_text() + "zebra\n")
    with pytest.raises(UsageError, match="its tokenizer is another one"):
        run()


SCRIPT = """
import sys, time
from pathlib import Path
from bert_jax.data.corpus import dedup, encode, join, prepare as module

dedup.PART_BYTES = 4000
join.SHARD_TOKENS = 4000

if sys.argv[3] == "slowly":
    encode_to_file = encode.encode_to_file

    def slowly(*arguments):
        time.sleep(0.4)
        return encode_to_file(*arguments)

    encode.encode_to_file = slowly

def main():
    corpus = module.prepare(
        [sys.argv[1]], Path(sys.argv[2]), tokenizer=sys.argv[4], vocab_size=120,
        validation_fraction=0.1, workers=2,
    )
    print(corpus.fingerprint)

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0]
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_killed_run_leaves_no_process_and_is_continued(tmp_path, source, vocabulary, script):
    """SIGKILL, which nothing can catch, while parts are being written."""
    output = tmp_path / "c"
    command = [sys.executable, script, source, output]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = subprocess.Popen(
        [*command, "slowly", vocabulary],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + HUNG
    while len(list(output.glob(".parts/*.npz"))) < 3:
        assert running.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    tasks = Path(f"/proc/{running.pid}/task").glob("*/children")
    children = [child for task in tasks for child in task.read_text().split()]
    assert len(children) >= 2
    running.send_signal(signal.SIGKILL)
    running.wait()
    while any(alive(int(child)) for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not (output / "corpus.json").exists()
    kept = {path: path.stat().st_mtime_ns for path in output.glob(".parts/*.npz")}

    # What is there is taken: the parts, seen to be older, are read and not written again.
    whole = prepare(
        [str(source)],
        tmp_path / "whole",
        tokenizer=str(vocabulary),
        validation_fraction=0.1,
        workers=1,
    )
    time_of_write = {}
    replace = Path.replace

    def watched(self, target):
        time_of_write[target] = time.monotonic()
        return replace(self, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", watched)
        again = prepare(
            [str(source)],
            output,
            tokenizer=str(vocabulary),
            validation_fraction=0.1,
            workers=1,
        )
    assert len(time_of_write) > 1 and not set(time_of_write) & set(kept)
    assert again.fingerprint == whole.fingerprint
    assert files_of(output) == files_of(tmp_path / "whole")


def test_a_trained_tokenizer_is_taken_again_unless_the_request_changed(
    tmp_path, source, monkeypatch
):
    def run(vocab_size):
        return prepare(
            [str(source)],
            tmp_path / "c",
            vocab_size=vocab_size,
            validation_fraction=0.1,
            workers=1,
        )

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bert_jax.data.corpus.prepare.encode_units", stop)
        with pytest.raises(KeyboardInterrupt):
            run(120)
    trained = []
    train = train_wordpiece

    def watched(*arguments, **options):
        trained.append(options["vocab_size"])
        return train(*arguments, **options)

    monkeypatch.setattr("bert_jax.data.corpus.trained_tokenizer.train_wordpiece", watched)
    with monkeypatch.context() as patch:
        patch.setattr("bert_jax.data.corpus.prepare.encode_units", stop)
        with pytest.raises(KeyboardInterrupt):
            run(120)
        assert trained == []
        with pytest.raises(KeyboardInterrupt):
            run(130)
    assert trained == [130]
    assert run(120).vocab_size == 120
    assert trained == [130, 120]


def test_a_given_tokenizer_between_two_runs_that_train(tmp_path, source, vocabulary, monkeypatch):
    """It lies where the trained one was: the next run must not take it for that."""

    def run(**options):
        return prepare([str(source)], tmp_path / "c", validation_fraction=0.1, workers=1, **options)

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bert_jax.data.corpus.prepare.encode_units", stop)
        for options in ({"vocab_size": 120}, {"tokenizer": str(vocabulary)}):
            with pytest.raises(KeyboardInterrupt):
                run(**options)
    assert run(vocab_size=120).vocab_size == 120


def test_an_output_within_a_source_is_refused(tmp_path, source):
    folder = tmp_path / "texts"
    folder.mkdir()
    shutil.copy(source, folder)
    with pytest.raises(UsageError, match="would itself be read"):
        prepare([str(folder)], folder / "corpus", workers=1)
    assert [path.name for path in folder.iterdir()] == [source.name]


def test_a_glob_does_not_read_what_is_being_written(tmp_path, source):
    """The vocabulary is a text file, too, and there when the sources are read again."""
    (tmp_path / "data").mkdir()
    shutil.copy(source, tmp_path / "data")
    glob, output = str(tmp_path / "data/**/*.txt"), tmp_path / "data/corpus"
    found = prepare([glob], output, vocab_size=300, workers=1)
    alone = prepare([str(source)], tmp_path / "alone", vocab_size=300, workers=1)
    assert (output / "tokenizer/vocab.txt").is_file()
    assert found.manifest["counts"] == alone.manifest["counts"]
    again = prepare([glob], output, vocab_size=300, workers=1)
    assert again.fingerprint == found.fingerprint


def test_a_damaged_part_is_removed_and_made_again(tmp_path, source, vocabulary, monkeypatch):
    def run():
        return with_vocabulary(source, vocabulary, tmp_path / "c")

    def damage(part):
        data = bytearray(part.read_bytes())
        data[len(data) // 3] ^= 1
        part.write_bytes(data)
        return read_part(part)

    with monkeypatch.context() as patch:
        patch.setattr("bert_jax.data.corpus.join.read_part", damage)
        with pytest.raises(DataDamaged, match="run the same command again"):
            run()
    assert run().manifest["counts"]["total"]["documents"] == 300


def _refuses(_: object, name: str) -> None:
    raise UsageError(f"tokenizer {name} is missing")


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_a_worker_is_the_users(workers):
    with Pool(workers) as pool, pytest.raises(UsageError, match="tokenizer a is missing"):
        list(pool.map(_refuses, [("a",)] * 9))


def test_an_error_of_the_reader_stops_the_workers(tmp_path, source, vocabulary):
    with source.open("ab") as stream:
        stream.write(b"\n\ncaf\xe9\n")
    with pytest.raises(UsageError, match="not UTF-8"):
        prepare([str(source)], tmp_path / "c", tokenizer=str(vocabulary), workers=2)
    assert not (tmp_path / "c/corpus.json").exists()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _dies(_: object, number: int) -> int:
    time.sleep(0.01)  # all workers have begun by the time one dies
    if number == 60:
        _die()
    return number


class _Fatal:
    """Kills the process that it is sent to."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _die, ()


@pytest.mark.parametrize("shared", [None, _Fatal()], ids=["at work", "at its start"])
def test_a_killed_worker_is_reported(shared):
    """Once, and the pool can be left although the error is handled inside of it."""
    with Pool(2, shared) as pool, pytest.raises(BertJaxError, match="a worker process was killed"):
        list(pool.map(_dies, ((number,) for number in range(1000))))


def _sleeps(_: object, seconds: float) -> None:
    time.sleep(seconds)


def test_workers_end_at_once_with_an_error_here():
    """Whatever they do: a file of a hundred gigabytes is one task."""
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Pool(2) as pool:
        for _ in pool.map(_sleeps, [(0,), (HUNG,), (HUNG,)]):
            raise KeyboardInterrupt
    assert time.monotonic() - begun < HUNG / 2


def _counts_and_sleeps(_: object, number: int) -> int:
    count(1, number)
    return number


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order_and_what_tasks_count_is_seen(workers):
    """A task of this process alone is among them, whose place is kept."""
    with Pool(workers) as pool:
        for _ in range(2):
            jobs = [(number,) for number in range(30)]
            found = pool.map(_counts_and_sleeps, jobs, is_here=lambda job: job[0] % 7 == 3)
            assert list(found) == [*range(30)]
            assert pool.counts == [30, sum(range(30)), 0]


def test_texts_that_were_not_kept_are_read_again(tmp_path, source):
    (unit,) = units_of([([str(source)], SourceOptions())])
    looked = Looked(
        fraction=0.0, salt=bytes(8), folder=tmp_path, budget=2000, draws=True, skips_files=False
    )
    found = look_through(looked, unit, None)
    texts = [*texts_of(unit)]
    chosen = sorted(range(300), key=lambda n: (found.priorities[n], found.digests[n].tobytes()))
    places = found.texts
    assert [places[n].read() for n in chosen[: len(places)]] == [
        texts[n] for n in chosen[: len(places)]
    ]
    assert sum(len(texts[n]) for n in places) >= 2000 > len(places)
    again = gather(looked, unit, frozenset(chosen[-9:]))
    assert {n: place.read() for n, place in again.items()} == {n: texts[n] for n in chosen[-9:]}


def test_one_file_is_encoded_by_all_processes(tmp_path, vocabulary, monkeypatch):
    """The one that reads it leaves texts to the others."""
    monkeypatch.setattr("bert_jax.data.corpus.dedup.PART_BYTES", 4000)
    (tmp_path / "a.txt").write_text(text_of(3000))
    taken, replace = [], Path.replace

    def watched(self, target):
        taken.append(Path(target).suffix == ".taken")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", watched)
    options = {"tokenizer": str(vocabulary), "validation_fraction": 0.1}
    shared = prepare([str(tmp_path / "a.txt")], tmp_path / "shared", workers=3, **options)
    assert any(taken)
    alone = prepare([str(tmp_path / "a.txt")], tmp_path / "alone", workers=1, **options)
    assert files_of(shared.directory) == files_of(alone.directory)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", "empty: no document with text"),
        (" \n\n\t\n", "empty: no document with text"),
        ("One.\nTwo.\nThree.\n", "only one document; next-sentence pairs need another document"),
        ("Same.\n\nSame.\n", "only one document"),
        (
            "One.\n\nTwo.\n\nThree.\n",
            "2: name held-out text with `validation_source`",
        ),
    ],
)
@pytest.mark.parametrize("trained", [True, False])
def test_a_corpus_too_small_is_refused(tmp_path, vocabulary, text, expected, trained):
    (tmp_path / "a.txt").write_text(text)
    tokenizer = "wordpiece" if trained else str(vocabulary)
    with pytest.raises(UsageError) as caught:
        prepare([str(tmp_path / "a.txt")], tmp_path / "c", tokenizer=tokenizer, workers=1)
    assert caught.value.exit_code == 2
    assert "a.txt: " in str(caught.value) and expected in str(caught.value)


def test_the_validation_fraction_that_is_proposed_works(tmp_path, vocabulary):
    for seed in range(3):
        path = tmp_path / f"{seed}.txt"
        path.write_text(text_of(20, seed=seed))

        def run(fraction, path=path):
            return prepare(
                [str(path)],
                tmp_path / path.stem,
                tokenizer=str(vocabulary),
                validation_fraction=fraction,
                workers=1,
            )

        for useless in (0.001, 0.999):
            with pytest.raises(UsageError, match="of 20 documents and needs at least 2") as caught:
                run(useless)
        proposed = str(caught.value).split("`validation_fraction` ")[1].split(" ")[0]
        assert 0 < float(proposed) < 1
        counts = run(float(proposed)).manifest["counts"]
        assert min(counts[split]["documents"] for split in SPLITS) >= 2


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"sources": []}, "no `source`"),
        ({"validation_fraction": 0}, "`validation_fraction` 0 is not between 0 and 1"),
        ({"validation_fraction": 1.0}, "`validation_fraction` 1.0 is not between 0 and 1"),
        ({"seed": -1}, "`seed` -1"),
        ({"workers": 0}, "`workers` 0 is less than 1"),
        ({"tokenizer": "wordpeice"}, "`tokenizer` wordpeice is neither a kind nor a file"),
        ({"sources": ["missing.txt"]}, "missing.txt: no such file or folder"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, source, changes, expected):
    with pytest.raises(UsageError) as caught:
        prepare(**{"sources": [str(source)], "output": tmp_path / "c", "workers": 1, **changes})
    assert expected in str(caught.value)


def test_two_at_once_on_one_output(tmp_path, source, vocabulary):
    output = tmp_path / "corpus"
    said = pytest.raises(UsageError, match=rf"process {os.getpid()} on .* is writing {output}; ")
    with file_lock.hold(output / ".lock"), said:
        prepare([str(source)], output, tokenizer=str(vocabulary), workers=1)
    # A lock that nobody holds, as a killed process leaves, is no hindrance, and goes.
    assert [path.name for path in output.iterdir()] == [".lock"]
    prepare([str(source)], output, tokenizer=str(vocabulary), workers=1)
    assert sorted(path.name for path in output.iterdir()) == [
        "corpus.json",
        "digests",
        "tokenizer",
        "train",
        "validation",
    ]


def test_a_folder_with_other_things_is_not_written_to(tmp_path, source):
    (tmp_path / "c/train").mkdir(parents=True)
    (tmp_path / "c/train/mine").write_text("precious")
    (tmp_path / "file").write_text("precious")
    for name in ("c", "file"):
        with pytest.raises(UsageError, match="exists and is not a corpus: choose another `output`"):
            prepare([str(source)], tmp_path / name, workers=1)
    assert (tmp_path / "c/train/mine").read_text() == "precious"


def test_output_that_cannot_be_written(tmp_path, source):
    (tmp_path / "file").touch()
    with pytest.raises(StorageFailed) as caught:
        prepare([str(source)], tmp_path / "file" / "c", workers=1)
    assert caught.value.exit_code == 7
    assert str(tmp_path / "file") in str(caught.value)


def test_a_large_vocabulary_is_stored_in_32_bits(tmp_path, source, vocabulary):
    words = vocabulary.read_text() + "".join(f"w{i}\n" for i in range(65536))
    vocabulary.write_text(words + "zebra\n")
    source.write_text(text_of(20) + "\nThe zebra.\n")
    corpus = prepare(
        [str(source)], tmp_path / "c", tokenizer=str(vocabulary), validation_fraction=0.3, workers=1
    )
    tokens = np.concatenate([*corpus.train.shards, *corpus.validation.shards])
    assert tokens.dtype == np.uint32 and tokens.max() == 41 + 65536


def test_the_sample_is_the_same_in_any_order():
    draw = np.random.default_rng(0)
    sizes = draw.integers(1, 50, 400).tolist()
    documents = [
        (int(draw.integers(100)), number.to_bytes(16), size, number)
        for number, size in enumerate(sizes)
    ]

    def chosen_of(entries, budget):
        lowest = Lowest(budget)
        left = set()
        for entry in entries:
            left.add(entry[-1])
            left -= {*lowest.add(*entry)}
        assert left == {*lowest.numbers()}
        return lowest.numbers()

    chosen = chosen_of(documents, 1000)
    size = sum(sizes[number] for number in chosen)
    assert 1000 <= size < 1050
    assert size - sizes[chosen[-1]] < 1000
    in_order = [priority for priority, *_ in sorted(documents)]
    assert [documents[number][0] for number in chosen] == in_order[: len(chosen)]
    for _ in range(5):
        shuffled = [documents[i] for i in draw.permutation(len(documents))]
        assert chosen_of(shuffled, 1000) == chosen
    assert len(chosen_of(documents, 10**9)) == 400


def test_the_hash_set_is_a_set():
    draw = np.random.default_rng(0)
    known = np.arange(0, 300, 3, dtype=np.uint64) * np.uint64(2**64 // 1500)
    ours, reference = HashSet(known), set(known.tolist())
    before = len(reference)
    for _ in range(60):
        values = draw.integers(0, 1500, int(draw.integers(90))).astype(np.uint64)
        values *= np.uint64(2**64 // 1500)
        expected = []
        for value in values.tolist():
            expected.append(value not in reference)
            reference.add(value)
        assert ours.add(values).tolist() == expected
    assert ours.added().tolist() == sorted(reference - {*known.tolist()})
    assert len(reference) > before + 500 and 1 < len(ours._runs) < 12


# --- held out -------------------------------------------------------------------------------------


def ids_of(split: Split) -> list[list[int]]:
    """The ids of each document of one side."""
    tokens = np.concatenate(split.shards)
    starts = split.sentence_starts[split.document_starts]
    return [tokens[first:end].tolist() for first, end in pairwise(starts)]


def test_no_document_is_on_both_sides(tmp_path, vocabulary, monkeypatch):
    """By the ids of a whole corpus, with copies in other files, spelt otherwise; and all pieces of
    a record that is too long to be held are on one side, wherever it is found again.
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
    corpus = prepare(
        sources,
        tmp_path / "corpus",
        tokenizer=str(vocabulary),
        validation_fraction=0.3,
        workers=1,
    )
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
