"""Paragraphs become sentences, by the rules of their language.

`sentencex` has rules for some thirty languages, takes those of a relative for two hundred more, and
those of English for the rest, which know the full stops of most scripts.
"""

import re
from collections.abc import Iterator

from bert_jax.data.language import spaces
from bert_jax.data.language.codes import DEFAULT

# A longer sentence is cut at a space, so that one sentence is never most of a training example.
LONGEST_SENTENCE = 1000

# Languages whose sentences end in no sign that the segmenter knows, and the signs that they do end
# in. Thai and Lao have none: points are in abbreviations, and spaces between phrases, so that a
# paragraph is a sentence.
_OWN_SIGNS = {"th": "", "lo": "", "shn": "", "km": "។៕", "bo": "།༎", "dz": "།༎"}

# White space between a capital and a full stop, as in "J\u00a0. Smith": where it is beyond ASCII,
# sentencex takes it for a single byte on its way back from the stop, and panics (1.0.32), by the
# rules of Kazakh after a stop, too. Never matched in part (++), or a long stretch of it would take
# the square of its length.
_INITIAL = re.compile(r"(?<=[A-Z])\s++(?=\.)")
_BEFORE_STOP = re.compile(r"(?<!\s)\s++(?=\.)")


def split_sentences(paragraph: str, language: str = DEFAULT) -> list[str]:
    """Returns the sentences of a paragraph, stripped; joined by spaces they are its text again.

    `language` is a code that `codes.canonical` has returned. A sentence of more than
    LONGEST_SENTENCE characters is cut at its last space before that, and where there is none, at
    the limit.
    """
    return [
        piece.lstrip() for sentence in _sentences(paragraph, language) for piece in cut(sentence)
    ]


def sentences_of(text: str, language: str = DEFAULT) -> Iterator[list[str]]:
    """Yields each sentence of a document, whose paragraphs are lines, as the pieces it is cut into.

    A piece comes as it stands in running text: with one space before it where the text has white
    space there. A line's end is a space, but in Chinese and Japanese.
    """
    last = ""
    for paragraph in text.split("\n"):
        for number, sentence in enumerate(_sentences(paragraph, language)):
            has_space = number == 0 and last and not spaces.are_ideographic(last, sentence)
            yield cut(f" {sentence}" if has_space else sentence)
            last = sentence


def _sentences(paragraph: str, language: str) -> Iterator[str]:
    """Yields the sentences of a paragraph, however long they are, stripped; none is empty. One has
    a space before it where white space parts it from the one before.
    """
    signs = _OWN_SIGNS.get(language)
    if signs is None:
        import sentencex

        # The stub leaves it out.
        segment = sentencex.segment  # pyright: ignore[reportAttributeAccessIssue]
        if not paragraph.isascii():
            risky = _INITIAL if language == DEFAULT else _BEFORE_STOP
            paragraph = risky.sub(_ascii_space, paragraph)
        found = segment(language, paragraph)
    else:
        found = (
            re.findall(f"[^{signs}]*[{signs}]+|[^{signs}]+", paragraph) if signs else [paragraph]
        )
    space, is_first = "", True
    for sentence in found:
        if stripped := sentence.strip():
            if not is_first and sentence[0].isspace():
                space = " "
            yield space + stripped
            space, is_first = " " if sentence[-1].isspace() else "", False
        elif not is_first:
            space = " "


def cut(sentence: str) -> list[str]:
    """Returns a sentence as pieces of at most LONGEST_SENTENCE characters, each with the space
    before it where white space is.
    """
    pieces = []
    space = " " if sentence[0] == " " else ""
    # By its place: to copy what is left for each piece would take the square of its length.
    at, end = len(space), len(sentence)
    while end - at > LONGEST_SENTENCE:
        stop = sentence.rfind(" ", at + 1, at + LONGEST_SENTENCE + 1)
        stop = stop if stop > at else at + LONGEST_SENTENCE
        pieces.append(space + sentence[at:stop].rstrip())
        space = " " if sentence[stop].isspace() or sentence[stop - 1].isspace() else ""
        while sentence[stop].isspace():  # the last character is none
            stop += 1
        at = stop
    pieces.append(space + sentence[at:])
    return pieces


def _ascii_space(found: re.Match[str]) -> str:
    return found[0] if found[0].isascii() else " "
