"""Decides where running text has no space: between joined lines, and between sentences."""

# Signs that Chinese and Japanese share with scripts with spaces: the next character decides.
_SHARED = "\u2018\u2019\u201c\u201d\u2026\u2014\u00b7"


def is_unspaced(before: str, after: str) -> bool:
    """Returns whether two lines are joined without a space, as in Thai, Lao, Burmese, Khmer, kana
    and ideographs, including their punctuation.
    """
    ends = before[-1], after[0]
    return are_ideographic(before, after) or all(_writes_no_spaces(ord(end)) for end in ends)


def are_ideographic(before: str, after: str) -> bool:
    """Returns whether one text ends and the other begins with kana, ideographs or their
    punctuation: no space separates their sentences, unlike sentences in Thai.
    """
    ends = before.rstrip(_SHARED)[-1:] + after.lstrip(_SHARED)[:1]
    return bool(ends) and all(_is_ideographic(ord(end)) for end in ends)


def _writes_no_spaces(code: int) -> bool:
    return (
        0x0E00 <= code < 0x0F00
        or 0x1000 <= code < 0x10A0
        or 0x1780 <= code < 0x1800
        or _is_ideographic(code)
    )


def _is_ideographic(code: int) -> bool:
    return 0x3000 <= code < 0xA000 or 0xFF00 <= code < 0xFFF0 or code >= 0x20000
