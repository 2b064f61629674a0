import gzip
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from bert_jax.data.formats import delimited
from bert_jax.data.language import sentences as cutting
from bert_jax.data.language.sentences import split_sentences
from bert_jax.data.sources import document
from bert_jax.data.sources.read import left_out, read_documents
from bert_jax.data.sources.stream import Findings, SourceOptions
from bert_jax.errors import UsageError

_READ = "bert_jax.data.sources.read"
DOCUMENTS = [
    ("The first paragraph.", "The second, with é and 漢字."),
    ("Another document.",),
    ("A third. It has two sentences.", "And two paragraphs."),
]
TEXT = "\n\n".join("\n".join(document) for document in DOCUMENTS) + "\n"
JSONL = "".join(json.dumps({"id": 1, "text": "\n".join(d)}) + "\n" for d in DOCUMENTS)


def documents(*sources):
    return list(read_documents([str(source) for source in sources]))


def refusal(*sources):
    with pytest.raises(UsageError) as caught:
        documents(*sources)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.txt", TEXT),
        ("a.txt", TEXT.rstrip("\n")),
        ("a.txt", "\n\n" + TEXT.replace("\n\n", "\n \t\n\n\n") + "\n\n"),
        ("a.txt", TEXT.replace("\n", "\r\n")),
        ("a.txt", TEXT.replace("\n", "\r")),
        ("a.txt", TEXT.replace("\n", "\r\r\n")),
        ("a.txt", TEXT[: len(TEXT) // 2] + TEXT[len(TEXT) // 2 :].replace("\n", "\r")),
        ("a.txt", "\ufeff" + TEXT),
        ("a.jsonl", JSONL),
        ("a.jsonl", JSONL.rstrip("\n")),
        ("a.jsonl", "\ufeff" + JSONL.replace("\n", "\r\n\r\n")),
        ("a.jsonl", JSONL.replace("\n", "\r")),
        ("a.jsonl", JSONL.replace("\\n", "\\r")),
        ("a.jsonl", JSONL.replace("\\n", "\\n\\n  \\n") + '{"text": " \\n"}\n'),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_one_file_of_each_kind_gives_the_same_documents(tmp_path, name, content, compressed):
    data = content.encode()
    path = tmp_path / (name + ".gz" if compressed else name)
    path.write_bytes(gzip.compress(data) if compressed else data)
    assert documents(path) == DOCUMENTS


@pytest.mark.parametrize("end", ["\r", "\r\n", "\r\r\n"])
def test_an_end_of_a_line_may_lie_where_two_blocks_meet(tmp_path, end):
    """A file is decoded in blocks of 256 KiB: each place of the end in the first one is tried."""
    path, first = tmp_path / "a.txt", "x" * ((1 << 18) - 4)
    for more in range(6):
        path.write_bytes(f"{first}{'y' * more}{end}z{end}".encode())
        assert documents(path) == [(first + "y" * more, "z")]


def test_files_of_folders_and_globs_come_in_the_order_of_their_names(tmp_path):
    hidden = ["a/.hidden.txt", ".copies/c.txt", "b/.git/d/e.txt"]
    for name in ["b/2.txt", "b/10.jsonl", "a/x.txt.gz", "c.txt", "a/readme.md", *hidden]:
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = (json.dumps({"text": name}) if name.endswith("jsonl") else name).encode()
        path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    whole = [("a/x.txt.gz",), ("b/10.jsonl",), ("b/2.txt",), ("c.txt",)]
    assert documents(tmp_path / "in") == whole
    assert documents(tmp_path / "in" / "b" / "*") == whole[1:3]
    (said,) = left_out([str(tmp_path / "in")])
    assert ".copies/c.txt, a/.hidden.txt, b/.git/d/e.txt (hidden)" in said
    assert documents(tmp_path / "in/.copies") == [(".copies/c.txt",)]
    assert documents(tmp_path / "in" / "**" / "*.txt") == whole[2:]
    assert documents(tmp_path / "in/c.txt", tmp_path / "in/a") == [whole[3], whole[0]]


def test_a_file_with_brackets_in_its_name_is_a_file(tmp_path):
    (tmp_path / "a[1].txt").write_text(TEXT, encoding="utf-8")
    assert documents(tmp_path / "a[1].txt") == DOCUMENTS


@pytest.mark.parametrize("character", ["a", "é", "漢", "😀"])
@pytest.mark.parametrize("shift", range(4))
def test_a_line_too_long_is_cut_and_nothing_is_lost(tmp_path, monkeypatch, character, shift):
    monkeypatch.setattr(document, "LONGEST_LINE_BYTES", 64)
    words = ["x" * (1 + i % 13) for i in range(40)]
    lines = [" ".join(words), "y" * shift + character * 100, "z" * 64, "z" * 63 + " "]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\nend\n\nnext\n", encoding="utf-8")
    first, second = documents(tmp_path / "a.txt")
    assert second == ("next",)
    assert max(len(paragraph.encode()) for paragraph in first) <= 64
    assert "".join(first).replace(" ", "") == "".join([*lines, "end"]).replace(" ", "")
    cut_at_spaces = [word for paragraph in first for word in paragraph.split()][: len(words)]
    assert cut_at_spaces == words


def test_memory_is_bounded_by_the_limits_not_by_the_file(tmp_path):
    """A line of 256 MB without a newline, read by a process that may take 100 MB for it."""
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


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.txt.gz"])
def test_bytes_that_are_not_utf8_are_refused(tmp_path, name):
    data = JSONL if "jsonl" in name else TEXT
    broken = data.encode() + '{"text": "café"}\n'.encode("latin-1")
    (tmp_path / name).write_bytes(gzip.compress(broken) if name.endswith("gz") else broken)
    message = refusal(tmp_path / name)
    line = data.count("\n") + 1
    assert f"{name}, line {line}:" in message
    offset = len(data.encode()) + 13
    assert f"(byte 0xe9 at offset {offset}); " in message and "`encoding` cp1252" in message


@pytest.mark.parametrize(
    "line, expected",
    [
        ("{'text': 'x'}", "not JSON"),
        ('{"text": "x"', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"title": "x", "body": "y"}', "found ['body', 'title']"),
        ('{"text": ["x"]}', "found ['text']"),
        ('["text"]', "found list"),
    ],
)
def test_a_bad_json_line_is_named(tmp_path, line, expected):
    (tmp_path / "a.jsonl").write_text(JSONL + "\n" + line + "\n", encoding="utf-8")
    message = refusal(tmp_path / "a.jsonl")
    assert "a.jsonl, line 5:" in message and expected in message


def test_a_json_line_too_long_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "LONGEST_RECORD_BYTES", 1 << 10)
    (tmp_path / "a.jsonl").write_text(
        '{"text": "short"}\n' + json.dumps({"text": "x" * 2000}) + "\n", encoding="utf-8"
    )
    assert "a.jsonl, line 2: longer than" in refusal(tmp_path / "a.jsonl")


def test_half_a_surrogate_pair_becomes_a_replacement_character(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a \\ud83d b \\ud83d\\ude00"}\n', encoding="utf-8")
    assert documents(tmp_path / "a.jsonl") == [("a \ufffd b 😀",)]


@pytest.mark.parametrize("damage", ["truncated", "altered", "not gzip"])
def test_damaged_gzip_is_refused(tmp_path, damage):
    data = bytearray(gzip.compress(TEXT.encode() * 100))
    if damage == "truncated":
        del data[-40:]
    elif damage == "altered":
        data[-6] ^= 0xFF  # the checksum
    else:
        data = bytearray(TEXT.encode())
    (tmp_path / "a.txt.gz").write_bytes(data)
    message = refusal(tmp_path / "a.txt.gz")
    assert "a.txt.gz: damaged gzip file" in message


def test_sources_that_are_not_there_are_refused_before_reading(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.pdf").write_text("x")
    os.mkfifo(tmp_path / "pipe.txt")
    good = str(tmp_path / "a.txt")
    for bad, expected in {
        "missing.txt": "no such file or folder",
        "*.jsonl": "no file matches",
        "empty": ".wet, .fasta, .fa, .faa, .fna (each also .gz, .bz2, .xz, .zst) file in",
        "a.pdf": "not one of .txt",
        "pipe.txt": "is not a plain file, and sources are read twice",
    }.items():
        with pytest.raises(UsageError) as caught:
            read_documents([good, str(tmp_path / bad)])
        assert bad in str(caught.value) and expected in str(caught.value)


def test_sentences_are_split_and_the_text_is_preserved():
    paragraph = 'Dr. Smith paid 3.14 dollars  to the U.S. army. "Why?" he asked.  Nobody knew!'
    sentences = split_sentences(paragraph)
    assert sentences == [
        "Dr. Smith paid 3.14 dollars  to the U.S. army.",
        '"Why?" he asked.',
        "Nobody knew!",
    ]
    assert split_sentences("") == split_sentences(" \t ") == []


@pytest.mark.parametrize("space", ["\u00a0", "\u2009", "\u0085", " \u00a0", "\u3000 "])
def test_white_space_of_several_bytes_behind_an_initial(space):
    """The splitter panics at it."""
    found = split_sentences(f"It was J{space}. Smith. Nobody knew.")
    assert " ".join(found) == "It was J . Smith. Nobody knew."


def test_a_sentence_too_long_is_cut_at_a_space():
    sentence = " ".join(f"word{i}" for i in range(1000))
    cut = split_sentences(sentence)
    assert len(cut) > 5 and max(map(len, cut)) <= cutting.LONGEST_SENTENCE
    assert min(map(len, cut[:-1])) > cutting.LONGEST_SENTENCE - 10
    assert " ".join(cut) == sentence
    solid = split_sentences("x" * 2500)
    assert [len(piece) for piece in solid] == [1000, 1000, 500]


@pytest.fixture(scope="module")
def tfds_folder(tmp_path_factory):
    """Two small data sets, built with a real builder in another process and found on disk here."""
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


@pytest.mark.filterwarnings("ignore")  # of tensorflow's own imports
def test_tfds(tfds_folder, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tfds_folder))
    found = documents("tfds:tiny_text/plain")
    # The builder shuffles by key, always in the same way.
    assert sorted(found) == sorted(DOCUMENTS)
    assert found == documents("tfds:tiny_text/plain:train")
    assert documents("tfds:tiny_text/plain:test") == DOCUMENTS[:1]
    assert documents("tfds:tiny_text/plain:1.0.0:train[1:]") == found[1:]
    assert "2 text features: ['first', 'second']" in refusal("tfds:tiny_text/other")
    second = list(
        read_documents(["tfds:tiny_text/other"], SourceOptions(text_field="none, second"))
    )
    assert sorted(second) == sorted(DOCUMENTS)
    named = list(read_documents(["tfds:tiny_text/plain"], SourceOptions(text_field="title")))
    assert named == [("title",)] * len(DOCUMENTS)
    with pytest.raises(UsageError, match=r"no text feature .none., and 2 .*`text_field` names one"):
        list(read_documents(["tfds:tiny_text/plain"], SourceOptions(text_field="none")))
    assert "nosplit" in refusal("tfds:tiny_text/plain:nosplit")
    assert "tfds:no_such_set: tensorflow_datasets cannot load" in refusal("tfds:no_such_set")
    assert "expected tfds:NAME" in refusal("tfds:")


def test_a_record_of_tfds_that_is_no_text_is_left_out_where_records_may_be(monkeypatch):
    texts = [b"a", b"caf\xe9", b" ", b"b"]
    data = SimpleNamespace(as_numpy_iterator=lambda: iter({"text": text} for text in texts))
    monkeypatch.setattr(f"{_READ}.load_tfds", lambda *_: (data, SimpleNamespace(features=None)))
    monkeypatch.setattr(f"{_READ}._tfds_text_field", lambda *_: "text")
    assert "tfds:made_up, record 2: 'text' is not UTF-8" in refusal("tfds:made_up")
    findings = Findings()
    reading = SourceOptions(skips_records=True)
    found = list(read_documents(["tfds:made_up"], reading, findings=findings))
    assert found == [("a",), ("b",)]
    assert findings.records == {"tfds:made_up": 1} and findings.without_text == 1


def test_tfds_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    install = "pip install 'tensorflow-datasets>=4.9.9' 'importlib-resources>=6'"
    assert install in refusal("tfds:wikipedia")
    with pytest.raises(UsageError, match="needs tensorflow-datasets"):
        list(read_documents(["tfds:wikipedia"], findings=Findings()))
