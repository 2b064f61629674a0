"""Every file from outside is read, or rejected with one clear error.

Corpora, tokenizers, configs, manifests and models are mutated from a seed: values of other types,
missing and repeated keys, numbers out of range, bytes flipped, cut and inserted. What is read is
then used, so that an error does not appear later in a run.
"""

import bz2
import contextlib
import gzip
import io
import json
import lzma
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
from bert_jax.data.corpus import encode
from bert_jax.data.sources.read import read_documents
from bert_jax.data.tokenizer import sentencepiece_model
from bert_jax.data.tokenizer.tokenizer import Tokenizer, load_tokenizer
from bert_jax.data.tokenizer.training import train_tokenizer
from bert_jax.errors import BertJaxError
from bert_jax.interchange import huggingface, safetensors_files
from bert_jax.model import bert
from tests.chaos import IS_LONG

pytestmark = pytest.mark.chaos

_SECONDS = 30  # for one file: more is a hang
_LONGEST_MESSAGE = 3000
_VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "a", "b", "##a", "##b", "ab"]
_VOCAB_TXT = ("\n".join(_VOCABULARY) + "\n").encode()


def examples(number: int):
    """Sets the number of files that a test reads; five times as many in the long form."""
    return settings(
        max_examples=5 * number if IS_LONG else number,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Raises TimeoutError after `_SECONDS`."""

    def end(*_: Any) -> None:
        raise TimeoutError(f"a hang: more than {_SECONDS} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def clearly(read: Callable[[], Any], *, names: str, folder: Path | None = None) -> Any:
    """Returns the result of `read`, or None after one short error that contains `names`.

    Reading must not create a file in or next to `folder`.
    """
    before = sorted(folder.parent.rglob("*")) if folder else []
    message = ""
    with limited():
        try:
            return read()
        except BertJaxError as error:
            message = str(error)
        finally:
            assert (sorted(folder.parent.rglob("*")) if folder else []) == before
    assert names in message, f"{names!r} is not named: {message}"
    assert "\n" not in message and len(message) < _LONGEST_MESSAGE, f"too long: {message[:500]}"
    return None


# --- mutations -----------------------------------------------------------------------------------

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
    """Yields the path of each part of a JSON value, and its own."""
    yield path
    if isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _places(child, (*path, key))


@st.composite
def mutated(draw: st.DrawFn, document: Any) -> Any:
    """Draws a JSON document in which one to three parts are replaced, removed or added."""
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
        action = draw(st.sampled_from(["replace", "replace", "remove", "add"]))
        if action == "remove":
            del holder[path[-1]]
        elif action == "add" and isinstance(holder, dict):
            holder[draw(_TEXT | _NAMES)] = draw(_VALUES)
        else:
            holder[path[-1]] = draw(_VALUES)
    return changed


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Draws bytes that are cut, flipped, overwritten or longer."""
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


# Text and numbers that are special in at least one of the formats.
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


def of_json(whole: bytes) -> st.SearchStrategy[bytes]:
    """Mutates the document, or damages its bytes."""
    return mutated(json.loads(whole)).map(dump) | damaged(whole)


def header_of(whole: bytes) -> dict:
    """Returns the header of a safetensors file."""
    (size,) = struct.unpack("<Q", whole[:8])
    return json.loads(whole[8 : 8 + size])


def with_header(whole: bytes, header: Any) -> bytes:
    (size,), text = struct.unpack("<Q", whole[:8]), dump(header)
    return struct.pack("<Q", len(text)) + text + whole[8 + size :]


def of_tensors(whole: bytes) -> st.SearchStrategy[bytes]:
    """Mutates the header of a safetensors file, or damages the bytes of the file."""
    return mutated(header_of(whole)).map(lambda h: with_header(whole, h)) | damaged(whole)


@contextlib.contextmanager
def replaced(file: Path, data: bytes) -> Iterator[None]:
    whole = file.read_bytes()
    file.write_bytes(data)
    try:
        yield
    finally:
        file.write_bytes(whole)


# --- sources of a corpus -------------------------------------------------------------------------

_STORY = "A b. Ab a!\nB ab?\n\nEin zweiter Text, größer: 三。\n\n   \n\nthe end".encode()
_RECORDS = b"".join(dump({"text": text, "id": i}) + b"\n" for i, text in enumerate(["a b", "ab."]))


def _parquet() -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    stream = io.BytesIO()
    table = pyarrow.table({"id": [1, 2, 3], "text": ["a b.", None, "ab a\nb"]})
    parquet.write_table(table, stream, row_group_size=2)
    return stream.getvalue()


def _arrow(writer: str) -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    stream = io.BytesIO()
    words = ["a b.", None, "ab a\nb", "a b a b a b a b a b."]
    table = pyarrow.table({"id": range(4), "text": pyarrow.array(words, pyarrow.string_view())})
    with getattr(pyarrow.ipc, writer)(stream, table.schema) as opened:
        opened.write_table(table, max_chunksize=3)
    return stream.getvalue()


def _warc() -> bytes:
    pytest.importorskip("resiliparse")

    def record(kind: bytes, content: bytes) -> bytes:
        head = b"WARC/1.0\r\nWARC-Type: %b\r\nContent-Length: %d\r\n\r\n" % (kind, len(content))
        return head + content + b"\r\n\r\n"

    http = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n"
    page = b"<html><body><p>A b. Ab a!</p></body></html>"
    packed = b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(page, mtime=0)
    chunked = b"Transfer-Encoding: chunked\r\n\r\n3\r\nA b\r\n0\r\n\r\n"
    responses = [http + b"\r\n" + page, http + packed, http + chunked]
    return b"".join(
        [
            record(b"warcinfo", b"a: b\r\n"),
            record(b"conversion", _STORY),
            *(record(b"response", response) for response in responses),
        ]
    )


_SOURCES: dict[str, Callable[[], bytes]] = {
    ".txt": lambda: _STORY,
    ".jsonl": lambda: _RECORDS,
    ".csv": lambda: b'id;text\r\n1;"a b; ""ab"".\n\nab"\r\n2;ab\r\n',
    ".tsv": lambda: b"id\ttext\n1\ta b\n2\tab.\n",
    ".TXT": lambda: _STORY.decode().encode("utf-16"),
    ".txt.gz": lambda: gzip.compress(_STORY),
    ".jsonl.gz": lambda: gzip.compress(_RECORDS),
    ".txt.bz2": lambda: bz2.compress(_STORY),
    ".txt.xz": lambda: lzma.compress(_STORY),
    ".jsonl.zst": lambda: pytest.importorskip("zstandard").compress(_RECORDS),
    ".parquet": _parquet,
    ".file.arrow": lambda: _arrow("new_file"),
    ".stream.arrow": lambda: _arrow("new_stream"),
    ".warc": _warc,
    ".wet": _warc,
}


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("home") / "data"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> Tokenizer:
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_bytes(_VOCAB_TXT)
    return load_tokenizer(path)


@pytest.mark.parametrize("suffix", _SOURCES)
@examples(100)
@given(data=st.data())
def test_sources(home, vocabulary, suffix, data):
    """Damaged files, arbitrary bytes, and records with other values."""
    whole = _SOURCES[suffix]()
    kinds = damaged(whole) | damaged(whole + whole) | st.binary(max_size=200)
    if suffix == ".jsonl":
        record = mutated({"text": "a b.", "meta": {"id": 1, "tags": ["x"]}}).map(dump)
        kinds |= st.lists(record, max_size=3).map(b"\n".join)
    if suffix == ".txt":
        kinds |= st.text(max_size=300).map(lambda text: text.encode("utf-8", "replace"))
    file = home / f"corpus{suffix}"
    file.write_bytes(data.draw(kinds))
    documents = clearly(lambda: [*read_documents([str(file)])], names=str(file), folder=home)
    texts = ["\n".join(document).encode() for document in documents or ()]
    with limited():
        encode.encode_documents(texts, vocabulary)


# --- tokenizers ----------------------------------------------------------------------------------


def _saved(tokenizer: Tokenizer, folder: Path) -> dict[str, bytes]:
    tokenizer.save(folder)
    return {file.name: file.read_bytes() for file in sorted(folder.glob("*.json"))}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory, vocabulary) -> dict[str, dict[str, bytes]]:
    """Returns the files of a small tokenizer of each kind."""
    texts = [" ".join("ab" * i for i in range(1, 9)) + "cdefg hij klm" * 3] * 9
    unigram = train_tokenizer("sentencepiece", texts, vocab_size=24, lowercase=True)
    texts = ["the cat sat on the mat", "a b c d e f g h"] * 9
    model = sentencepiece_model.train(texts, vocab_size=20, lowercase=False)
    wordpiece = _saved(vocabulary, tmp_path_factory.mktemp("wordpiece"))
    return {
        "vocab.txt": {"vocab.txt": _VOCAB_TXT},
        "wordpiece": wordpiece,
        "wordpiece and vocab.txt": wordpiece | {"vocab.txt": _VOCAB_TXT},
        "sentencepiece": _saved(unigram, tmp_path_factory.mktemp("unigram")),
        "spiece.model": {"spiece.model": model},
    }


_LINES = st.sampled_from([*_VOCABULARY, "", "##", " ", "\r", "\u2028", "a b", "\ufeff[PAD]", "\0"])


@pytest.mark.parametrize(
    ("kind", "victim", "loaded"),
    [
        ("vocab.txt", "vocab.txt", "vocab.txt"),
        ("wordpiece", "tokenizer.json", ""),
        ("sentencepiece", "tokenizer.json", ""),
        ("wordpiece", "tokenizer_config.json", "tokenizer.json"),
        ("wordpiece and vocab.txt", "tokenizer_config.json", "vocab.txt"),
        ("spiece.model", "spiece.model", "spiece.model"),
    ],
)
@examples(150)
@given(data=st.data())
def test_tokenizers(home, tokenizers, kind, victim, loaded, data):
    """A tokenizer that loads has an id for every text, and is the same after it was saved."""
    files, whole = tokenizers[kind], tokenizers[kind][victim]
    kinds = of_json(whole) if victim.endswith(".json") else damaged(whole)
    if victim == "vocab.txt":
        kinds |= st.lists(_LINES | st.text(max_size=4)).map(
            lambda tokens: "\n".join([*_VOCABULARY[:5], *tokens]).encode("utf-8", "replace")
        )
    folder, copy = home.parent / "tokenizer" / "files", home.parent / "copy"
    for old in (folder, copy):
        shutil.rmtree(old, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in (files | {victim: data.draw(kinds)}).items():
        (folder / name).write_bytes(content)
    place = folder / loaded
    found = clearly(lambda: load_tokenizer(place), names=str(folder), folder=folder)
    if found is None:
        return
    with limited():
        ids = found.encode("A ab, größer: 三 \0 [MASK]\n")
        assert ids and min(ids) >= 0 and max(ids) < found.vocab_size
        found.encode_sentences(["", "b a"])
        found.decode(ids), found.tokens(ids)
        found.save(copy)
        assert load_tokenizer(copy).hash == found.hash


# --- configs -------------------------------------------------------------------------------------

_CONFIG = dump(configs.to_dict(TrainConfig()))
_FIELDS = sorted(configs.flatten(TrainConfig()))
_PATHS = st.sampled_from([*_FIELDS, *(f.partition(".")[0] for f in _FIELDS)]) | st.text(
    st.sampled_from("phases.0129-²٣ "), max_size=12
)


def _require_possible(config: TrainConfig | None) -> None:
    """A config that was read is finite, fits into 64 bits and equals its JSON."""
    if config is None:
        return
    for value in configs.flatten(config).values():
        assert not isinstance(value, int | float) or abs(value) < 2**63
        assert not isinstance(value, str) or value.encode() is not None
    assert configs.from_dict(json.loads(json.dumps(configs.to_dict(config))), TrainConfig) == config


@examples(300)
@given(data=of_json(_CONFIG))
def test_config_files(home, data):
    file = home / "config.json"
    file.write_bytes(data)
    _require_possible(clearly(lambda: config_loader.load_config(str(file)), names="config"))


@examples(300)
@given(
    path=_PATHS, text=_VALUES.map(json.dumps) | _TEXT | _PIECES.map(lambda p: p.decode("latin-1"))
)
def test_overrides(path, text):
    def read() -> TrainConfig:
        return config_loader.load_config("bert_base", [f"{path}={text}"])

    _require_possible(clearly(read, names=path.strip().partition(".")[0]))


# --- models --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A model in one file, and in `sharded` in several."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "vocab.txt").write_bytes(_VOCAB_TXT)
    config = ModelConfig(
        vocab_size=len(_VOCABULARY),
        hidden_size=4,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=4,
        max_position_embeddings=16,
    )
    params = bert.init_params(config, HeadConfig(), seed=0)
    huggingface.write(folder / "hf", params, config, tokenizer=folder / "vocab.txt")
    tensors, _ = safetensors_files.read_file(folder / "hf" / "model.safetensors")
    (folder / "sharded").mkdir()
    safetensors_files.write_tensors(folder / "sharded", tensors, max_file_bytes=600)
    return folder / "hf"


@examples(60)
@given(data=st.data())
def test_model_configs(model, data):
    file = model / "config.json"
    with replaced(file, data.draw(of_json(file.read_bytes()))):
        found = clearly(lambda: huggingface.read(model), names="", folder=model)
    if found is not None:
        # The model can be exported.
        copy = model.parent / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        huggingface.write(copy, found.params, found.model, tokenizer=model, head=found.head)


@examples(40)
@given(data=st.data())
def test_model_tensors(model, data):
    file = model / "model.safetensors"
    with replaced(file, data.draw(of_tensors(file.read_bytes()))):
        clearly(lambda: huggingface.read(model), names=str(model), folder=model)


@examples(200)
@given(data=st.data())
def test_model_indexes(model, data):
    folder = model.parent / "sharded"
    file = folder / safetensors_files.INDEX
    with replaced(file, data.draw(of_json(file.read_bytes()))):
        clearly(lambda: safetensors_files.read(folder), names=str(folder), folder=folder)


@examples(300)
@given(data=st.data())
def test_safetensors_files(home, data):
    if not (file := home / "whole.safetensors").exists():
        arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.ones(4, np.float16)}
        safetensors_files.write_file(file, arrays)
    whole = file.read_bytes()
    header = header_of(whole)
    dtypes = st.sampled_from(["F8_E4M3", "BF16", "F4", "BOOL", "I64", "C64", "U8", "f32", ""])
    retyped = dtypes.map(
        lambda dtype: with_header(whole, header | {"a": header["a"] | {"dtype": dtype}})
    )
    broken = home / "model.safetensors"
    broken.write_bytes(data.draw(of_tensors(whole) | retyped))
    found = clearly(lambda: safetensors_files.read_file(broken), names=str(broken), folder=home)
    for tensor in (found or ({}, {}))[0].values():
        assert isinstance(tensor, np.ndarray)
