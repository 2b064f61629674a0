"""Sources: files of folders and globs, TensorFlow data sets."""

import gzip
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from bert_jax.__main__ import main
from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.corpus.store import open_corpus
from bert_jax.data.sources.files import find_files
from bert_jax.data.sources.read import read_documents
from bert_jax.data.sources.stream import HELD_OUT, Findings, SourceOptions
from bert_jax.errors import StorageFailed, UsageError
from tests.data.formats.layouts import DOCUMENTS, TEXT, VOCABULARY, jsonl, texts, write_with


def documents(*sources):
    return list(read_documents([str(source) for source in sources]))


def refusal(*sources):
    with pytest.raises(UsageError) as caught:
        documents(*sources)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_files_of_folders_and_globs_come_in_the_order_of_their_names(tmp_path, capsys):
    hidden = ["a/.hidden.txt", ".copies/c.txt", "b/.git/d/e.txt"]
    for name in ["b/2.txt", "b/10.jsonl", "a/x.txt.gz", "c.txt", "a/readme.md", *hidden]:
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = (json.dumps({"text": name}) if name.endswith("jsonl") else name).encode()
        path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    whole = [("a/x.txt.gz",), ("b/10.jsonl",), ("b/2.txt",), ("c.txt",)]
    assert documents(tmp_path / "in") == whole
    assert capsys.readouterr().err.endswith(
        "skipped 4 files: .copies/c.txt, a/.hidden.txt, a/readme.md, b/.git/d/e.txt\n"
    )
    assert documents(tmp_path / "in" / "b" / "*") == whole[1:3]
    assert documents(tmp_path / "in/.copies") == [(".copies/c.txt",)]
    assert documents(tmp_path / "in" / "**" / "*.txt") == whole[2:]
    assert documents(tmp_path / "in/c.txt", tmp_path / "in/a") == [whole[3], whole[0]]


def test_a_file_with_brackets_in_its_name_is_a_file(tmp_path):
    (tmp_path / "a[1].txt").write_text(TEXT, encoding="utf-8")
    assert documents(tmp_path / "a[1].txt") == DOCUMENTS


def test_memory_is_bounded_by_the_limits_not_by_the_file(tmp_path):
    """A line of 256 MB without a newline, read by a process with a limit of 100 MB for it."""
    path = tmp_path / "long.txt.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        for _ in range(256):
            stream.write(b"many words and no newline " * 40330)
    script = (
        "import resource, sys\n"
        "from bert_jax.data.sources.read import read_documents\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "size = count = 0\n"
        "for document in read_documents(sys.argv[1:]):\n"
        "    count += 1; size += sum(map(len, document))\n"
        "print(size, count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    size, count, kibibytes = map(int, result.stdout.split())
    assert 256 * 40330 * 25 < size <= 256 * 40330 * 26
    assert count > 10  # of at most 16 MiB each
    assert kibibytes < 100 * 1024


def test_missing_sources_are_errors_before_reading(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.pdf").write_text("x")
    for name in ("corpus/train/00000.tokens.npy", "corpus/tokenizer/vocab.txt"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("x")
    os.mkfifo(tmp_path / "pipe.txt")
    good = str(tmp_path / "a.txt")
    for bad, expected in {
        "missing.txt": "no such file or folder",
        "*.jsonl": "no file matches",
        "empty": ".wet, .fasta, .fa, .faa, .fna (each also .gz, .bz2, .xz, .zst) file in",
        "a.pdf": "not one of .txt",
        "corpus": "is a prepared corpus, not text",
        "../" + tmp_path.name: "corpus is a prepared corpus, not text",
        "pipe.txt": "is not a plain file, and sources are read twice",
    }.items():
        with pytest.raises(UsageError) as caught:
            read_documents([good, str(tmp_path / bad)])
        assert bad in str(caught.value) and expected in str(caught.value)


# --- TensorFlow data sets -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tfds_folder(tmp_path_factory):
    """Two small data sets, built by a real builder in another process and read from disk."""
    pytest.importorskip("tensorflow_datasets")
    folder = tmp_path_factory.mktemp("tfds")
    script = folder / "tiny_text.py"
    script.write_text(
        f"DOCUMENTS = {DOCUMENTS!r}\nFOLDER = {str(folder)!r}\n{TFDS_BUILDER}", encoding="utf-8"
    )
    result = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return folder


TFDS_BUILDER = """
import tensorflow_datasets as tfds

FIELDS = {"plain": ["title", "text"], "other": ["first", "second"]}


class TinyText(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=name) for name in FIELDS]

    def _info(self):
        fields = FIELDS[self.builder_config.name]
        features = tfds.features.FeaturesDict({field: tfds.features.Text() for field in fields})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, manager):
        return {"train": self.records(DOCUMENTS), "test": self.records(DOCUMENTS[:1])}

    def _generate_examples(self):
        raise NotImplementedError

    def records(self, documents):
        fields = FIELDS[self.builder_config.name]
        for number, document in enumerate(documents):
            yield number, {fields[0]: "title", fields[1]: "\\n\\n".join(document)}


for config in FIELDS:
    TinyText(data_dir=FOLDER, config=config).download_and_prepare()
"""


@pytest.mark.filterwarnings("ignore")  # warnings of tensorflow's imports
def test_tfds(tfds_folder, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tfds_folder))
    found = documents("tfds:tiny_text/plain")
    # The builder shuffles by key, always in the same order.
    assert sorted(found) == sorted(DOCUMENTS)
    assert found == documents("tfds:tiny_text/plain:train")
    assert documents("tfds:tiny_text/plain:test") == DOCUMENTS[:1]
    assert documents("tfds:tiny_text/plain:1.0.0:train[1:]") == found[1:]
    assert "no column 'text', only first, second. Name the column" in refusal(
        "tfds:tiny_text/other"
    )
    second = SourceOptions(text_field="none, second")
    assert sorted(read_documents(["tfds:tiny_text/other"], second)) == sorted(DOCUMENTS)
    named = SourceOptions(text_field="title")
    assert list(read_documents(["tfds:tiny_text/plain:test"], named)) == [("title",)]
    assert "nosplit" in refusal("tfds:tiny_text/plain:nosplit")
    assert "tfds:no_such_set: tensorflow_datasets cannot load" in refusal("tfds:no_such_set")
    assert "expected tfds:NAME" in refusal("tfds:")


def test_a_tfds_record_that_is_not_utf8_is_skipped(monkeypatch):
    records = [{"text": text} for text in (b"a", b"caf\xe9", b" ", b"b")]
    data = SimpleNamespace(as_numpy_iterator=lambda: iter(records))
    monkeypatch.setattr("bert_jax.data.sources.tfds.load_tfds", lambda *_: data)
    assert "tfds:made_up:train, record 2: not UTF-8" in refusal("tfds:made_up")
    findings, reading = Findings(), SourceOptions(skips_records=True)
    found = list(read_documents(["tfds:made_up"], reading, findings=findings))
    assert found == [("a",), ("b",)]
    assert findings.records == {"tfds:made_up": 1} and findings.without_text == 1


def test_tfds_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    install = "pip install 'tensorflow-datasets>=4.9.9' 'importlib-resources>=6'"
    assert install in refusal("tfds:wikipedia")


# --- by the command -------------------------------------------------------------------------------


@pytest.fixture
def vocabulary(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(VOCABULARY) + "\n")
    return str(path)


@pytest.fixture
def made(tmp_path, vocabulary):
    """Returns the function that makes a corpus beside its sources."""

    def make(*sources, **options):
        output = tmp_path.with_name(f"{tmp_path.name}-corpus")
        return prepare([*map(str, sources)], output, tokenizer=vocabulary, workers=1, **options)

    return make


@pytest.fixture
def mixed(tmp_path):
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    words = ["the", "cat", "sees", "a", "dog", "in", "the", "old", "house", "by", "the", "river"]
    for number, name in enumerate(["UPPER.TXT", "sub/b.txt", "c.jsonl"]):
        texts = [" ".join([*words, str(i), "."]) for i in range(40 * number, 40 * number + 40)]
        lines = [json.dumps({"text": text}) for text in texts]
        content = "\n".join(lines) if name.endswith("jsonl") else "\n\n".join(texts)
        (folder / name).write_text(content + "\n")
    for name in ("readme.md", "sub/scan.pdf", ".DS_Store"):
        (folder / name).write_bytes(b"x")
    return folder


def _command(folder, output, *more):
    return ["prepare", "--source", str(folder), "--output-dir", str(output), "--vocab-size", "150",
            "--validation-fraction", "0.2", "--workers", "1", *more]  # fmt: skip


def test_each_file_of_a_folder_is_read_or_named(mixed, tmp_path, capsys):
    (mixed / "loop").symlink_to(mixed)
    os.mkfifo(mixed / "pipe.txt")
    assert main(_command(mixed, tmp_path / "c")) == 0
    said = capsys.readouterr().err.replace("\n", " ")
    names = ".DS_Store, loop, pipe.txt, readme.md, sub/scan.pdf"
    assert f"skipped 5 files: {names}" in said and "read sources: 120 documents" in said


def test_all_bad_files_are_listed_and_may_be_skipped(mixed, tmp_path, capsys):
    assert main(_command(mixed, tmp_path / "good")) == 0
    (mixed / "a.txt").write_bytes(b"Some good words.\n\nthe cat caf\xe9\n")
    (mixed / "d.jsonl").write_text('{"text": "the cat"}\n{"content": "the cat"}\n')
    (mixed / "e.txt.gz").write_bytes(gzip.compress(b"the cat " * 50)[:-9])
    (mixed / "f.csv").write_text("id,body\n")
    capsys.readouterr()
    assert main(_command(mixed, tmp_path / "bad")) == 2
    said = capsys.readouterr().err
    error = said[said.index("error: ") :]
    assert error.startswith("error: 4 files cannot be read:\n")
    for name in (
        "a.txt, line 3: not",
        "d.jsonl, line 2: ",
        "e.txt.gz: damaged",
        "f.csv, line 1: no col",
    ):
        assert error.count(f"{mixed}/{name}") == 1
    assert "--encoding cp1252" in error and error.endswith("skip them with --on-bad-record skip\n")
    assert not (tmp_path / "bad/tokenizer").exists()

    skipping = ("--on-bad-record", "skip", "--bad-record-limit", "0.1")
    for again in (False, True):
        assert main(_command(mixed, tmp_path / "bad", *skipping)) == 0
        said = capsys.readouterr()
        assert "left out: 2 bad file(s)" in said.out and "left out: 2 bad record(s)" in said.out
        assert ("is finished already" in said.err) == again
    manifest = json.loads((tmp_path / "bad/corpus.json").read_text())
    assert manifest["skipped_files"].keys() == {str(mixed / n) for n in ("e.txt.gz", "f.csv")}
    assert manifest["skipped_records"] == {str(mixed / n): 1 for n in ("a.txt", "d.jsonl")}


@pytest.mark.parametrize("layout", ["names", "folders"])
def test_folders_of_hubs(tmp_path, layout, made, capsys):
    """Only the training split is read; the others are named, and one can be held out."""
    parts = {"train": texts(40), "validation": texts(9), "test": texts(8)}
    folder = tmp_path / "hub"
    for split, found in parts.items():
        named = folder / f"{split}-00000-of-00001.jsonl"
        path = named if layout == "names" else folder / split / "data.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(jsonl(found, lambda text: {"text": text}))
    (folder / "README.md").write_text("x")
    assert ["\n".join(document) for document in documents(folder)] == parts["train"]
    (said,) = capsys.readouterr().err.splitlines()
    assert "test" in said and "validation" in said
    (held_out,) = find_files(str(folder), splits=HELD_OUT)[0]
    assert "validation" in str(held_out.relative_to(folder))
    corpus = made(folder, validation_source=[str(folder)])
    first, second = (e for e in capsys.readouterr().err.splitlines() if ": skipped" in e)
    assert "test" in first and "train" in first and "test" in second
    counts = corpus.manifest["counts"]
    assert counts["validation"]["documents"] == 9 and counts["train"]["documents"] == 40
    assert corpus.manifest["options"]["validation_fraction"] is None
    assert open_corpus(corpus.directory).manifest["validation_sources"] == [str(folder)]


def test_held_out_text_is_dropped_from_the_training_text(tmp_path, made):
    train, held_out = texts(40), texts(40)[:7]
    (tmp_path / "train.txt").write_text("\n\n".join(train))
    (tmp_path / "own.txt").write_text("\n\n".join(text.upper() for text in held_out))
    corpus = made(tmp_path / "train.txt", validation_source=[str(tmp_path / "own.txt")])
    counts = corpus.manifest["counts"]
    assert counts["validation"]["documents"] == 7
    assert counts["train"]["documents"] == 33 and counts["train"]["duplicate_documents"] == 7


def test_bad_records_are_counted_and_limited(tmp_path, made):
    write_with(tmp_path / "a.jsonl", texts(1000), {5: b"x", 900: b'{"text": "\xff"}'})
    (tmp_path / "b.txt").write_text("\n\n".join(texts(70)))
    sources = (tmp_path / "a.jsonl", tmp_path / "b.txt")
    with pytest.raises(UsageError, match=r"2 of 1,070 records .* `bad_record_limit` 0.001:"):
        made(*sources, on_bad_record="skip", bad_record_limit=0.001)
    corpus = made(*sources, on_bad_record="skip")
    assert corpus.manifest["skipped_records"] == {str(sources[0]): 2}
    assert corpus.manifest["counts"]["total"]["documents"] == 1068


def test_a_full_disk_is_reported(tmp_path, made, monkeypatch):
    def full(*_):
        raise OSError("739857 requested and 157632 written")

    (tmp_path / "a.txt").write_text("\n\n".join(texts(90)))
    monkeypatch.setattr("bert_jax.data.corpus.shards.np.save", full)
    with pytest.raises(StorageFailed, match="No space left on device"):
        made(tmp_path / "a.txt", validation_fraction=0.2)
