"""Equal documents: the differences that are ignored, and the differences that count."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.data.matching import identity
from bert_jax.data.matching.identity import identify

DIFFERENT = [
    "The cat sees a dog.",
    "The cat sees a dog 2.",
    "कि",  # hi: marks are vowels
    "का",
    "ทิ",  # th
    "ทา",
    "日本語",
    "日本",
    "😀",  # no letters at all
    "😀 😀😀",
    "...",
    "--- x ---",
    "café",
    "cafe",
    "Straße 1",
    "ガ",
    "カ",
]
SAME = [
    ("The cat sees a dog.", "the  CAT sees a dog"),
    ("A well-known fact, isn't it?", "a well known fact isnt it"),
    ("one\ntwo", "one two"),
    ("Straße", "STRASSE"),
    ("Ναός ΠΌΛΗΣ", "ναόσ πόλης"),
    ("IŞIK ve İzmir", "ışık VE izmir"),
    ("ΤΑΪ́ΖΩ ΤΩ͂Ι", "ταΐζω τῷ"),
    ("ПРИВЕТ, мир!", "«Привет» — мир"),
    (
        unicodedata.normalize("NFD", "Größe café Việt Nam ガギグ 한국"),
        "Größe café Việt Nam ガギグ 한국",
    ),
    ("x² is ½ of 10\u00a0km … ﬁne", "x2 is 1⁄2 of 10 km fine"),
    ("日本語。テスト", "日本語 テスト"),
    ("😀 😀", "😀\n😀"),
    ("😀 😀\u3000😀", "😀😀😀"),
    ("- - -", "---"),
    ("\ufeffzero\u200bwidth", "zerowidth"),
]


def test_documents_with_different_words_are_different():
    assert len({identify(text.encode()).words for text in DIFFERENT}) == len(DIFFERENT)


@pytest.mark.parametrize(("one", "other"), [("c1ccccc1", "C1CCCCC1"), ("C=C", "CC"), ("a", "A")])
def test_exactly_compared_documents_differ_in_case_and_signs(one, other):
    known = [identify(text.encode(), is_exact=True) for text in (one, other, f" {one}\n{one} ")]
    assert len({each.words for each in known}) == 3
    assert known[2] == identify(f"{one}{one}".encode(), is_exact=True)


@pytest.mark.parametrize(("one", "other"), SAME)
def test_case_spaces_and_punctuation_are_folded(one, other):
    assert identify(one.encode()) == identify(other.encode())


def test_upper_and_lower_case_letters_are_equal():
    for letter in map(chr, range(0x30000)):
        others = {letter.upper(), letter.lower(), letter.title()} - {letter}
        if others and not 0xD800 <= ord(letter) < 0xE000:
            known = {identify(f"a{other}z".encode()) for other in others}
            assert known == {identify(f"a{letter}z".encode())}, letter


def plainly(text: str) -> str:
    """Reference: folded, NFKC, all forms of i equal; only letters, marks and digits."""

    def counts(c: str) -> bool:
        return c.isalnum() if c.isascii() else unicodedata.category(c)[:1] in "LMN"

    for letter in ("ı", "İ", "i\u0307", "I\u0307"):
        text = text.replace(letter, "i")
    kept = "".join(c for c in text if c.isascii() or counts(c))
    folded = unicodedata.normalize("NFKC", kept.casefold()).casefold()
    return "".join(filter(counts, folded))


@given(
    st.text(st.sampled_from("aBΪΐᾷͅI\u03071. \n-éÉßẞﬁ²½́̈ガか゛किัΣσς한ᄒ\u00a0—😀𝐀ıİ"), max_size=12)
)
def test_two_streams_agree_with_the_rule(text):
    """ASCII and the rest: together they are the letters of the rule, in order."""
    plain, rest = identity._streams(text.encode())
    expected = plainly(text)
    assert plain.decode() == "".join(c for c in expected if c.isascii())
    assert rest.decode() == "".join(c for c in expected if not c.isascii())
