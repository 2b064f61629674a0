"""When two documents are the same, and which side of the split a document is on.

A document is known by its letters, marks and digits: two that differ in case, spaces, punctuation
or symbols, or in how Unicode composes a letter, are one document. A space counts nowhere, so that
"well-known", "well known" and a word that a line break cuts are the same, too. Marks count: in
Thai or Hindi they are the vowels.
"""

import hashlib
import unicodedata
from dataclasses import dataclass

# Of the words of a document, what its side is drawn from. A longer document may come in pieces,
# which all lie where the first one does; where that ends, spaces decide, and so not this.
_BEGINNING_BYTES = 1 << 20

_ASCII = bytes(range(128))
_OTHER = bytes(range(128, 256))
_LOWER = bytes(ord(chr(code).lower()) if code < 128 else code for code in range(256))
_NO_WORD = bytes(code for code in range(128) if not chr(code).isalnum())
_SEVERAL = "\0"
# Of I and i some languages make two letters each, with and without a dot: one letter here, however
# it is spelt, or a text in capitals would be another text.
_LETTERS_I = tuple(letter.encode() for letter in ("ı", "İ", "i\u0307", "I\u0307"))
_SIGNS_OF_I = {letter.translate(None, _ASCII) for letter in _LETTERS_I}


@dataclass(frozen=True)
class Identity:
    """Two digests of 16 bytes."""

    words: bytes  # equal for what counts as the same document
    side: bytes  # its draw


def identify(text: bytes, *, is_exact: bool = False) -> Identity:
    """Returns what a document is known by; `text` is UTF-8.

    With `is_exact` these are all characters but white space: in a chemical formula, case and signs
    make another molecule.
    """
    plain, rest = (b"", b"") if is_exact else _streams(text)
    if not (plain or rest):  # also text of emoji or dashes alone
        plain = "".join(text.decode().split()).encode()
    digest = hashlib.blake2b(plain, digest_size=16)
    digest.update(b"\0")
    digest.update(rest)
    words = side = digest.digest()
    longer = max(plain, rest, key=len)
    if len(longer) > _BEGINNING_BYTES:
        side = hashlib.blake2b(longer[:_BEGINNING_BYTES], digest_size=16).digest()
    return Identity(words, side)


def _streams(text: bytes) -> tuple[bytes, bytes]:
    """Returns the letters and digits of a text: those of ASCII, and all others.

    In two streams, since that takes a tenth of the time: most text is ASCII but for a few letters.
    """
    rest = text.translate(None, _ASCII)
    if rest:
        if any(sign in rest for sign in _SIGNS_OF_I):
            for letter in _LETTERS_I:
                text = text.replace(letter, b"i")
            rest = text.translate(None, _ASCII)
        folded = rest.decode().translate(_FOLDED)
        if _SEVERAL in folded:
            if b"\n" not in text:
                return _fold_exactly(text)
            streams = [_streams(paragraph) for paragraph in text.split(b"\n")]
            return b"".join(a for a, _ in streams), b"".join(b for _, b in streams)
        rest = folded.encode()
    return text.translate(_LOWER, _NO_WORD + _OTHER), rest


def _fold_exactly(text: bytes) -> tuple[bytes, bytes]:
    folded = _fold(text.decode().translate(_KEPT)).translate(_KEPT).encode()
    return folded.translate(_LOWER, _NO_WORD + _OTHER), folded.translate(None, _ASCII)


def _fold(text: str) -> str:
    """Returns a text without case. Once more at the end, since NFKC composes some letters that are
    in parts when folded.
    """
    return unicodedata.normalize("NFKC", text.casefold()).casefold()


def _is_sign(character: str) -> bool:
    """Returns whether it is punctuation, a symbol, a separator, or a control character."""
    kind = unicodedata.category(character)
    return kind[0] in "PSZ" or kind in ("Cc", "Cf")


class _Kept(dict[int, str]):
    """A table for `str.translate`: nothing for a sign beyond ASCII, itself for all else."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        return self.setdefault(code, "" if code > 127 and _is_sign(character) else character)


class _Folded(dict[int, str]):
    """A table for `str.translate`: a character beyond ASCII, folded, nothing for a sign; _SEVERAL
    for one that is not folded by itself: a mark, which belongs to the letter before it, and what
    becomes ASCII (\u00df is ss) or is another spelling (\u00b2 is 2).
    """

    def __missing__(self, code: int) -> str:
        character = chr(code)
        folded = _fold(character)
        if _is_sign(character):
            folded = ""
        elif (
            unicodedata.category(character).startswith("M")
            or 0x1100 <= code <= 0x11FF  # Hangul in parts
            or unicodedata.normalize("NFKC", character) != character
            or any(letter.isascii() for letter in folded)
        ):
            folded = _SEVERAL
        return self.setdefault(code, folded)


_KEPT = _Kept()
_FOLDED = _Folded()
