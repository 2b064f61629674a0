"""Near duplicates agree with an exact comparison of all pairs."""

import hashlib
import random
import re
import unicodedata

import numpy as np
import pytest

from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.matching.near_duplicates import WORDS, Signer, jaccard, nearly, runs_of
from bert_jax.data.matching.shingles import shingles, words
from bert_jax.errors import UsageError

VOCABULARY = [f"word{i}" for i in range(3000)]
TEXTS = [
    "The well-known cat sees a dog, and the DOG sees the cat: 3.5 times a day.",
    "the WELL known cat sees a dog and the dog sees the cat 3 5 times a day",
    "Größe der Straße, größe DER STRASSE; Ŭ and U\u0306.",
    "日本語のテストです。日本語のテスト",
    "กินข้าวแล้ว กินข้าว and English words",
    "कि का की हिन्दी में",
    "... --- ...",
    "",
]


def runs_by_python(text: str, length: int) -> set[tuple[str, ...]]:
    """Reference by a regular expression: words of letters, marks and digits, or one ideograph."""
    text = unicodedata.normalize("NFKC", text.casefold())
    alone = "\u0e00-\u0e7f\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u4e00-\u9fff"
    marks = "".join(c for c in set(text) if unicodedata.category(c)[0] in "LMN")
    letters = re.sub(f"[{alone}]", "", marks)
    pattern = f"[{re.escape(letters)}]+" if letters else "(?!)"
    found = re.findall(f"{pattern}|[{alone}]", text)
    found = [word for word in found if unicodedata.category(word[0])[0] in "LMN"]
    length = min(length, len(found))
    return {tuple(found[i : i + length]) for i in range(len(found) - length + 1)} - {()}


@pytest.mark.parametrize("length", [1, 2, 5])
def test_n_grams_are_those_in_the_text(length):
    for text in TEXTS:
        wanted = runs_by_python(text, length)
        found = set(shingles(words(text), length).tolist())
        assert len(found) == len(wanted), text
        for other in TEXTS:
            common = found & set(shingles(words(other), length).tolist())
            assert len(common) == len(wanted & runs_by_python(other, length)), (text, other)


def edited(text: list[str], share: float, draw: random.Random) -> list[str]:
    """Returns a copy in which a contiguous share of the words is replaced."""
    start = draw.randrange(int(len(text) * (1 - share)) + 1)
    other = [draw.choice(VOCABULARY) for _ in range(int(len(text) * share))]
    return text[:start] + other + text[start + len(other) :]


def planted() -> list[str]:
    """Documents of 40 to 200 words with copies at 5, 15, 30 % edits, and one reordered."""
    draw = random.Random(7)
    texts = []
    for _ in range(60):
        text = [draw.choice(VOCABULARY) for _ in range(draw.randrange(40, 200))]
        half = len(text) // 2
        texts += [text, *(edited(text, share, draw) for share in (0.05, 0.15, 0.3))]
        texts.append(text[half:] + text[:half])
    draw.shuffle(texts)
    return [" ".join(text) for text in texts]


@pytest.mark.parametrize("similarity", [0.9, 0.8, 0.7, 0.5, 0.3])
def test_planted_copies_are_found_as_by_comparing_all_pairs(similarity):
    texts = planted()
    signer = Signer(similarity)
    for text in texts:
        signer.add(text.encode())
    hashes = [runs_of(text.encode()) for text in texts]
    found = {
        *nearly(zip(range(len(texts)), signer.signed().tolist(), hashes, strict=True), similarity)
    }
    runs = [runs_by_python(text, WORDS) for text in texts]
    kept: list[set] = []
    wanted = set()
    for number, of_text in enumerate(runs):
        if any(len(of_text & other) >= similarity * len(of_text | other) for other in kept):
            wanted.add(number)
        else:
            kept.append(of_text)
    assert len(wanted) >= (24 if similarity == 0.9 else 60)
    assert len(found & wanted) >= 0.95 * len(wanted)
    assert len(found & wanted) >= 0.99 * len(found)
    sets = [np.unique(each) for each in hashes]
    for number in found:
        assert any(jaccard(sets[number], sets[other]) >= similarity for other in range(number))


def test_signatures_do_not_change():
    """The same documents must give the same corpus later, so rensa's signatures must not change."""
    signer = Signer(0.8)
    for start in range(0, 1000, 40):
        signer.add(" ".join(VOCABULARY[start : start + 50]).encode())
    assert hashlib.sha256(signer.signed().tobytes()).hexdigest()[:16] == "0ca9e22b541f274d"


# --- in `prepare` --------------------------------------------------------------------------------


@pytest.fixture
def text(tmp_path):
    texts = planted()
    (tmp_path / "text.txt").write_text("\n\n".join(texts) + "\n")
    return tmp_path / "text.txt"


def test_near_duplicates_are_dropped_and_counted(text, tmp_path):
    options = {"vocab_size": 300, "validation_fraction": 0.2, "workers": 1}
    plain = prepare([str(text)], tmp_path / "plain", **options)
    corpus = prepare([str(text)], tmp_path / "near", **options, dedup_threshold=0.5)
    counts, before = corpus.manifest["counts"]["total"], plain.manifest["counts"]["total"]
    dropped = corpus.manifest["near_duplicate_documents"]
    assert sum(dropped.values()) == before["documents"] - counts["documents"] > 160
    assert min(dropped.values()) > 0
    assert corpus.manifest["options"]["dedup_threshold"] == 0.5
    again = prepare([str(text)], tmp_path / "near", **options, dedup_threshold=0.5)
    assert again.fingerprint == corpus.fingerprint != plain.fingerprint
    with pytest.raises(UsageError, match=r"its dedup_threshold is 0\.5, not None"):
        prepare([str(text)], tmp_path / "near", **options)


def test_a_missing_rensa_is_reported(text, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs rensa: pip install 'rensa"):
        prepare([str(text)], tmp_path / "c", dedup_threshold=0.8)
