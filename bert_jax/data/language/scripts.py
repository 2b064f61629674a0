"""Maps letters to scripts by Unicode block, and lists scripts without spaces between words."""

import numpy as np

# First and last code point, and the script; marks and signs of a block count as its letters.
_BLOCKS = (
    (0x41, 0x5A, "Latin"), (0x61, 0x7A, "Latin"), (0xC0, 0x24F, "Latin"), (0x370, 0x3FF, "Greek"),
    (0x400, 0x52F, "Cyrillic"), (0x530, 0x58F, "Armenian"), (0x590, 0x5FF, "Hebrew"),
    (0x600, 0x6FF, "Arabic"), (0x750, 0x77F, "Arabic"), (0x8A0, 0x8FF, "Arabic"),
    (0x900, 0x97F, "Devanagari"), (0x980, 0x9FF, "Bengali"), (0xA00, 0xA7F, "Gurmukhi"),
    (0xA80, 0xAFF, "Gujarati"), (0xB00, 0xB7F, "Oriya"), (0xB80, 0xBFF, "Tamil"),
    (0xC00, 0xC7F, "Telugu"), (0xC80, 0xCFF, "Kannada"), (0xD00, 0xD7F, "Malayalam"),
    (0xD80, 0xDFF, "Sinhala"), (0xE00, 0xE7F, "Thai"), (0xE80, 0xEFF, "Lao"),
    (0xF00, 0xFFF, "Tibetan"), (0x1000, 0x109F, "Burmese"), (0x10A0, 0x10FF, "Georgian"),
    (0x1100, 0x11FF, "Hangul"), (0x1200, 0x139F, "Ethiopic"), (0x1780, 0x17FF, "Khmer"),
    (0x1E00, 0x1EFF, "Latin"), (0x1F00, 0x1FFF, "Greek"), (0x3041, 0x309F, "kana"),
    (0x30A1, 0x30FA, "kana"), (0x30FC, 0x30FF, "kana"), (0x3131, 0x318E, "Hangul"),
    (0x31F0, 0x31FF, "kana"), (0x3400, 0x4DBF, "Han"), (0x4E00, 0x9FFF, "Han"),
    (0xA9E0, 0xA9FE, "Burmese"), (0xAA60, 0xAA7F, "Burmese"), (0xAC00, 0xD7A3, "Hangul"),
    (0xF900, 0xFAFF, "Han"), (0xFB50, 0xFDFF, "Arabic"), (0xFE70, 0xFEFC, "Arabic"),
    (0xFF66, 0xFF9D, "kana"), (0x20000, 0x3134F, "Han"),
)  # fmt: skip
# Scripts without spaces between words.
_SPACELESS = {"Han", "kana", "Thai", "Lao", "Khmer", "Burmese", "Tibetan"}
# Those scripts in which WordPiece reads a run as one word. WordPiece separates ideographs, which
# interrupt runs of kana.
RUN_TOGETHER = {"Thai", "Lao", "Khmer", "Burmese", "Tibetan"}
_FIRST = np.array([first for first, _, _ in _BLOCKS], np.uint32)
_LAST = np.array([last for _, last, _ in _BLOCKS], np.uint32)
_NAMES = tuple(dict.fromkeys(script for _, _, script in _BLOCKS))
_SCRIPT = np.array([_NAMES.index(script) for _, _, script in _BLOCKS] + [len(_NAMES)])
_IS_SPACELESS = np.array([name in _SPACELESS for name in _NAMES] + [False])


def points(text: str) -> np.ndarray:
    """Returns the code points of a text: uint32 `[characters]`."""
    return np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32)


def count(text: str) -> dict[str, int]:
    """Returns the number of characters in each script; other characters are ignored."""
    found = np.bincount(_numbers(points(text)), minlength=len(_NAMES))
    return {name: int(n) for name, n in zip(_NAMES, found, strict=False) if n}


def is_spaceless(code_points: np.ndarray) -> np.ndarray:
    """Returns which code points belong to a script without spaces: bool, same shape."""
    return _IS_SPACELESS[_numbers(code_points)]


def is_mostly_spaceless(text: str) -> bool:
    """Returns whether most letters belong to a script without spaces between words."""
    found = count(text)
    return 2 * sum(found.get(name, 0) for name in _SPACELESS) > sum(found.values())


def run_together() -> str:
    """Returns the character class, in square brackets, of scripts in which a run without spaces
    may contain several words.
    """
    spans = (f"{chr(first)}-{chr(last)}" for first, last, name in _BLOCKS if name in RUN_TOGETHER)
    return f"[{''.join(spans)}]"


def _numbers(code_points: np.ndarray) -> np.ndarray:
    """Returns the index of each code point's script in `_NAMES`, else the length of `_NAMES`."""
    block = np.searchsorted(_FIRST, code_points, side="right") - 1
    is_in = (block >= 0) & (code_points <= _LAST[block])
    return _SCRIPT[np.where(is_in, block, len(_BLOCKS))]
