"""Running text has the ids of the library for any earlier content of the cache."""

import random
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from bert_jax.data.tokenizer import chunk_cache
from bert_jax.data.tokenizer.tokenizer import Tokenizer, load_tokenizer

_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_PIECES = [*"abcdeszABCß,.'[]?-", "é", "Σ", "σ", "中", "国", "i", "ı", "the", "unused"]
_SIGNS = [
    *"abcdez ABC ß,.'[]é Σς İıi 中国日",
    "\u0301",
    "\u00a0",
    "\u3000",
    "\t",
    "\u200b",
    "\0",
    "[mask]",
    "\u0301 ",
    "\ufeff",
    "[MASK]",
    "[SEP] ",
    "the",
    " unused",
    "\U0010fffd",
    "x" * 120,
]


@pytest.fixture(params=[True, False], ids=["uncased", "cased"])
def tokenizer(request, tmp_path) -> Tokenizer:
    (tmp_path / "vocab.txt").write_text(
        "\n".join([*_SPECIAL, *_PIECES, *(f"##{piece}" for piece in _PIECES)]) + "\n"
    )
    return load_tokenizer(tmp_path / "vocab.txt", lowercase=request.param)


def test_the_ids_are_those_of_the_library(tokenizer, monkeypatch):
    """Also after the cache was cleared, and after an interruption."""
    monkeypatch.setattr(chunk_cache, "_MOST_CHUNKS", 100)
    draw, tables = random.Random(0), []
    encode = tokenizer.encode_sentences
    for _ in range(90):
        sentences = [
            "".join(draw.choices(_SIGNS, k=draw.randrange(50))) for _ in range(draw.randrange(12))
        ]
        if draw.random() < 0.1:
            sentences.append("a b\nc the")
        if draw.random() < 0.1:
            with pytest.raises(KeyboardInterrupt), monkeypatch.context() as patch:
                patch.setattr(tokenizer._chunks, "_encode", _interrupted)
                tokenizer.encode_running_text([*sentences, f"{'a' * 50} the cab", " , "])
        ids, lengths = tokenizer.encode_running_text(sentences)
        tables.append(tokenizer._chunks._known)
        parts = np.split(ids, np.cumsum(lengths))[:-1]
        assert [part.tolist() for part in parts] == encode(sentences)
        assert len(lengths) == len(sentences)
    assert len({*map(id, tables)}) > 2 and max(map(len, tables)) < 400


def test_several_threads_have_the_right_ids(tokenizer, monkeypatch):
    """As in a worker of an engine."""
    monkeypatch.setattr(chunk_cache, "_MOST_CHUNKS", 100)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def is_right(seed: int) -> bool:
        draw = random.Random(seed)
        texts = ["".join(draw.choices(_SIGNS, k=40)) for _ in range(10)]
        ids, _ = tokenizer.encode_running_text(texts)
        return ids.tolist() == [id_ for of in tokenizer.encode_sentences(texts) for id_ in of]

    try:
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(is_right, range(200)))
    finally:
        sys.setswitchinterval(before)


def _interrupted(_):
    raise KeyboardInterrupt


def test_a_chunk_is_encoded_once(tokenizer, monkeypatch):
    asked: list[str] = []
    encode = tokenizer.encode_sentences
    monkeypatch.setattr(tokenizer, "encode_sentences", lambda s: asked.extend(s) or encode(s))
    for _ in range(2):
        tokenizer.encode_running_text(["the cab, the bad", "a cab, the"])
    assert sorted(asked) == [",", "a", "bad", "cab", "the"]


def test_text_without_spaces_is_not_remembered(tokenizer):
    """Its sentences do not repeat, and looking up their chunks would take time."""
    sentences = ["中国日" * 12 + "。"] * 3
    ids, lengths = tokenizer.encode_running_text(sentences)
    assert (
        ids.tolist() == [id_ for ids in tokenizer.encode_sentences(sentences) for id_ in ids]
        and len(lengths) == 3
    )
    assert [*tokenizer._chunks._known] == ["\n"]  # the end of a sentence


def test_a_token_with_a_space_is_found(tokenizer):
    """It is not a chunk: the backend has to encode the whole sentence."""
    tokenizer._backend.add_tokens(["a b"])
    ids, _ = tokenizer.encode_running_text(["c a b c"])
    assert tokenizer.tokens(ids.tolist()) == ["c", "a b", "c"] and tokenizer._chunks is None
