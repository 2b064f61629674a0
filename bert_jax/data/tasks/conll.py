"""Sentences with a tag for each word, from files with one word per line.

Columns are separated by tabs, or by spaces in a line without tabs. A blank line ends a sentence.
Comments (lines that begin with #) and -DOCSTART- lines are skipped. In a file with two columns,
these are the word and the tag. In a file with -DOCSTART- lines (CoNLL-2002, CoNLL-2003), the word
is the first column and the tag the last. For other files the user names the columns. A file to
predict may have one sentence per line instead.
"""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_jax.data.sources.read import read_text
from bert_jax.data.sources.stream import MORE, SourceOptions
from bert_jax.errors import UsageError, brief, did_you_mean, some
from bert_jax.progress import note

OUTSIDE = "O"
# A tag with the prefix of a scheme, and the type of its entity.
PREFIXED = re.compile(r"([BIELMSU])[-_](.+)")
# The spaces that may separate columns. Other white space may be a word.
_SPACES = " \t\r"
_DOCUMENT = "-DOCSTART-"
_JSON = re.compile(r'\s*(\[\s*)?\{\s*"')
# The index of a word, or of a CoNLL-U line that is not a word (8-9, 8.1).
_INDEX = re.compile(r"[0-9]+([-.][0-9]+)?")


@dataclass(frozen=True)
class Sentence:
    """Words and their tags, None if the file has no tags; `location` is the first line."""

    location: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    # The line of each word, if the file has one word per line.
    lines: tuple[int, ...] = ()

    def location_of(self, word: int) -> str:
        """Returns the file and the line of a word, which is counted from 0."""
        file, _, _ = self.location.rpartition(" ")
        return f"{file} {self.lines[word]}" if self.lines else self.location


@dataclass(frozen=True)
class _Layout:
    """The columns of the word and the tag (None: not read) in lines of `width` cells."""

    word: int
    tag: int | None
    width: int
    # Lines may have more cells.
    is_open: bool = False
    # The first column is the index of the word.
    has_index: bool = False


@dataclass(frozen=True)
class _Line:
    number: int
    cells: list[str]

    @property
    def is_document(self) -> bool:
        return self.cells[:1] == [_DOCUMENT]


def read_sentences(
    path: Path | str,
    *,
    reading: SourceOptions | None = None,
    columns: Sequence[str] = (),
    word: str = "",
    tag: str = "",
    labelled: bool = True,
    known: Collection[str] = (),
) -> list[Sentence]:
    """Returns all sentences of a file, with their tags as they are written.

    `columns` are the names of the columns; a last `...` allows further cells. `word` and `tag` are
    two of them. With `labelled=False` only words are read, and each line is a sentence if any line
    has several words, no tab, and no tag at its end (a tag has a prefix or is one of `known`).

    Raises UsageError that names file and line if columns are ambiguous or a cell is missing.
    """
    path = str(path)
    text = read_text(path, reading)
    if _JSON.match(text):
        raise UsageError(
            f"{path} is JSON; write one word per line, followed by a tab and its tag, and a blank "
            "line after each sentence (to predict, one sentence per line is enough)"
        )
    texts = text.split("\n")
    lines = [_Line(n, _cells(line, len(columns))) for n, line in enumerate(texts, 1)]
    if not labelled and not all(
        _has_columns(text, line.cells, columns, known)
        for text, line in zip(texts, lines, strict=True)
    ):
        note(f"{path} is read as text, one sentence per line (columns have tabs, or a final tag)")
        sentences = [
            Sentence(f"{path}, line {number}", tuple(line.split()), None)
            for number, line in enumerate(texts, 1)
            if line.split()
        ]
    else:
        marks = ("#", _DOCUMENT)
        words = [line for line in lines if line.cells and not line.cells[0].startswith(marks)]
        if columns or word:
            layout = _named(words, columns, word, tag, labelled=labelled)
        else:
            has_documents = any(line.is_document for line in lines)
            layout = _found(path, words, labelled=labelled, has_documents=has_documents)
        if layout.tag is not None:
            known = {line.cells[layout.tag] for line in words if len(line.cells) > layout.tag}
        sentences = _sentences(path, lines, layout, known)
    if not sentences:
        raise UsageError(f"{path} has no sentences")
    return sentences


def _cells(line: str, width: int) -> list[str]:
    """Returns the cells of a line. Empty cells are kept if `width` columns are named."""
    # A word may hold a no-break space, and with tabs a space.
    cells = [cell.strip(_SPACES) for cell in line.split("\t" if "\t" in line else " ")]
    filled = [cell for cell in cells if cell]
    if not filled or not width or "\t" not in line:
        return filled
    while len(cells) > width and not cells[-1]:
        cells.pop()
    return cells


def _is_tag(cell: str) -> bool:
    return cell == OUTSIDE or PREFIXED.fullmatch(cell) is not None


def _has_columns(
    text: str, cells: list[str], columns: Sequence[str], known: Collection[str]
) -> bool:
    """Returns whether a line may have columns, without considering other lines."""
    if len(cells) < 2 or "\t" in text or cells[0] in ("#", _DOCUMENT):
        return True
    return cells[-1] in known or _is_tag(cells[-1]) or len(cells) == len(columns)


def _named(
    lines: Sequence[_Line], columns: Sequence[str], word: str, tag: str, *, labelled: bool
) -> _Layout:
    names = [name for name in columns if name != MORE]
    if not word or not names:
        raise UsageError("`columns` NAMES and `text` NAME, the column of words, need each other")
    for option, name in [("text", word), ("label", tag)][: 1 + labelled]:
        if names.count(name) != 1:
            remedy = did_you_mean(name, names) or " Name one that is."
            raise UsageError(
                f"`{option}` {name} is not the name of exactly one of `columns` "
                f"{','.join(columns)}.{remedy}"
            )
    at = names.index(word)
    return _Layout(
        at,
        names.index(tag) if labelled else None,
        len(names),
        is_open=len(names) < len(columns),
        has_index=at > 0 and all(_INDEX.fullmatch(line.cells[0]) for line in lines),
    )


def _found(
    path: Path | str, lines: Sequence[_Line], *, labelled: bool, has_documents: bool
) -> _Layout:
    """Returns the layout of a file without column names.

    Raises UsageError, with the option that names the columns, if the layout is ambiguous.
    """
    counts = Counter(len(line.cells) for line in lines)
    width = counts.most_common(1)[0][0] if counts else 1
    if width == 1:
        return _Layout(0, 1, 2) if labelled else _Layout(0, None, 1)
    regular = [line.cells for line in lines if len(line.cells) == width]
    columns = [*zip(*regular, strict=True)]
    has_index = all(map(_INDEX.fullmatch, columns[0]))
    first_is_tag, last_is_tag = (all(map(_is_tag, cells)) for cells in (columns[0], columns[-1]))
    if width == 2:
        is_clear = last_is_tag or not first_is_tag
    else:
        is_clear = has_documents and (last_is_tag or not labelled)
    if is_clear and not has_index:
        return _Layout(0, width - 1 if labelled else None, width)
    line = next(line for line in lines if len(line.cells) == width)
    raise UsageError(
        f"{path}, line {line.number}: {width} columns ({', '.join(map(brief, line.cells))}), and "
        f"it is not clear which one is the word{' and which one the tag' * labelled}: name all of "
        f"them with `columns` a,b,c, the word with `text`{' and the tag with `label`' * labelled}"
    )


def _sentences(
    path: str, lines: Sequence[_Line], layout: _Layout, known: Collection[str]
) -> list[Sentence]:
    sentences: list[Sentence] = []
    words: list[tuple[int, str, str]] = []
    skipped: dict[str, list[int]] = {}
    for line in [*lines, _Line(0, [])]:
        cells = line.cells
        if not cells or line.is_document:
            if words:
                numbers, texts, tags = zip(*words, strict=True)
                where, found = f"{path}, line {numbers[0]}", None if layout.tag is None else tags
                sentences.append(Sentence(where, texts, found, numbers))
            words = []
        elif not words and cells[0].startswith("#") and _is_comment(cells, layout, known):
            skipped.setdefault("comments (lines that begin with #)", []).append(line.number)
        elif layout.has_index and not cells[0].isdigit() and len(cells) > 1:
            skipped.setdefault("lines with an index such as 8-9", []).append(line.number)
        else:
            words.append(
                (line.number, *_word_and_tag(cells, layout, f"{path}, line {line.number}"))
            )
    for what, numbers in skipped.items():
        note(f"{path}: skipped {len(numbers):,} {what}, the first on line {numbers[0]}")
    return sentences


def _is_comment(cells: list[str], layout: _Layout, known: Collection[str]) -> bool:
    if len(cells) == 1:
        return layout.tag is not None
    tag = cells[-1] if layout.tag is None or len(cells) <= layout.tag else cells[layout.tag]
    is_word = tag in known or _is_tag(tag)
    return not is_word and (len(cells) != layout.width or cells[0] == "#")


def _word_and_tag(cells: list[str], layout: _Layout, location: str) -> tuple[str, str]:
    """Returns the word of a line, and its tag ("" if tags are not read)."""
    count = len(cells)
    if layout.tag is None and (count == 1 or (count == 2 and layout.width < 2)):
        return cells[0], ""
    if count == 1:
        raise UsageError(f"{location}: the word {cells[0]!r} has no tag; write WORD, a tab, TAG")
    if count < layout.width or (count > layout.width and not layout.is_open):
        raise UsageError(
            f"{location}: {count} columns ({some(map(brief, cells))}) instead of {layout.width}; "
            "separate columns with tabs if a word contains a space, or repair the line"
        )
    word, tag = cells[layout.word], "" if layout.tag is None else cells[layout.tag]
    for what, cell in (("word", word), ("tag", tag)):
        if not cell and (what == "word" or layout.tag is not None):
            raise UsageError(f"{location}: the column of the {what}s is empty; repair the line")
    return word, tag
