"""Text in non-Latin scripts keeps its marks, its letters and its predictions."""

import dataclasses
import json
import random
import unicodedata

import numpy as np
import pytest
from tokenizers.normalizers import BertNormalizer

from bert_jax import config_loader
from bert_jax.config import DataConfig
from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.corpus.store import open_corpus
from bert_jax.data.language import marks
from bert_jax.data.pretraining import masking
from bert_jax.data.pretraining.batch import Draw
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.data.tokenizer.training import train_tokenizer
from bert_jax.data.tokenizer.words import begins_word, is_by_piece
from bert_jax.registry import MASKINGS
from bert_jax_lab.doctor import corpus as doctor_corpus

_PHRASES = {
    "th": "ภาษาไทย ไม่มี ช่องว่าง ระหว่าง คำ เขา อาศัย อยู่ที่ อาฟฟริกัน ผู้ใช้ ตั้งค่า ได้",
    "hi": "मैं स्कूल जाता हूँ और वह हिन्दी में लिखती है क्योंकि उसे पढ़ना पसंद है",
    "ja": "ナビゲーション プログラム を 実行 できます ガギグゲゴ ご覧 ください ページ が ひらく",
    "de": "für Größe müssen Änderungen schön über Bücher können Mädchen häufig möglich",
}
_SPACELESS = {
    "ja": "ナビゲーション プログラム を 実行 できます 東京 大阪 ください ページ が ひらく 日本語",
    "zh": "我 去 学校 他 在 家里 北京 很大 上海 中文 书 老师 学生 今天 天气 很好 看 电视",
    "th": _PHRASES["th"],
}


def _lines(phrase: str, number: int, *, between: str = " ", words: int = 12) -> list[str]:
    draw = random.Random(3)
    known = phrase.split()
    return [between.join(draw.choices(known, k=words)) for _ in range(number)]


def _source(folder, lines: list[str], *, lines_a_document: int = 4) -> str:
    path = folder / "text.txt"
    documents = (
        "\n".join(lines[i : i + lines_a_document]) for i in range(0, len(lines), lines_a_document)
    )
    path.write_text("\n\n".join(documents), encoding="utf-8")
    return str(path)


def _marks(text: str) -> int:
    return sum(unicodedata.category(c) == "Mn" for c in unicodedata.normalize("NFD", text))


@pytest.mark.parametrize(
    ("kind", "code"),
    [*(("wordpiece", code) for code in _PHRASES), ("sentencepiece", "th"), ("sentencepiece", "ja")],
)
def test_marks_are_kept_by_default(tmp_path, kind, code, caplog):
    lines = _lines(_PHRASES[code], 160)
    options = {"language": code, "workers": 1, "validation_fraction": 0.2}
    # The largest number of tokens that SentencePiece finds is 50.
    options |= {"tokenizer": kind, "vocab_size": 150 if kind == "wordpiece" else 50}
    source = _source(tmp_path, lines)
    corpus = prepare([source], tmp_path / "auto", **options)
    tokenizer = load_tokenizer(tmp_path / "auto")
    assert ("are kept; `strip_accents` yes" in caplog.text) == (kind == "wordpiece")
    assert tokenizer.lowercase and not tokenizer.strips_accents
    assert not corpus.manifest["tokenizer"]["strip_accents"]
    assert corpus.manifest["stripped_marks"] == 0
    before = after = 0
    for line in lines[:20]:
        before += _marks(line)
        decoded = tokenizer.decode(tokenizer.encode(line))
        # Compatibility forms are decomposed: ำ becomes two signs, one of which is a mark.
        after += _marks(decoded) - kind.startswith("s") * line.count("ำ")
    assert before == after > 20
    if kind == "sentencepiece":
        return
    caplog.clear()
    stripped = prepare([source], tmp_path / "yes", strip_accents="yes", **options)
    assert stripped.manifest["options"]["strip_accents"] == "yes"
    text = "".join(lines)
    assert stripped.manifest["stripped_marks"] >= 0.95 * _marks(text)  # duplicates are dropped
    tokenizer = load_tokenizer(tmp_path / "yes")
    bert = BertNormalizer(lowercase=True, strip_accents=True)
    for line in lines[:20]:
        ids = tokenizer.encode(line)
        assert _marks(tokenizer.decode(ids)) == 0
        assert ids == tokenizer.encode(bert.normalize_str(line))
    assert "are kept" not in caplog.text


def test_english_strips_marks(tmp_path, caplog):
    lines = ["The cat sat on the mat and the dog saw it from afar."] * 11 + ["A café, perhaps."]
    lines = [f"{line} Number {i}." for i, line in enumerate(lines * 20)]
    corpus = prepare([_source(tmp_path, lines)], tmp_path / "c", vocab_size=200, workers=1,
                     validation_fraction=0.2)  # fmt: skip
    assert corpus.manifest["tokenizer"]["strip_accents"]
    assert "kept" not in caplog.text and corpus.manifest["options"]["strip_accents"] == "auto"
    assert corpus.manifest["stripped_marks"] == sum("é" in line for line in lines)
    files = json.loads((tmp_path / "c/tokenizer/tokenizer_config.json").read_text())
    assert files["strip_accents"] is None and files["tokenizer_class"] == "BertTokenizer"
    kept = prepare([_source(tmp_path, lines)], tmp_path / "d", vocab_size=200, workers=1,
                   validation_fraction=0.2, strip_accents="no")  # fmt: skip
    assert kept.manifest["options"]["strip_accents"] == "no"
    tokenizer = load_tokenizer(tmp_path / "d")
    assert tokenizer.lowercase and "é" in tokenizer.decode(tokenizer.encode("CAFÉ"))


def test_words_that_lose_a_mark_are_counted():
    for text, total, losing in [
        ("für die Größe", 3, 2),
        ("がぎく", 3, 2),
        ("ไม่มี", 3, 2),  # letters with their marks: two of these have some
        ("東京é 한국", 4, 1),  # Hangul is only decomposed
        ("❤\ufe0f ok", 2, 0),
        ("", 0, 0),
    ]:
        found = marks.words([text])
        assert (found.total, found.losing) == (total, losing), text
        gone = BertNormalizer(lowercase=False, strip_accents=True).normalize_str(text)
        assert marks.lost(text.replace("\ufe0f", "")) == _marks(text.replace("\ufe0f", ""))
        assert _marks(gone) == 0


def test_long_runs_of_a_script_without_spaces_are_cut(tmp_path):
    pytest.importorskip("transformers")
    from transformers import AutoTokenizer

    lines = _lines(_PHRASES["th"], 60) + _lines(_PHRASES["th"], 40, between="", words=60)
    assert max(map(len, lines)) > 250
    trained = train_tokenizer(
        "wordpiece", lines, vocab_size=200, lowercase=True, strip_accents=False
    )
    trained.save(tmp_path / "t")
    again, theirs = load_tokenizer(tmp_path / "t"), AutoTokenizer.from_pretrained(tmp_path / "t")
    assert again.hash == trained.hash
    from bert_jax.data.tokenizer import wordpiece_model

    tokens = trained.tokens(list(range(trained.vocab_size)))
    vocab = {token: i for i, token in enumerate(tokens)}
    plain = wordpiece_model.build(vocab, lowercase=True, strip_accents=False)
    cut = 0
    mixed = f"abc {lines[-1]} English, ไทยabc {'x' * 120}"
    assert again.encode(mixed) == theirs(mixed)["input_ids"]
    for text in [*lines, "ก" * 101, "ก" * 100]:
        ids = again.encode(text)
        assert ids == theirs(text)["input_ids"]
        without = plain.encode(text, add_special_tokens=False).ids
        if max(map(len, text.split())) <= 100:
            assert ids[1:-1] == without  # nothing else changes
        else:
            cut += ids[1:-1] != without
            assert trained.special.unk not in ids
        assert "".join(again.decode(ids).split()) == "".join(text.split())
    assert cut > 40


def _rates(corpus, kind: str, vocabulary, *, length: int = 64) -> tuple[float, int]:
    """The share of predicted tokens, and of rows without one, for rows cut at any position."""
    tokens = np.concatenate(corpus.train.shards).astype(np.int32)
    rows = len(tokens) // (length - 2)
    special = corpus.special
    ids = np.full((rows, length), special.sep, np.int32)
    ids[:, 0] = special.cls
    ids[:, 1:-1] = tokens[: rows * (length - 2)].reshape(rows, -1)
    assert masking.candidates(ids, special).any(1).all()
    draw = Draw(
        vocabulary=vocabulary,
        options=DataConfig(),
        max_predictions=20,
        key=3,
        example_numbers=np.arange(rows),
    )
    found = MASKINGS[kind]({"input_ids": ids, "lengths": np.full(rows, length)}, draw)
    chosen = found["mlm_weights"].sum(1)
    return float(chosen.sum() / ids.size), int((chosen == 0).sum())


@pytest.mark.parametrize("code", _SPACELESS)
def test_masks_of_words_find_words_where_there_are_no_spaces(tmp_path, code):
    from bert_jax.__main__ import main

    lines = _lines(_SPACELESS[code], 400, between="", words=40)
    command = ["prepare", "--source", _source(tmp_path, lines), "--output-dir", str(tmp_path / "c")]
    command += ["--tokenizer", "sentencepiece", "--vocab-size", "90", "--language", code]
    assert main([*command, "--validation-fraction", "0.1", "--workers", "1"]) == 0
    corpus = open_corpus(tmp_path / "c")
    assert corpus.manifest["tokenizer"]["words"] == "pieces"
    for kind in ("whole_words", "spans"):
        rate, without = _rates(corpus, kind, corpus.vocabulary)
        assert without == 0
        assert rate == pytest.approx(0.15, abs=0.01)  # of 64 tokens, 10 are 15.6 %


def test_words_of_text_with_spaces_are_not_pieces(tmp_path):
    """The manifest determines the masks of a corpus by the share of its tokens."""
    lines = _lines(_SPACELESS["ja"], 120, between="", words=20)
    options = {"tokenizer": "sentencepiece", "vocab_size": 90, "workers": 1}
    corpus = prepare([_source(tmp_path, lines)], tmp_path / "c", validation_fraction=0.1, **options)
    tokenizer = load_tokenizer(tmp_path / "c")
    by_space = begins_word(tokenizer, by_piece=False)
    assert (corpus.begins_word == begins_word(tokenizer)).all()
    assert corpus.begins_word.sum() > by_space.sum() + 30
    counts = np.ones(tokenizer.vocab_size, np.int64)
    assert is_by_piece(tokenizer, counts)
    counts[~by_space] = 0
    assert not is_by_piece(tokenizer, counts)
    wordpiece = train_tokenizer("wordpiece", lines, vocab_size=200, lowercase=True)
    assert (begins_word(wordpiece) == begins_word(wordpiece, by_piece=False)).all()
    # The doctor warns about whole-word masks if a sentence is one word.
    config = config_loader.load_config("tiny_docs_cpu", ["data.masking=whole_words"])
    old = dataclasses.replace(corpus, begins_word=by_space)
    results = [doctor_corpus.predictions(config, each).result for each in (old, corpus)]
    assert results == ["warned", "passed"]
