"""Sentences with a tag for each word, from CoNLL columns.

A word a line, its columns separated by spaces or tabs: the first is the word, the last its tag. A
blank line ends a sentence; lines that begin with -DOCSTART- are left out, and so are comments: "# "
before the first word of a sentence, in a line that does not end in a tag. Tags are IOB2 (B- begins
every entity) or, if one says so, IOB1 (B- only between two entities of one kind; CoNLL-2003's own
files), which is turned into IOB2. What is to be predicted may be a sentence a line instead.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from bert_jax.data.tasks.tables import read_text
from bert_jax.errors import UsageError
from bert_jax.progress import note

# What stands between columns. Other white space may be a word.
_SPACES = " \t\r"
_DOCUMENT = "-DOCSTART-"
# By a tag, of whatever scheme, a line of columns is known from one of text.
_TAG = re.compile(r"O|[BIELSU]-.+")
_JSON = re.compile(r'\s*(\[\s*)?\{\s*"')


@dataclass(frozen=True)
class Sentence:
    """Words and their IOB2 tags, None where the file has none; `location` is the first line."""

    location: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None


def read_sentences(path: Path, *, scheme: str = "IOB2", labelled: bool = True) -> list[Sentence]:
    """Returns all sentences of a file. With `labelled=False` only the first column is read; or the
    words of each line, where the lines are neither single words nor have tabs or tags.

    Raises UsageError that names file and line where a word has no tag, or a tag breaks the scheme.
    """
    text = read_text(path)
    if _JSON.match(text):
        raise UsageError(
            f"{path} is JSON; write a word a line, with a tab and its tag behind it, and a blank "
            "line after each sentence (to predict, a sentence a line will do)"
        )
    lines = [*enumerate((line.strip(_SPACES) for line in text.split("\n")), 1)]
    sentences: list[Sentence] = []
    if not labelled and not all(_is_column(line) for _, line in lines):
        note(f"{path} is read as text, a sentence a line (columns have tabs, or a tag at the end)")
        texts = [(f"{path}, line {n}", tuple(line.split())) for n, line in lines if line.split()]
        sentences, lines = [Sentence(*text, None) for text in texts], []
    words: list[str] = []
    tags: list[str] = []
    comments: list[int] = []
    first = 1

    def close() -> None:
        if words:
            found = tuple(tags) if labelled else None
            sentences.append(Sentence(f"{path}, line {first}", tuple(words), found))
            words.clear()
            tags.clear()

    for number, line in lines:
        cells = _cells(line)
        if not cells or cells[0] == _DOCUMENT:
            close()
            continue
        if not words and _is_comment(line):
            comments.append(number)
            continue
        if not words:
            first = number
        words.append(cells[0])
        if labelled:
            location = f"{path}, line {number}"
            if len(cells) < 2:
                raise UsageError(
                    f"{location}: the word {cells[0]!r} has no tag; write WORD, a tab, TAG"
                )
            tags.append(_checked(cells[-1], tags[-1] if tags else "O", scheme, location))
    close()
    if not sentences:
        raise UsageError(f"{path} has no sentences")
    if comments:
        note(
            f"{path}: {len(comments):,} comments, which begin with #, are left out, the first of "
            f"them line {comments[0]}"
        )
    return sentences


def _cells(line: str) -> list[str]:
    # A tab separates where there is one: a word may hold a no-break space.
    cells = line.split("\t") if "\t" in line else line.split(" ")
    return [cell.strip(_SPACES) for cell in cells if cell.strip(_SPACES)]


def _is_comment(line: str) -> bool:
    return line.startswith("# ") and not _TAG.fullmatch(_cells(line)[-1])


def _is_column(line: str) -> bool:
    """Returns whether a line may be one of columns, by itself."""
    cells = _cells(line) or [_DOCUMENT]
    is_word = "\t" in line or len(cells) == 1 or bool(_TAG.fullmatch(cells[-1]))
    return is_word or cells[0] == _DOCUMENT or _is_comment(line)


def _checked(tag: str, previous: str, scheme: str, location: str) -> str:
    """Returns the tag in IOB2. `previous` is the tag of the word before it, in IOB2."""
    prefix, dash, kind = tag.partition("-")
    if tag == "O":
        return tag
    if prefix not in ("B", "I") or not dash or not kind:
        raise UsageError(f"{location}: {tag!r} is no tag of {scheme}; write O, B-KIND or I-KIND")
    goes_on = previous != "O" and previous.partition("-")[2] == kind
    if prefix == "I" and not goes_on:
        if scheme == "IOB1":
            return f"B-{kind}"
        raise UsageError(
            f"{location}: {tag!r} goes on with an entity that has not begun (the tag before it is "
            f"{previous!r}); begin it with B-{kind}, or use `tag_scheme` IOB1 if the file is so"
        )
    return tag
