"""Encodes a probe text when a tokenizer is loaded, and observes how the tokenizer splits words.

Which tokens begin a word, and whether offsets are right, depends on the order of the steps in
tokenizer.json. These steps are not interpreted: `TEXT` is encoded, and each token is compared with
the characters at its offsets.
"""

import re
from collections.abc import Callable, Container
from typing import Any, NamedTuple

from bert_jax.data.tokenizer import byte_level_bpe

# Words in several scripts, capital letters, accents, digits, punctuation, several spaces, a tab.
TEXT = (
    "The Quick  brown fox (born 2024-25), isn't it: naïve   Élan, a_b is\tgut für Größe und Öl! "
    "Привет большой мир; Καλη μέρα, 東京 タワー 한국어 नमस्ते สวัสดี end of the probe ."
)
# Words of letters between spaces. Tokenizers differ in how they split other words.
_WORDS = [found.span() for found in re.finditer("(?<= )[A-Za-zÀ-ÿͰ-ӿ]+(?= )", TEXT)]


class WordMarks(NamedTuple):
    """How the name of a token shows whether the token begins a word: it starts with one of
    `prefixes` or, if `begins` is false, with none of them.
    """

    prefixes: tuple[str, ...]
    begins: bool

    def begin(self, name: str) -> bool:
        """Returns whether the token of this name begins a word."""
        return name.startswith(self.prefixes) == self.begins


# First SentencePiece, BPE with its alphabet, and the space of a character vocabulary; then
# byte-level BPE, where white space of any kind belongs to the word after it.
_SPACES = (WordMarks(("▁", " "), begins=True), WordMarks(byte_level_bpe.WHITE_SPACE, begins=True))
# Each token is a word.
NO_MARKS = WordMarks((), begins=False)


def word_marks(encoding: Any, skipped: Container[int], *, inside: str | None) -> WordMarks:
    """Returns the marks that agree with all words of the text, `NO_MARKS` if none do.

    `encoding` is the `tokenizers.Encoding` of `TEXT`. Tokens with an id in `skipped`, such as the
    unknown token, are not compared. `inside` is the prefix that the model puts before tokens inside
    a word, as WordPiece does. It is tried first, because several marks may agree if the vocabulary
    contains few words.
    """
    own = [WordMarks((inside,), begins=False)] if inside else []
    return next((m for m in (*own, *_SPACES) if _agree(m, encoding, skipped)), NO_MARKS)


def _agree(marks: WordMarks, encoding: Any, skipped: Container[int]) -> bool:
    parts = [
        (id_, name, first + len(TEXT[first:end]) - len(TEXT[first:end].lstrip()), end)
        for id_, name, (first, end) in zip(
            encoding.ids, encoding.tokens, encoding.offsets, strict=True
        )
    ]
    for begin, stop in _WORDS:
        # A separate token for a space begins the word after it.
        spaces = [name for _, name, first, end in parts if first == end == begin]
        inside = [part for part in parts if begin <= part[2] < min(part[3], stop)]
        found = [marks.begin(name) for _, name, _, _ in inside]
        if any(map(marks.begin, spaces)) and found:
            found[0] = True
        for number, (id_, *_) in enumerate(inside):
            if id_ not in skipped and found[number] != (number == 0):
                return False
    return True


def wrong_offset(
    encoding: Any, text_of: Callable[[int], str], normalize: Callable[[str], str]
) -> str | None:
    """Describes the first token that differs from the characters at its offsets in `TEXT`; returns
    None if all offsets are right.

    `text_of` returns the text of an id, empty for an id that is not compared; `normalize` prepares
    text as the tokenizer does. White space around a token is ignored, and all parts of a character
    have its offsets.
    """
    for id_, name, (first, end) in zip(
        encoding.ids, encoding.tokens, encoding.offsets, strict=True
    ):
        text, written = TEXT[first:end], _bare(text_of(id_))
        whole, middle = (_bare(normalize(part.strip())) for part in (text, text[1:-1]))
        if written and "\ufffd" not in written and not (middle in written and written in whole):
            return f"{name!r} is at {text!r}"
    return None


def _bare(text: str) -> str:
    return text.replace("▁", " ").strip()
