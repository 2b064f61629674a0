"""Whatever a file from outside holds, reading it gives a value or one clear error.

Corpora, vocabularies, configs, manifests and models are mutated from a seed: values of other
types, keys that are lost or come twice, numbers out of range, bytes flipped, cut and inserted. What
is read is then used, so that what is wrong with it cannot wait for step one million.
"""

import bz2
import contextlib
import gzip
import io
import json
import lzma
import os
import pickle
import shutil
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bert_jax import config as configs
from bert_jax import config_loader
from bert_jax.config import HeadConfig, ModelConfig, TrainConfig
from bert_jax.data.corpus import encode, store
from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.sources.read import read_documents
from bert_jax.data.tokenizer.tokenizer import Tokenizer, load_tokenizer
from bert_jax.data.tokenizer.training import train_sentencepiece
from bert_jax.errors import BertJaxError, UsageError
from bert_jax.interchange import huggingface, safetensors_files
from bert_jax.model import bert
from tests.chaos import IS_LONG

pytestmark = pytest.mark.chaos

_SECONDS = 30  # for one file: more is a hang
_LONGEST_MESSAGE = 3000
_VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "a", "b", "##a", "##b", "ab"]
_MODEL = ModelConfig(
    vocab_size=len(_VOCABULARY),
    hidden_size=4,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=4,
    max_position_embeddings=16,
)


def examples(number: int):
    """Sets how many files a test reads; five times as many in the long form."""
    return settings(
        max_examples=5 * number if IS_LONG else number,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


# --- what has to hold ----------------------------------------------------------------------------


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Raises TimeoutError in what takes too long."""

    def end(*_: Any) -> None:
        raise TimeoutError(f"a hang: more than {_SECONDS} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def clearly(read: Callable[[], Any], *, names: str) -> Any:
    """Returns what `read` does, or None after an error that a user can act upon."""
    with limited():
        try:
            return read()
        except BertJaxError as error:
            message = str(error)
    assert names in message, f"{names!r} is not named: {message}"
    assert "\n" not in message and len(message) < _LONGEST_MESSAGE, f"too long: {message[:500]}"
    return None


@contextlib.contextmanager
def unchanged(folder: Path) -> Iterator[None]:
    """Reading makes no file, in the folder or beside it."""
    before = sorted(folder.parent.rglob("*"))
    yield
    assert sorted(folder.parent.rglob("*")) == before


# --- what is wrong with files --------------------------------------------------------------------

_TEXT = st.text(max_size=8) | st.text(
    st.characters(min_codepoint=0xD7F0, max_codepoint=0xE010), max_size=3
)
_NAMES = st.sampled_from(["../x", "/etc/passwd", "..", "", ".", "a\0b", "\ud800", "[PAD]", "ab"])
_NUMBERS = st.sampled_from(
    [0, 1, 2, -1, 1.5, 1e400, float("nan"), 2**31, 2**63, -(2**64), 10**40, 10**400, 0.0, 1e-320]
)
_SCALARS = st.none() | st.booleans() | st.integers() | _NUMBERS | _TEXT | _NAMES
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT | _NAMES, inner, max_size=3),
    max_leaves=6,
)


def _places(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """The path of everything in a JSON value, itself included."""
    yield path
    if isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _places(child, (*path, key))


@st.composite
def mutated(draw: st.DrawFn, document: Any) -> Any:
    """A JSON document with one to three things in it replaced, lost or added."""
    changed = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(sorted(_places(changed), key=repr)))
        if not path:
            if draw(st.integers(0, 20)) == 0:
                return draw(_VALUES)
            continue
        holder = changed
        for key in path[:-1]:
            holder = holder[key]
        action = draw(st.sampled_from(["replace", "replace", "lose", "add"]))
        if action == "lose":
            del holder[path[-1]]
        elif action == "add" and isinstance(holder, dict):
            holder[draw(_TEXT | _NAMES)] = draw(_VALUES)
        else:
            holder[path[-1]] = draw(_VALUES)
    return changed


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes, cut, flipped, overwritten or longer."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(changed)))
        action = draw(st.sampled_from(["cut", "insert", "overwrite", "flip", "append"]))
        if action == "cut":
            del changed[at : at + draw(st.integers(1, 64))]
        elif action == "insert":
            changed[at:at] = draw(st.binary(max_size=16) | _PIECES)
        elif action == "overwrite":
            piece = draw(st.binary(min_size=1, max_size=8) | _PIECES)
            changed[at : at + len(piece)] = piece
        elif action == "flip" and at < len(changed):
            changed[at] ^= 1 << draw(st.integers(0, 7))
        else:
            changed += draw(st.binary(max_size=16) | _PIECES)
    return bytes(changed)


# In all languages: what parsers trip over.
_PIECES = st.sampled_from(
    [
        *(b"\0", b"\n", b"\r\n", b"\n\n", b"\xef\xbb\xbf", b"\xff\xfe", b"\xed\xa0\x80"),
        *("\u2028".encode(), "\x85".encode(), b"\\ud800", b"NaN", b"1e999", b"9" * 5000),
        *(b"{", b"[" * 3000, b'{"a":' * 3000, b'"', b"]", b"}", b",", b"\x1f\x8b\x08\x00"),
        *(struct.pack("<Q", size) for size in (0, 1, 2**31, 2**63, 2**64 - 1)),
    ]
)


def dump(value: Any) -> bytes:
    return json.dumps(value).encode()


# --- corpora -------------------------------------------------------------------------------------

_STORY = "A b. Ab a!\nB ab?\n\nEin zweiter Text, größer: 三。\n\n   \n\nthe end".encode()
_RECORDS = b"".join(dump({"text": text, "id": i}) + b"\n" for i, text in enumerate(["a b", "ab."]))


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("home") / "data"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> Tokenizer:
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(_VOCABULARY) + "\n")
    return load_tokenizer(path)


def _require_readable(file: Path, data: bytes, vocabulary: Tokenizer) -> None:
    file.write_bytes(data)
    with unchanged(file.parent):
        documents = clearly(lambda: list(read_documents([str(file)])), names=str(file))
    texts = ["\n".join(document).encode() for document in documents or ()]
    with limited():
        encode.encode_documents(texts, vocabulary)


_WHOLE = {
    ".txt": _STORY,
    ".jsonl": _RECORDS,
    ".csv": b'id;text\r\n1;"a b; ""ab"".\n\nab"\r\n2;ab\r\n',
    ".tsv": b"id\ttext\n1\ta b\n2\tab.\n",
    ".TXT": _STORY.decode().encode("utf-16"),
}


@pytest.mark.parametrize("suffix", _WHOLE)
@examples(100)
@given(data=st.data())
def test_text(home, vocabulary, suffix, data):
    whole = _WHOLE[suffix]
    found = data.draw(damaged(whole) | st.binary(max_size=200))
    _require_readable(home / f"corpus{suffix}", found, vocabulary)


def _zstd(data: bytes) -> bytes:
    return pytest.importorskip("zstandard").compress(data)


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [
        (".txt.gz", gzip.compress),
        (".jsonl.gz", gzip.compress),
        (".txt.bz2", bz2.compress),
        (".txt.xz", lzma.compress),
        (".jsonl.zst", _zstd),
    ],
)
@examples(100)
@given(data=st.data())
def test_compressed_text(home, vocabulary, suffix, compress, data):
    whole = compress(_STORY if ".txt" in suffix else _RECORDS)
    found = data.draw(damaged(whole) | damaged(whole + whole) | st.binary(max_size=200))
    _require_readable(home / f"corpus{suffix}", found, vocabulary)


@pytest.fixture(scope="module")
def parquet() -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    stream = io.BytesIO()
    table = pyarrow.table({"id": [1, 2, 3], "text": ["a b.", None, "ab a\nb"]})
    parquet.write_table(table, stream, row_group_size=2)
    return stream.getvalue()


@examples(100)
@given(data=st.data())
def test_parquet(home, vocabulary, parquet, data):
    found = data.draw(damaged(parquet) | st.binary(max_size=200))
    _require_readable(home / "corpus.parquet", found, vocabulary)


@pytest.fixture(scope="module", params=["file", "stream"])
def arrow(request) -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    stream = io.BytesIO()
    words = ["a b.", None, "ab a\nb", "a b a b a b a b a b."]
    table = pyarrow.table({"id": range(4), "text": pyarrow.array(words, pyarrow.string_view())})
    new = pyarrow.ipc.new_file if request.param == "file" else pyarrow.ipc.new_stream
    with new(stream, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return stream.getvalue()


@examples(100)
@given(data=st.data())
def test_arrow(home, vocabulary, arrow, data):
    found = data.draw(damaged(arrow) | st.binary(max_size=200))
    _require_readable(home / "corpus.arrow", found, vocabulary)


def _crawled(kind: bytes, content: bytes) -> bytes:
    head = b"WARC/1.0\r\nWARC-Type: %b\r\nContent-Length: %d\r\n\r\n" % (kind, len(content))
    return head + content + b"\r\n\r\n"


_HTTP = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n"
_PAGE = b"<html><body><p>A b. Ab a!</p></body></html>"
_CRAWL = b"".join(
    [
        _crawled(b"warcinfo", b"a: b\r\n"),
        _crawled(b"conversion", _STORY),
        _crawled(b"response", _HTTP + b"\r\n" + _PAGE),
        _crawled(
            b"response", _HTTP + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(_PAGE, mtime=0)
        ),
        _crawled(b"response", _HTTP + b"Transfer-Encoding: chunked\r\n\r\n3\r\nA b\r\n0\r\n\r\n"),
    ]
)


@pytest.mark.parametrize("suffix", [".warc", ".wet"])
@examples(100)
@given(data=st.data())
def test_crawls(home, vocabulary, suffix, data):
    pytest.importorskip("resiliparse")
    found = data.draw(damaged(_CRAWL) | st.binary(max_size=200))
    _require_readable(home / f"corpus{suffix}", found, vocabulary)


@examples(100)
@given(records=st.lists(mutated({"text": "a b.", "meta": {"id": 1, "tags": ["x"]}}), max_size=3))
def test_records(home, vocabulary, records):
    data = b"".join(dump(record) + b"\n" for record in records)
    _require_readable(home / "corpus.jsonl", data, vocabulary)


@examples(100)
@given(text=st.text(max_size=300))
def test_any_text_is_encoded(home, vocabulary, text):
    _require_readable(home / "corpus.txt", text.encode("utf-8", "replace"), vocabulary)


# --- vocabularies --------------------------------------------------------------------------------


def _require_usable(path: Path, folder: Path) -> None:
    """A vocabulary that loads has ids for every text, and is the same when it was saved."""
    with unchanged(folder):
        loaded = clearly(lambda: load_tokenizer(path), names=str(folder))
    if loaded is None:
        return
    with limited():
        ids = loaded.encode("A ab, größer: 三 \0 [MASK]\n")
        assert ids and min(ids) >= 0 and max(ids) < loaded.vocab_size
        loaded.encode_sentences(["", "b a"])
        loaded.decode(ids), loaded.tokens(ids)
        copy = folder.parent / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        loaded.save(copy)
        assert load_tokenizer(copy).hash == loaded.hash
        shutil.rmtree(copy)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizers") / "data"
    folder.mkdir()
    return folder


def _only(folder: Path, files: dict[str, bytes]) -> None:
    for old in folder.iterdir():
        old.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)


_VOCAB_TXT = ("\n".join(_VOCABULARY) + "\n").encode()
_LINES = st.sampled_from([*_VOCABULARY, "", "##", " ", "\r", "\u2028", "a b", "\ufeff[PAD]", "\0"])


@examples(150)
@given(data=damaged(_VOCAB_TXT) | st.lists(_LINES | st.text(max_size=4)).map(
    lambda tokens: "\n".join([*_VOCABULARY[:5], *tokens]).encode("utf-8", "replace")
))  # fmt: skip
def test_vocab_txt(folder, data):
    _only(folder, {"vocab.txt": data})
    _require_usable(folder / "vocab.txt", folder)


def _saved(kind: str, folder: Path) -> dict[str, bytes]:
    """The files of a small tokenizer."""
    if kind == "wordpiece":
        source = folder / "vocab.txt"
        source.write_bytes(_VOCAB_TXT)
        load_tokenizer(source).save(folder)
    else:
        texts = [" ".join("ab" * i for i in range(1, 9)) + "cdefg hij klm" * 3] * 9
        train_sentencepiece(texts, vocab_size=24, lowercase=True).save(folder)
    return {file.name: file.read_bytes() for file in sorted(folder.glob("*.json"))}


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> dict[str, dict[str, bytes]]:
    return {kind: _saved(kind, tmp_path_factory.mktemp(kind)) for kind in _KINDS}


_KINDS = ("wordpiece", "sentencepiece")
each_kind = pytest.mark.parametrize("kind", _KINDS)


@each_kind
@examples(150)
@given(data=st.data())
def test_tokenizer_json(folder, saved, kind, data):
    whole = saved[kind]["tokenizer.json"]
    found = data.draw(mutated(json.loads(whole)).map(dump) | damaged(whole))
    _only(folder, saved[kind] | {"tokenizer.json": found})
    _require_usable(folder, folder)


@pytest.mark.parametrize("beside", ["vocab.txt", "tokenizer.json"])
@examples(100)
@given(data=st.data())
def test_tokenizer_config_json(folder, saved, beside, data):
    files = saved["wordpiece"]
    whole = files["tokenizer_config.json"]
    found = data.draw(mutated(json.loads(whole)).map(dump) | damaged(whole))
    _only(folder, {"vocab.txt": _VOCAB_TXT, **files, "tokenizer_config.json": found})
    _require_usable(folder / beside, folder)


@pytest.fixture(scope="module")
def sentencepiece_model() -> bytes:
    from bert_jax.data.tokenizer import sentencepiece_model

    texts = ["the cat sat on the mat", "a b c d e f g h"] * 9
    return sentencepiece_model.train(texts, vocab_size=20, lowercase=False)


@examples(150)
@given(data=st.data())
def test_sentencepiece_model(folder, sentencepiece_model, data):
    _only(folder, {"spiece.model": data.draw(damaged(sentencepiece_model))})
    _require_usable(folder / "spiece.model", folder)


# --- configs -------------------------------------------------------------------------------------

_CONFIG = configs.to_dict(TrainConfig())
_FIELDS = sorted(configs.flatten(TrainConfig()))


def _require_possible(config: TrainConfig | None) -> None:
    """A config that was read is finite, fits in 64 bits and is what its JSON says."""
    if config is None:
        return
    for value in configs.flatten(config).values():
        assert not isinstance(value, int | float) or abs(value) < 2**63
        assert not isinstance(value, str) or value.encode() is not None
    assert configs.from_dict(json.loads(json.dumps(configs.to_dict(config)))) == config


@examples(300)
@given(data=mutated(_CONFIG).map(dump) | damaged(dump(_CONFIG)))
def test_config_json(home, data):
    file = home / "config.json"
    file.write_bytes(data)
    _require_possible(clearly(lambda: config_loader.load_config(str(file)), names="config"))


_PATHS = st.sampled_from([*_FIELDS, *(f.partition(".")[0] for f in _FIELDS)]) | st.text(
    st.sampled_from("phases.0129-²٣ "), max_size=12
)


@examples(300)
@given(
    path=_PATHS, text=_VALUES.map(json.dumps) | _TEXT | _PIECES.map(lambda p: p.decode("latin-1"))
)
def test_set(path, text):
    def read() -> TrainConfig:
        return config_loader.load_config("bert_base", [f"{path}={text}"])

    _require_possible(clearly(read, names=path.strip().partition(".")[0]))


# --- corpus directories --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "vocab.txt").write_bytes(_VOCAB_TXT)
    text = "\n\n".join(" ".join("ab"[i >> bit & 1] for bit in range(7)) for i in range(128))
    (folder / "source.txt").write_text(text)
    prepare(
        [str(folder / "source.txt")],
        folder / "corpus",
        tokenizer=str(folder / "vocab.txt"),
        validation_fraction=0.3,
        workers=1,
    )
    return folder / "corpus"


@contextlib.contextmanager
def replaced(file: Path, data: bytes) -> Iterator[None]:
    whole = file.read_bytes()
    file.write_bytes(data)
    try:
        yield
    finally:
        file.write_bytes(whole)


def _with_fingerprint(manifest: Any) -> Any:
    """As one would write it who means harm."""
    with contextlib.suppress(Exception):
        manifest["fingerprint"] = store.fingerprint(manifest)
    return manifest


def _require_opened_clearly(corpus: Path) -> None:
    with unchanged(corpus):
        found = clearly(lambda: store.open_corpus(corpus, verify=store.SPLITS), names=str(corpus))
    if found is not None:
        assert float(found.manifest["unigram_entropy_nats"]) is not None
        for split in (found.train, found.validation):
            assert split.sentence_starts[-1] == split.shard_starts[-1]
            assert split.document_starts[-1] == len(split.sentence_starts) - 1


@examples(200)
@given(data=st.data())
def test_corpus_json(corpus, data):
    whole = (corpus / "corpus.json").read_bytes()
    changed = mutated(json.loads(whole))
    found = data.draw(changed.map(dump) | damaged(whole))
    with replaced(corpus / "corpus.json", found):
        _require_opened_clearly(corpus)


# --- models --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "vocab.txt").write_bytes(_VOCAB_TXT)
    params = bert.init_params(_MODEL, HeadConfig(), seed=0)
    huggingface.write(folder / "hf", params, _MODEL, tokenizer=folder / "vocab.txt")
    return folder / "hf"


@pytest.fixture(scope="module")
def sharded(tmp_path_factory, model) -> Path:
    folder = tmp_path_factory.mktemp("sharded") / "hf"
    folder.mkdir()
    tensors, _ = safetensors_files.read_file(model / "model.safetensors")
    safetensors_files.write_tensors(folder, tensors, max_file_bytes=600)
    return folder


def _parts(data: bytes) -> tuple[dict, bytes]:
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def _joined(header: Any, rest: bytes) -> bytes:
    text = dump(header)
    return struct.pack("<Q", len(text)) + text + rest


@examples(300)
@given(data=st.data())
def test_safetensors(home, data):
    if not (file := home / "whole.safetensors").exists():
        arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.ones(4, np.float16)}
        safetensors_files.write_file(file, arrays)
    header, rest = _parts(file.read_bytes())
    dtypes = st.sampled_from(["F8_E4M3", "BF16", "F4", "BOOL", "I64", "C64", "U8", "f32", ""])

    def retyped(header: dict, dtype: str) -> dict:
        return header | {"a": header["a"] | {"dtype": dtype}}

    found = data.draw(
        mutated(header).map(lambda h: _joined(h, rest))
        | dtypes.map(lambda dtype: _joined(retyped(header, dtype), rest))
        | damaged(_joined(header, rest))
    )
    broken = home / "model.safetensors"
    broken.write_bytes(found)
    with unchanged(home):
        read = clearly(lambda: safetensors_files.read_file(broken), names=str(broken))
    for tensor in (read or ({}, {}))[0].values():
        assert isinstance(tensor, np.ndarray)


@examples(200)
@given(data=st.data())
def test_index_of_safetensors(sharded, data):
    whole = (sharded / safetensors_files.INDEX).read_bytes()
    found = data.draw(mutated(json.loads(whole)).map(dump) | damaged(whole))
    with replaced(sharded / safetensors_files.INDEX, found), unchanged(sharded):
        clearly(lambda: safetensors_files.read(sharded), names=str(sharded))


@examples(60)
@given(data=st.data())
def test_config_of_a_model(model, data):
    whole = (model / "config.json").read_bytes()
    found = data.draw(mutated(json.loads(whole)).map(dump) | damaged(whole))
    with replaced(model / "config.json", found), unchanged(model):
        read = clearly(lambda: huggingface.read(model), names="")
    if read is not None:
        # It can be handed on.
        copy = model.parent / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        huggingface.write(copy, read.params, read.model, tokenizer=model, head=read.head)


@examples(40)
@given(data=st.data())
def test_tensors_of_a_model(model, data):
    whole = (model / "model.safetensors").read_bytes()
    header, rest = _parts(whole)
    found = data.draw(mutated(header).map(lambda h: _joined(h, rest)) | damaged(whole))
    with replaced(model / "model.safetensors", found), unchanged(model):
        clearly(lambda: huggingface.read(model), names=str(model))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"hidden_act": ["gelu"]}, r"hidden_act \['gelu'\] is not one of"),
        ({"architectures": True}, "architectures is True; expected a list of names"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, and there are 30 tensors"),
        ({"hidden_size": 10**30}, "hidden_size: .* does not fit in 64 bits"),
        ({"id2label": {"0": "\ud800"}, "architectures": ["BertForTokenClassification"]}, "half a"),
    ],
)
def test_a_config_that_no_model_has(model, changes, message):
    config = json.loads((model / "config.json").read_bytes()) | changes
    with (
        replaced(model / "config.json", dump(config)),
        limited(),
        pytest.raises(UsageError, match=message),
    ):
        huggingface.read(model)


@pytest.mark.parametrize("place", ["..", "../model.safetensors", "/model.safetensors", "", "a\0b"])
def test_an_index_names_only_files_beside_it(sharded, place):
    index = json.loads((sharded / safetensors_files.INDEX).read_bytes())
    index["weight_map"]["bert.pooler.dense.bias"] = place
    with (
        replaced(sharded / safetensors_files.INDEX, dump(index)),
        pytest.raises(UsageError, match=r"is no name of a file inside of|cannot be read"),
    ):
        safetensors_files.read(sharded)


# --- pickles -------------------------------------------------------------------------------------


class _Trap:
    def __reduce__(self):
        return os.mkdir, (str(self.marker),)

    def __init__(self, marker: Path):
        self.marker = marker


@pytest.fixture
def trap(tmp_path) -> Iterator[bytes]:
    """A pickle that leaves a folder behind when it is loaded."""
    marker = tmp_path / "sprung"
    bomb = pickle.dumps(_Trap(marker))
    yield bomb
    assert not marker.exists()
    pickle.loads(bomb)
    assert marker.exists()  # it would have


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "model.npz"])
def test_a_pickled_model_is_refused(tmp_path, model, trap, name):
    folder = tmp_path / "hf"
    shutil.copytree(model, folder)
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(trap)
    with pytest.raises(BertJaxError, match=r"hf.* (cannot be read|has no model\.safetensors)"):
        huggingface.read(folder)


def test_an_index_of_pickles_is_refused(tmp_path, model, trap):
    folder = tmp_path / "hf"
    shutil.copytree(model, folder)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(trap)
    index = {"weight_map": {"bert.pooler.dense.bias": "pytorch_model.bin"}}
    (folder / safetensors_files.INDEX).write_bytes(dump(index))
    with pytest.raises(BertJaxError, match=r"pytorch_model\.bin cannot be read"):
        huggingface.read(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt", "spiece.model"])
def test_a_pickled_vocabulary_is_refused(tmp_path, trap, name):
    (tmp_path / name).write_bytes(trap)
    with pytest.raises(BertJaxError, match=name):
        load_tokenizer(tmp_path / name)


def test_a_pickled_array_is_refused(corpus, trap):
    file = corpus / "train/00000.tokens.npy"
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n"
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + trap
    manifest = json.loads((corpus / "corpus.json").read_bytes())
    for data in (array, trap):
        with replaced(file, data):
            manifest["files"]["train/00000.tokens.npy"] = store.describe_file(file)
            with (
                replaced(corpus / "corpus.json", dump(_with_fingerprint(manifest))),
                pytest.raises(BertJaxError, match=r"00000\.tokens\.npy is not a NumPy array"),
            ):
                store.open_corpus(corpus)
