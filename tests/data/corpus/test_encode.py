"""Sentences have the same ids as inside their text."""

import dataclasses
import re

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from bert_jax.data.corpus.encode import EncodedPart, encode_documents, piece_file, read_piece
from bert_jax.data.corpus.folder import Folder
from bert_jax.data.tokenizer import tokenizer, training
from bert_jax.errors import DataDamaged

_TEXTS = {
    "en": "The owl sleeps here. Then it hunts mice!\nA new day begins.  It ends.Or so it seems.",
    "zh": "今天天气很好。我们去公园。 世界很大。\n公園へ行く。Then it hunts. 世界很大。"
    "\n我们说“天气很好”\n我们去……\n公园很大。",
    "ja": "今日は天気です。公園へ行く。\n公園は広い。",
    "th": "วันนี้อากาศดี เราไปสวน\nโลกกว้าง",
}
_LINES = [line for text in _TEXTS.values() for line in text.split("\n")] * 3


def _gemma() -> tokenizer.Tokenizer:
    """Returns a tokenizer like `GemmaTokenizer`: no space before a text."""
    backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    names = {"pad": "<pad>", "sep": "<eos>", "cls": "<bos>", "unk": "<unk>", "mask": "<mask>"}
    words = re.findall(r"\w+|[^\w\s]", " ".join(_LINES))  # no token crosses the end of a sentence
    alphabet = [*"▁", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=[*names.values(), *alphabet], show_progress=False
    )
    backend.train_from_iterator([*words, *(f"▁{word}" for word in words)], trainer)
    return tokenizer.Tokenizer(backend, source="gemma", names=names)


def _unigram(scheme: str, *first: pre_tokenizers.PreTokenizer) -> tokenizer.Tokenizer:
    """Returns a SentencePiece model."""
    backend = training.train_tokenizer(
        "sentencepiece", _LINES, vocab_size=83, lowercase=False
    )._backend
    metaspace = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*first, metaspace]) if first else metaspace
    return tokenizer.Tokenizer(backend, source="unigram")


def _llama() -> tokenizer.Tokenizer:
    made = _gemma()
    steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    made._backend.normalizer = normalizers.Sequence(steps)
    return tokenizer.Tokenizer(made._backend, source="llama", names=made._names)


_TOKENIZERS = {
    "wordpiece": lambda: training.train_tokenizer(
        "wordpiece", _LINES, vocab_size=300, lowercase=False, strip_accents=False
    ),
    "bytes": lambda: training.train_tokenizer(
        "bpe", [f" {word}" for line in _LINES for word in line.split()], vocab_size=400
    ),
    "bytes that begin with a space": lambda: _with_space(_TOKENIZERS["bytes"]()),
    "first": lambda: _unigram("first"),
    "always": lambda: _unigram("always"),
    "as XLM-R": lambda: _unigram("always", pre_tokenizers.WhitespaceSplit()),
    "gemma": _gemma,
    "llama": _llama,
}


def _with_space(made: tokenizer.Tokenizer) -> tokenizer.Tokenizer:
    made._backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer.Tokenizer(made._backend, source="bytes", names=made._names)


@pytest.mark.parametrize("language", _TEXTS)
@pytest.mark.parametrize("kind", _TOKENIZERS)
def test_sentences_are_encoded_as_in_running_text(kind, language):
    """The library encodes the text as a whole, with lines joined by the rules of the language."""
    text, made = _TEXTS[language], _TOKENIZERS[kind]()
    whole = text.replace("\n", "" if language in ("zh", "ja") else " ").replace("  ", " ")
    encoded = encode_documents([text.encode()] * 2, made, language=language)
    ids = made.encode(whole)[1:-1]
    assert made.tokens(encoded.tokens.tolist()) == made.tokens(ids) * 2
    assert len(encoded.sentences) >= 4


def test_a_split_sentence_only_has_the_spaces_of_the_text():
    made = _TOKENIZERS["bytes"]()
    for text in ("世" * 2500, "owl " * 300 + "owl", "世" * 995 + " \t" + "界" * 900):
        ids = encode_documents([text.encode()], made, language="zh").tokens.tolist()
        assert made.decode(ids) == " ".join(text.split())


def test_a_piece_with_an_altered_bit_is_equal_or_removed(tmp_path):
    """Regardless of the error that the library raises for altered headers and offsets."""
    folder = Folder(str(tmp_path))
    written = EncodedPart(
        tokens=np.arange(20, dtype=np.uint16),
        sentences=np.array([12, 8], np.uint32),
        documents=np.array([2], np.uint32),
        words=7,
        empty_documents=1,
        stripped_marks=3,
    )
    written.save(folder, "a")
    path = tmp_path / piece_file("a")
    whole, removed = path.read_bytes(), 0
    for at in range(len(whole)):
        for bit in (0, 3, 7):
            altered = bytearray(whole)
            altered[at] ^= 1 << bit
            path.write_bytes(altered)
            try:
                part = read_piece(folder, "a")
            except DataDamaged:
                assert not path.exists()
                removed += 1
                continue
            for field in dataclasses.fields(written):
                np.testing.assert_array_equal(
                    getattr(part, field.name), getattr(written, field.name)
                )
    assert removed > len(whole)


def test_a_folder_has_a_name_with_a_tilde(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Folder("~/corpus")
    folder.write("a", b"b")
    assert folder.has("a") and not folder.has("a/b") and folder.names() == {"a"}
    assert (tmp_path / "~/corpus/a").read_bytes() == folder.read("a") == b"b"
