"""Our tokenizer against `transformers`, in Python and as loaded by users."""

import gzip
import json
import os
import random
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from bert_jax.data.tokenizer.tokenizer import load_tokenizer, wordpiece_model
from bert_jax.data.tokenizer.training import train_tokenizer
from tests.data.tokenizer.test_tokenizer import corpus, model_file, vocabulary
from tests.golden import make_tokenizer_directories as directories
from tests.paths import GOLDEN

pytest.importorskip("transformers", reason="needs the `dev` extra")

DIRECTORIES = json.loads(gzip.decompress(directories.FILE.read_bytes()))
UNICODE = json.loads((GOLDEN / "tokenizer_unicode.json").read_text("utf-8"))
NEWER = {chr(c) for first, last in UNICODE["ranges"] for c in range(first, last + 1)}


def legacy(path: Path, *, lowercase: bool):
    from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

    tokenizer = BertTokenizerLegacy(str(path), do_lower_case=lowercase)
    return lambda text: tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text))


def without_documented(text: str, *, lowercase: bool) -> str:
    """The text without the characters that docs/guides/tokenizers.md lists as different."""
    text = "".join(c for c in text if c not in NEWER and unicodedata.category(c) != "Cn")
    if lowercase:
        return text.replace("Σ", "σ")
    # The legacy class composes letters and accents after it has removed control characters.
    cleaned = "".join(c for c in text if unicodedata.category(c)[0] != "C" or c in "\t\n\r")
    composed = unicodedata.normalize("NFC", cleaned)
    return text if composed == cleaned else composed


# --- the pure-Python tokenizer --------------------------------------------------------------------


@pytest.mark.parametrize("lowercase", [True, False])
def test_every_character_is_cleaned_and_cut_alike(lowercase):
    from transformers.models.bert.tokenization_bert_legacy import BasicTokenizer

    theirs = BasicTokenizer(do_lower_case=lowercase)
    ours = wordpiece_model.build({"[UNK]": 0}, lowercase=lowercase)

    def ours_cut(text: str) -> list[str]:
        text = ours.normalizer.normalize_str(text)
        return [word for word, _ in ours.pre_tokenizer.pre_tokenize_str(text)]

    characters = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    # Private use, planes 15 and 16, is one case 131,000 times over.
    known = [
        c
        for c in characters
        if c not in NEWER and c < "\U000f1000" and unicodedata.category(c) != "Cn"
    ]
    assert len(known) > 280_000 - 131_000
    for start in range(0, len(known), 64):
        text = " ".join(f"Ab{c}Cd {c}" for c in known[start : start + 64])
        text = without_documented(text, lowercase=lowercase)
        assert ours_cut(text) == theirs.tokenize(text), f"from U+{ord(known[start]):04X}"


FRAGMENTS = [
    *("[MASK]", "[SEP]", "[CLS]", "[PAD]", "[UNK]", "[mask]", "[MASK", "MASK]", "[[MASK]]"),
    *("İstanbul", "ΟΔΟΣ", "Σ", "ὈΔΥΣΣΕΎΣ", "straße", "ẞ", "ŉ", "ǅ", "ﬁ", "K", "Å"),
    *("東京", "日本", "𠀀", "豈", "한국어", "ひらがな", "カタカナ", "ﾊﾝｶｸ", "々", "〇"),
    *("👩‍💻", "💩", "🇫🇷", "❤️", "1️⃣", "\u200b", "\u200d", "\ufeff", "\u00ad"),
    *("\x00", "\x07", "\x1b", "\x7f", "\x85", "\ufffd", "\u202e", "\ue000", "\t", "\n", "\r"),
    *("\u00a0", "\u1680", "\u2009", "\u2028", "\u2029", "\u3000", " ", "  ", "   "),
    *("\u0301", "\u0308", "\u0323", "e\u0301", "o\u0323\u0308", "a\u0300\u0301\u0302", "q\u0307"),
    *("سلام", "שָׁלוֹם", "नमस्ते", "สวัสดี", "Привет", "йог", "Ёлка", "ɐ", "ð", "Ø", "ł"),
    *("hello", "World", "un", "want", "ing", "running", "x" * 100, "x" * 101, "é" * 101, "q" * 250),
    *("3.14", "1,000", "50%", "a_b", "don't", "C++", "x=y", "<b>", "http://a.b/c?d=e"),
]


def adversarial_lines(count: int, seed: int) -> Iterator[str]:
    """Fragments known to be awkward, and characters of every category, glued with and without
    white space."""
    rng = random.Random(seed)
    categories: dict[str, list[str]] = {}
    for c in map(chr, range(0x30000)):
        categories.setdefault(unicodedata.category(c), []).append(c)
    for category in ("Cn", "Cs"):
        del categories[category]
    pools = list(categories.values())
    for _ in range(count):
        parts = [
            rng.choice(FRAGMENTS) if rng.random() < 0.5 else rng.choice(rng.choice(pools))
            for _ in range(rng.randint(1, 16))
        ]
        yield "".join(part + rng.choice(["", "", " "]) for part in parts)


@pytest.mark.parametrize("lowercase", [True, False])
def test_adversarial_lines(tmp_path, lowercase):
    lines = list(adversarial_lines(3000, seed=int(lowercase)))
    pieces = wordpiece_model.build({"[UNK]": 0}, lowercase=lowercase)
    seen = {c for line in lines for c in pieces.normalizer.normalize_str(line) if not c.isspace()}
    seen |= {c for line in lines for c in unicodedata.normalize("NFC", line) if not c.isspace()}
    known = [c for i, c in enumerate(sorted(seen)) if c.isascii() or i % 13]
    whole = ["hello", "world", "World", "un", "##want", "##ing", "running", "東", "москва", "xx"]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *whole]
    tokens += [t for c in known for t in (c, "##" + c)]
    path = vocabulary(tmp_path, list(dict.fromkeys(tokens)))
    theirs = legacy(path, lowercase=lowercase)
    ours = load_tokenizer(path, lowercase=lowercase)
    unknown = 0
    for line in lines:
        line = without_documented(line, lowercase=lowercase)
        (ids,) = ours.encode_sentences([line])
        assert ids == theirs(line), ascii(line)
        unknown += ids.count(1)
    assert unknown > 1000  # words that the vocabulary cannot spell were among them


def test_documented_differences_are_real(tmp_path):
    """docs/guides/tokenizers.md lists the differences; a library that changes one is noticed."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "o", "##σ", "##ς", "é", "e", "##\u0301"]
    path = vocabulary(tmp_path, [*tokens, "ab", "\u0378"])
    low, cased = load_tokenizer(path, lowercase=True), load_tokenizer(path, lowercase=False)
    low_theirs, cased_theirs = legacy(path, lowercase=True), legacy(path, lowercase=False)
    for ours, theirs, text, expected in (
        (low, low_theirs, "OΣ", (["o", "##σ"], ["o", "##ς"])),
        (cased, cased_theirs, "e\u0301", (["e", "##\u0301"], ["é"])),
        (low, low_theirs, "\u0378", (["\u0378"], [])),  # unassigned
    ):
        (ids,) = ours.encode_sentences([text])
        assert (ours.tokens(ids), ours.tokens(theirs(text))) == expected


# --- as users load it -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("saved")
    folders = {}
    for name, kind, size, lowercase in (
        ("wordpiece", "wordpiece", 650, True),
        ("wordpiece-cased", "wordpiece", 650, False),
        ("sentencepiece", "sentencepiece", 500, True),
        ("sentencepiece-cased", "sentencepiece", 500, False),
    ):
        tokenizer = train_tokenizer(kind, corpus(), vocab_size=size, lowercase=lowercase)
        folders[name] = (tokenizer, root / name)
    model = model_file(root / "m.model", user_defined_symbols=["(", "-"])
    folders["converted"] = (load_tokenizer(model), root / "converted")
    for tokenizer, folder in folders.values():
        tokenizer.save(folder)
    return folders


@pytest.mark.parametrize("model_type", [None, "bert", "albert"])
@pytest.mark.parametrize(
    "name", ["wordpiece", "wordpiece-cased", "sentencepiece", "sentencepiece-cased", "converted"]
)
def test_auto_tokenizer_gives_the_same_ids(saved, tmp_path, name, model_type):
    from transformers import AutoTokenizer

    tokenizer, folder = saved[name]
    folder = Path(os.path.realpath(folder))
    if model_type:  # an exported model's config.json lies beside, and has a say in the class
        copy = tmp_path / "model"
        tokenizer.save(copy)
        (copy / "config.json").write_text(json.dumps({"model_type": model_type}))
        folder = copy
    theirs = AutoTokenizer.from_pretrained(folder)
    mask = theirs.mask_token
    lines = [*corpus()[:200], "", "  a  b ", "Ünï ﬁ İ ½", f"ba {mask} ke", f"x{mask}y {mask}"]
    lines += list(adversarial_lines(200, seed=5))
    for line in lines:
        assert theirs(line)["input_ids"] == tokenizer.encode(line), ascii(line)
    for role in ("pad", "unk", "cls", "sep", "mask"):
        assert getattr(theirs, f"{role}_token_id") == getattr(tokenizer.special, role)
    assert theirs.model_max_length == 512 and len(theirs) == tokenizer.vocab_size
    pair = theirs("ba", "ke")
    sep, kinds = tokenizer.special.sep, pair["token_type_ids"]
    boundary = pair["input_ids"].index(sep) + 1
    assert kinds == [0] * boundary + [1] * (len(kinds) - boundary) and kinds[-1] == 1
    theirs.save_pretrained(tmp_path / "again")
    assert load_tokenizer(tmp_path / "again").hash == tokenizer.hash


@pytest.mark.parametrize("name", sorted(DIRECTORIES.keys() - {"roformer"}))
def test_a_directory_that_transformers_writes_has_its_ids(tmp_path, name):
    """The frozen ids are those of this version, and the conversion that an error proposes works."""
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained(
        directories.write(DIRECTORIES[name]["files"], tmp_path / name)
    )
    theirs.save_pretrained(tmp_path / "new")
    ours = load_tokenizer(tmp_path / "new")
    for line, frozen in zip(directories.LINES, DIRECTORIES[name]["5"]["ids"], strict=True):
        ids = theirs(line).input_ids
        assert ids[1:-1] == frozen and ours.encode(line) == ids, ascii(line)
