"""Defines which documents are equal, and draws the split of a document.

Two documents are equal if their letters, marks and digits are: case, white space, punctuation,
symbols and the Unicode composition of letters are ignored. "well-known", "well known" and a word
with a line break are therefore equal. Marks are significant: in Thai or Hindi they are the vowels.
"""

import hashlib
import unicodedata
from dataclasses import dataclass

# The split is drawn from the beginning of the words. A longer document may arrive in pieces, which
# all belong to the split of the first one. Spaces decide where a piece ends, but not the split.
_BEGINNING_BYTES = 1 << 20

_ASCII = bytes(range(128))
_OTHER = bytes(range(128, 256))
_LOWER = bytes(ord(chr(code).lower()) if code < 128 else code for code in range(256))
_NO_WORD = bytes(code for code in range(128) if not chr(code).isalnum())
_SEVERAL = "\0"
# Some languages distinguish dotted and dotless I and i. Here they are one letter in all spellings;
# otherwise text in capitals would be another text.
_LETTERS_I = tuple(letter.encode() for letter in ("ı", "İ", "i\u0307", "I\u0307"))
_SIGNS_OF_I = {letter.translate(None, _ASCII) for letter in _LETTERS_I}


@dataclass(frozen=True)
class Identity:
    """Two digests of 16 bytes."""

    words: bytes  # equal for equal documents
    side: bytes  # decides the split


def identify(text: bytes, *, is_exact: bool = False) -> Identity:
    """Returns the digests of a document; `text` is UTF-8.

    `is_exact` compares all characters but white space: in a chemical formula, case and signs make a
    different molecule.
    """
    plain, rest = (b"", b"") if is_exact else _streams(text)
    if not (plain or rest):  # for example only emoji or dashes
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
    """Returns the letters and digits of a text in two streams: ASCII, and all others.

    Two streams take a tenth of the time, because most text is nearly all ASCII.
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
    """Returns a text without case. Normalizes again at the end, since NFKC composes some letters
    that folding decomposed.
    """
    return unicodedata.normalize("NFKC", text.casefold()).casefold()


def _is_sign(character: str) -> bool:
    """Returns whether it is punctuation, a symbol, a separator, or a control character."""
    kind = unicodedata.category(character)
    return kind[0] in "PSZ" or kind in ("Cc", "Cf")


class _Kept(dict[int, str]):
    """A table for `str.translate` that drops non-ASCII signs and keeps all other characters."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        return self.setdefault(code, "" if code > 127 and _is_sign(character) else character)


class _Folded(dict[int, str]):
    """A table for `str.translate`: a folded character beyond ASCII, nothing for a sign, _SEVERAL
    for a character that cannot be folded separately: a mark, which belongs to the previous letter,
    a character that becomes ASCII (\u00df is ss), or another spelling (\u00b2 is 2).
    """

    def __missing__(self, code: int) -> str:
        character = chr(code)
        folded = _fold(character)
        if _is_sign(character):
            folded = ""
        elif (
            unicodedata.category(character).startswith("M")
            or 0x1100 <= code <= 0x11FF  # decomposed Hangul
            or unicodedata.normalize("NFKC", character) != character
            or any(letter.isascii() for letter in folded)
        ):
            folded = _SEVERAL
        return self.setdefault(code, folded)


_KEPT = _Kept()
_FOLDED = _Folded()
