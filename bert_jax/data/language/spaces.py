"""Where running text has no space: in lines that are joined, and between sentences."""


def is_unspaced(before: str, after: str) -> bool:
    """Returns whether no space stands between two characters that a line's end parts, as between
    two of Thai, Lao, Burmese, Khmer, kana and ideographs, their punctuation included.
    """
    return all(_writes_no_spaces(ord(character)) for character in (before, after))


def are_ideographic(before: str, after: str) -> bool:
    """Returns whether two characters are kana, ideographs or their punctuation: between their
    sentences no space stands, as in Thai it does.
    """
    return all(_is_ideographic(ord(character)) for character in (before, after))


def _writes_no_spaces(code: int) -> bool:
    return (
        0x0E00 <= code < 0x0F00
        or 0x1000 <= code < 0x10A0
        or 0x1780 <= code < 0x1800
        or _is_ideographic(code)
    )


def _is_ideographic(code: int) -> bool:
    return 0x3000 <= code < 0xA000 or 0xFF00 <= code < 0xFFF0 or code >= 0x20000
