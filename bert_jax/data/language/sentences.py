"""Splits paragraphs into sentences, by the rules of their language.

`sentencex` has rules for about thirty languages. It uses the rules of a related language for two
hundred more, and the English rules, which know the full stops of most scripts, for the rest.
"""

import re
from collections.abc import Iterator

from bert_jax.data.language import spaces
from bert_jax.data.language.codes import DEFAULT

# A longer sentence is split at a space, so that one sentence never fills most of an example.
LONGEST_SENTENCE = 1000

# Languages with sentence terminators that the segmenter does not know, and these terminators. Thai
# and Lao have none: points occur in abbreviations, and spaces between phrases, so that each
# paragraph is one sentence.
_OWN_SIGNS = {"th": "", "lo": "", "shn": "", "km": "។៕", "bo": "།༎", "dz": "།༎"}

# White space between a capital and a full stop, as in "J\u00a0. Smith". If it is not ASCII,
# sentencex treats it as a single byte and panics (1.0.32); with the rules of Kazakh, also after a
# full stop. The possessive quantifier (++) prevents quadratic time for a long stretch of white
# space.
_INITIAL = re.compile(r"(?<=[A-Z])\s++(?=\.)")
_BEFORE_STOP = re.compile(r"(?<!\s)\s++(?=\.)")


def sentences_of(text: str, language: str = DEFAULT) -> Iterator[list[str]]:
    """Yields each sentence of a document, with paragraphs as lines, as a list of pieces.

    `language` is a code from `codes.canonical`. A piece begins with a space if white space precedes
    it in running text. The end of a line counts as a space, except in Chinese and Japanese.
    """
    last = ""
    for paragraph in text.split("\n"):
        for number, sentence in enumerate(_sentences(paragraph, language)):
            has_space = number == 0 and last and not spaces.are_ideographic(last, sentence)
            yield cut(f" {sentence}" if has_space else sentence)
            last = sentence


def _sentences(paragraph: str, language: str) -> Iterator[str]:
    """Yields the sentences of a paragraph, of any length, stripped and not empty. A sentence begins
    with a space if white space separates it from the previous one.
    """
    signs = _OWN_SIGNS.get(language)
    if signs is None:
        import sentencex

        # The type stub omits this function.
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
    before it if there is one. It is split at the last space before the limit, or at the limit.
    """
    pieces = []
    space = " " if sentence[0] == " " else ""
    # Pieces are found by position: copying the remainder for each piece would take quadratic time.
    at, end = len(space), len(sentence)
    while end - at > LONGEST_SENTENCE:
        stop = sentence.rfind(" ", at + 1, at + LONGEST_SENTENCE + 1)
        stop = stop if stop > at else at + LONGEST_SENTENCE
        pieces.append(space + sentence[at:stop].rstrip())
        space = " " if sentence[stop].isspace() or sentence[stop - 1].isspace() else ""
        while sentence[stop].isspace():  # the last character is not a space
            stop += 1
        at = stop
    pieces.append(space + sentence[at:])
    return pieces


def _ascii_space(found: re.Match[str]) -> str:
    return found[0] if found[0].isascii() else " "
