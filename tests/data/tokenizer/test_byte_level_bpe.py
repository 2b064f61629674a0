"""Byte-level BPE: the ids of RobertaTokenizerFast and GPT2TokenizerFast, files, training, words."""

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors, trainers

from bert_jax.data.language import scripts
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.data.tokenizer.training import train_tokenizer
from bert_jax.data.tokenizer.unknown import note_unknown_ids
from bert_jax.data.tokenizer.words import begins_word
from bert_jax.errors import UsageError

LINES = [
    "The quick brown fox jumped over the lazy dog.",
    "unwanted running unwantedly Running UNWANTED",
    " \tTabs,\r\nnew lines\n and\u00a0no-break\u3000ideographic\u2028separators  ",
    "Café crème brûlée naïve Ångström Łódź Øresund",
    "decomposed: Cafe\u0301 A\u030angstro\u0308m",
    "\u0130stanbul I\u0131i\u0130 D\u0130YARBAKIR \u0131l\u0131k",
    "Straße STRASSE \u1e9e \u017fs \ufb01ne \u212b \u212a",
    "博推zz ah日本語abc ひらがな カタカナ 한국어",
    "𠀀𪜀 \uf900﨟 \U0002f800",
    "Ελληνικά σίσυφος ΣΑΣ",
    "Привет, мир! йог Ёлка",
    "\u0627\u0644\u0633\u0644\u0627\u0645 \u05e9\u05b8\u05dc\u05d5\u05b9\u05dd "
    "नमस\u094dत\u0947 สว\u0e31สด\u0e35",
    "emoji 💩 👩\u200d💻 🇫🇷 ❤\ufe0f done",
    "control\x00s \x01in\x7fside\x85 wor\u00adds \ufffd bell\x07 zero\u200bwidth \ufeffbom",
    "punctuation: a-b_c'd\"e!f#g%h&i(j)k*l,m.n/o:p;q?r@s[t]u{v}w~x^y`z|$5+3<4=7>2\\",
    "“quotes” ‘single’ «low» — dash – … ¿¡ § ¶ · €5 £5 °C",
    "x" * 99 + " " + "x" * 100 + " " + "x" * 101 + " " + "y" * 300,
    "é" * 100 + " " + "é" * 101,
    "I [MASK] you [SEP] and [CLS] too [PAD] [UNK]",
    "glued[MASK]glued [MASK][MASK] [mask] [ MASK ] [MASKED] ([MASK])",
    "3.14 1,000,000 2nd 50% x=y 1990s",
    "http://example.org/a_b?c=d&e=f user@example.org C++ don't it's",
    "",
    "   ",
    "\u0301",
    "\u0301a \u200d",
    *("  leading spaces", " one", "two\nlines\n\n after", "tabs\t\tx", "trailing  ", "a  b   c"),
    *("Paris is the <mask> of France.", "<mask>a <mask>  x<mask>", "<s> a</s> <pad><unk>"),
    *("don't we'll I'M 12345 a_b", "\u00a0no-break", "\x00\x7f\ufffd"),
    *("日本語の文章。한국어", "👩\u200d👧🏽 🇫🇷💩"),
]


def texts() -> list[str]:
    return [" " + line for line in LINES if "mask" not in line] * 3


@pytest.fixture(scope="module")
def trained():
    return train_tokenizer("bpe", texts(), vocab_size=420)


@pytest.fixture(scope="module")
def saved(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "bpe"
    trained.save(folder)
    return folder


@pytest.fixture
def pair(saved, tmp_path):
    """Only the two files, as RoBERTa was published."""
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(saved / name, tmp_path / name)
    return tmp_path


# --- against transformers -------------------------------------------------------------------------


def test_ids_of_robertas_own_class(trained, saved, pair):
    transformers = pytest.importorskip("transformers", reason="needs the `dev` extra")
    # In transformers 4 RoBERTa's mask always absorbs the space before it; 5 follows the file.
    mask = transformers.AddedToken("<mask>", lstrip=True, special=True)
    theirs = transformers.RobertaTokenizerFast.from_pretrained(pair, mask_token=mask)
    ours, generic = load_tokenizer(pair), transformers.AutoTokenizer.from_pretrained(saved)
    assert ours.hash == trained.hash == load_tokenizer(saved).hash
    assert load_tokenizer(pair / "merges.txt").hash == load_tokenizer(pair / "vocab.json").hash
    for line in LINES:
        expected = theirs(line).input_ids
        assert ours.encode(line) == trained.encode(line) == expected, ascii(line)
        assert generic(line).input_ids == expected, ascii(line)
        if "mask" not in line and "<s>" not in line:
            assert ours.decode(expected) == line
    for found in (theirs, generic):
        both = found("a b", "c d", return_token_type_ids=True)
        assert both.input_ids == theirs("a b", "c d").input_ids
        assert set(both.token_type_ids) == {0} and "token_type_ids" not in found.model_input_names
        roles = ("cls", "pad", "sep", "unk", "mask")
        assert [getattr(found, f"{role}_token_id") for role in roles] == [0, 1, 2, 3, 419]
    text = "The bear  eats, honey"
    theirs_at = theirs(text, add_special_tokens=False, return_offsets_mapping=True).offset_mapping
    assert ours.encode_with_offsets(text)[1] == theirs_at
    assert any(text[a:b] == "honey" or text[b - 1 : b] == "y" for a, b in theirs_at)


def test_add_prefix_space_of_a_config(pair):
    transformers = pytest.importorskip("transformers", reason="needs the `dev` extra")
    (pair / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
    theirs = transformers.RobertaTokenizerFast.from_pretrained(pair)
    ours = load_tokenizer(pair)
    assert ours.encode("the bear") == ours.encode(" the bear") == theirs("the bear").input_ids
    (inside,) = ours.encode_sentences([f"{ours.word_prefix}bear"])
    assert ours.encode("the bear")[-1 - len(inside) : -1] == inside
    # In transformers 4, a class that reads tokenizer.json unchanged takes this from the config.
    ours.save(pair / "saved")
    assert json.loads((pair / "saved/tokenizer_config.json").read_text())["add_prefix_space"]
    again = transformers.AutoTokenizer.from_pretrained(pair / "saved")
    assert again("the bear").input_ids == ours.encode("the bear")


@pytest.mark.parametrize("cut", ["by bytes", "by a pattern before"])
def test_saved_for_words_it_encodes_each_as_it_was_trained(saved, tmp_path, cut):
    """Transformers encodes separate words as texts, without a space before them."""
    transformers = pytest.importorskip("transformers", reason="needs the `dev` extra")
    if cut != "by bytes":  # like Llama's vocabulary, and EuroBERT's
        shutil.copytree(saved, tmp_path / "other")
        state = json.loads((saved / "tokenizer.json").read_text("utf-8"))
        split = {"type": "Split", "pattern": {"Regex": r"\s?\S+|\s+"}, "behavior": "Isolated"}
        by_bytes = state["pre_tokenizer"] | {"use_regex": False}
        steps = [split | {"invert": False}, by_bytes]
        state["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
        saved = tmp_path / "other"
        (saved / "tokenizer.json").write_text(json.dumps(state), encoding="utf-8")
        config = json.loads((saved / "tokenizer_config.json").read_text("utf-8"))
        del config["add_prefix_space"]
        (saved / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    ours, words = load_tokenizer(saved), ["Paris", "(France)", "日本語", "don't", "日"]
    each = ours.encode_sentences([ours.word_prefix + word for word in words])
    expected = [ours.special.cls, *itertools.chain(*each), ours.special.sep]
    ours.save(tmp_path / "plain")
    ours.save(tmp_path / "words", is_for_words=True)
    theirs, plain = (
        transformers.AutoTokenizer.from_pretrained(tmp_path / name) for name in ("words", "plain")
    )
    found = theirs(words, is_split_into_words=True)
    assert found.input_ids == expected != plain(words, is_split_into_words=True).input_ids
    numbers = [number for number, ids in enumerate(each) for _ in ids]
    assert found.word_ids() == [None, *numbers, None]
    assert theirs("Paris (France)").input_ids == ours.encode(" Paris (France)")
    again = load_tokenizer(tmp_path / "words")
    assert again.encode("Paris") == ours.encode(" Paris")


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("named", [{}, {"tokenizer_class": "RobertaTokenizer"}])
def test_conflicting_settings_for_the_space_before_a_text(saved, tmp_path, written, named):
    """RobertaTokenizer adds no space there unless its file requests it."""
    shutil.copytree(saved, tmp_path / "two")
    state = json.loads((saved / "tokenizer.json").read_text("utf-8"))
    state["pre_tokenizer"]["add_prefix_space"] = written
    (tmp_path / "two/tokenizer.json").write_text(json.dumps(state), encoding="utf-8")
    config = tmp_path / "two/tokenizer_config.json"
    config.write_text(json.dumps(named | {"add_prefix_space": written}))
    assert load_tokenizer(tmp_path / "two").encode("a") != []
    config.write_text(json.dumps(named if named and written else {"add_prefix_space": not written}))
    with pytest.raises(UsageError, match=rf"tokenizer\.json has add_prefix_space={written}, but"):
        load_tokenizer(tmp_path / "two")


@pytest.fixture
def llama(tmp_path):
    """A directory like EuroBERT's: custom names, and no unknown token, which no text needs if the
    vocabulary has all bytes.
    """
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|mask|>"]
    backend = tokenizers.Tokenizer(models.BPE(ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(initial_alphabet=alphabet, vocab_size=400, show_progress=False)
    backend.train_from_iterator(texts(), trainer)
    backend.add_special_tokens(names)
    first, last, _ = ((name, backend.token_to_id(name)) for name in names)
    backend.post_processor = processors.TemplateProcessing(
        single=f"{names[0]} $A {names[1]}",
        pair=f"{names[0]} $A {names[1]} $B:1 {names[1]}:1",
        special_tokens=[first, last],
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


LLAMA = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>", "mask_token": "<|mask|>"}
OTHER_ROLES = {"cls_token": "<|begin_of_text|>", "sep_token": "<|end_of_text|>"}


@pytest.mark.parametrize(
    "more",
    [
        {"pad_token": "<|end_of_text|>"},
        {"pad_token": "<|end_of_text|>", **OTHER_ROLES},
        {"pad_token": "<|end_of_text|>", "unk_token": "<|mask|>", **OTHER_ROLES},
    ],
    ids=["first and last", "no unknown token", "all named"],
)
def test_special_tokens_of_other_names_are_those_around_a_text(llama, tmp_path, capsys, more):
    (llama / "tokenizer_config.json").write_text(json.dumps(LLAMA | more))
    theirs = tokenizers.Tokenizer.from_file(str(llama / "tokenizer.json"))
    ours = load_tokenizer(llama)
    for line in [*LINES, "a<|mask|> b"]:
        assert ours.encode(line) == theirs.encode(line).ids, ascii(line)
    assert ours.vocab_size == theirs.get_vocab_size() and ours.pair_separators == 1
    special, ends = ours.special, theirs.encode("").ids
    assert [special.cls, special.sep] == ends and special.pad == ends[1]
    assert special.mask == theirs.token_to_id("<|mask|>")
    # Padding takes the role of the unknown token, but does not count as unknown text.
    note_unknown_ids(np.array([*ours.encode("the bear"), *[special.pad] * 9]), special)
    assert capsys.readouterr().err == ""
    ours.save(tmp_path / "again")
    assert load_tokenizer(tmp_path / "again").hash == ours.hash


def test_other_special_tokens_around_a_text_are_noted(llama, capsys):
    path, names = llama / "tokenizer.json", {"pad_token": "<|end_of_text|>", **OTHER_ROLES}
    (llama / "tokenizer_config.json").write_text(json.dumps(LLAMA | names))
    state = json.loads(path.read_text("utf-8")) | {"post_processor": None}
    path.write_text(json.dumps(state), encoding="utf-8")
    assert load_tokenizer(llama).encode("a")[1:-1] == [state["model"]["vocab"]["a"]]
    said = f"{path} encodes a text as a and bert-jax as <|begin_of_text|> a <|end_of_text|>"
    assert said in capsys.readouterr().err


def test_ids_are_not_drawn_at_random(saved, tmp_path):
    """A file may request dropout, from the training of another model."""
    shutil.copytree(saved, tmp_path / "c")
    path, whole = tmp_path / "c/tokenizer.json", load_tokenizer(saved)
    state = json.loads(path.read_text("utf-8"))
    state["model"]["dropout"] = 0.5
    path.write_text(json.dumps(state), encoding="utf-8")
    found = load_tokenizer(tmp_path / "c")
    assert found.encode_sentences(LINES) == whole.encode_sentences(LINES)
    assert found.hash == whole.hash
    found.save(tmp_path / "again")
    assert json.loads((tmp_path / "again/tokenizer.json").read_text("utf-8")) == json.loads(
        (saved / "tokenizer.json").read_text("utf-8")
    )


# --- files ----------------------------------------------------------------------------------------


def edited(pair: Path, change) -> None:
    vocab = json.loads((pair / "vocab.json").read_text("utf-8"))
    (pair / "vocab.json").write_text(json.dumps(change(vocab)), encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: edited(d, lambda v: []), "vocab.json must be a JSON object"),
        (lambda d: edited(d, lambda v: v | {"a": -1}), "'a' has the id -1; ids count from 0"),
        (lambda d: edited(d, lambda v: v | {"a": "x"}), "'a' has the id 'x'"),
        (lambda d: edited(d, lambda v: v | {"a": v["b"]}), "'a' and 'b' share id"),
        (lambda d: (d / "merges.txt").write_text("#version: 0.2\na b c\n"), "line 2 is 'a b c'"),
        (lambda d: (d / "merges.txt").write_text("zzz qqq\n"), "vocabulary and merges do not fit"),
        (lambda d: (d / "vocab.json").write_text("{"), "is not JSON"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_used(pair, damage, message):
    damage(pair)
    with pytest.raises(UsageError, match=message):
        load_tokenizer(pair)


def test_one_of_the_two_files_alone(pair):
    (pair / "merges.txt").unlink()
    with pytest.raises(UsageError, match=r"needs tokenizer.json, .* with merges.txt"):
        load_tokenizer(pair)
    with pytest.raises(UsageError, match=r"cannot read .*merges.txt"):
        load_tokenizer(pair / "vocab.json")


def test_bytes_without_a_token_are_said(pair, capsys):
    edited(pair, lambda vocab: {t: i for t, i in vocab.items() if t not in ("\u0120", "\u0100")})
    merges = (pair / "merges.txt").read_text("utf-8").split("\n")
    kept = [line for line in merges if "\u0120" not in line and "\u0100" not in line]
    (pair / "merges.txt").write_text("\n".join(kept), encoding="utf-8")
    load_tokenizer(pair)
    assert "has no token for 2 of the 256 bytes" in capsys.readouterr().err


# --- training -------------------------------------------------------------------------------------


def test_invalid_sizes_and_texts():
    with pytest.raises(UsageError, match="need at least 261"):
        train_tokenizer("bpe", ["text"], vocab_size=260)
    with pytest.raises(UsageError, match="no text"):
        train_tokenizer("bpe", [" "], vocab_size=300)
    assert train_tokenizer("bpe", ["abcdef"], vocab_size=300).vocab_size == 261


# --- words ----------------------------------------------------------------------------------------


def test_words_begin_with_white_space_of_any_kind(trained):
    bits, tokens = (
        begins_word(trained, by_piece=False),
        trained.tokens(list(range(trained.vocab_size))),
    )
    for token, begins in zip(tokens, bits, strict=True):
        text = trained._backend.decoder.decode([token])
        assert begins == text.startswith((" ", "\t", "\n", "\v", "\f", "\r")), token
    ids = np.array(trained.encode("The owl sleeps, here 東京")[1:-1])
    assert bits[ids].sum() == 4  # the first word of a text has no mark
    pieces = [token for i, token in enumerate(tokens) if begins_word(trained)[i] > bits[i]]
    assert pieces
    for token in pieces:
        (script,) = scripts.count(trained._backend.decoder.decode([token])[0])
        assert script in ("Han", "kana", "Thai", "Lao", "Khmer", "Burmese", "Tibetan")
