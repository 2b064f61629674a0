"""The first bytes of a file, which say its encoding, or that it is no text."""

import codecs

# The longer marks first: that of UTF-32 begins with that of UTF-16.
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# Zero bytes, all in one half of the pairs, by which UTF-16 is known.
_FEWEST_ZEROS = 4
# How files begin that are no text.
_MAGIC = {
    b"\x1f\x8b": "a .gz file",
    b"BZh": "a .bz2 file",
    b"\xfd7zXZ": "an .xz file",
    b"\x28\xb5\x2f\xfd": "a .zst file",
    b"PAR1": "a .parquet file",
    b"PK\x03\x04": "a .zip file",
    b"%PDF": "a .pdf file",
    b"\x89PNG": "a .png file",
    b"\xff\xd8\xff": "a .jpg file",
}


def marked(head: bytes) -> str | None:
    """Returns the encoding that a byte order mark says; None where there is none."""
    return next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)


def wide_text(head: bytes) -> str | None:
    """Returns the encoding, of two or four bytes a letter, of text that begins with `head`, if its
    zero bytes say so: those of spaces and ends of lines are there in any language.
    """
    head = head[: len(head) // 4 * 4]
    zeros = [head[at::4].count(0) for at in range(4)]
    letters = max(len(head) // 4, 1)
    # Of four bytes the highest is 0, and the next, too, but of emoji and the like.
    for name, highest, next_one in (("utf-32-le", 3, 2), ("utf-32-be", 0, 1)):
        if zeros[highest] == letters and 2 * zeros[next_one] > letters:
            return name
    even, odd = zeros[0] + zeros[2], zeros[1] + zeros[3]
    few = max(_FEWEST_ZEROS, letters // 50)
    if min(even, odd) == 0 and max(even, odd) >= few:
        return "utf-16-le" if odd else "utf-16-be"
    return None


def misnamed(head: bytes) -> str:
    """Returns what to do with a file that begins with `head`, if that is no text but of a kind that
    is known.
    """
    kind = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)
    return f"it begins as {kind} does: let its name end so, or unpack it" if kind else ""
