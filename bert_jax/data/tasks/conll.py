"""Sentences with a tag for each word, from CoNLL columns.

A word a line, its columns separated by spaces or tabs: the first is the word, the last its tag. A
blank line ends a sentence; lines that begin with -DOCSTART- are left out. Tags are IOB2 (B- begins
every entity) or, if one says so, IOB1 (B- only between two entities of one kind; CoNLL-2003's own
files), which is turned into IOB2.
"""

from dataclasses import dataclass
from pathlib import Path

from bert_jax.data.tasks.tables import read_text
from bert_jax.errors import UsageError

# What stands between columns. Other white space may be a word.
_SPACES = " \t\r"


@dataclass(frozen=True)
class Sentence:
    """Words and their IOB2 tags, None where the file has none; `location` is the first line."""

    location: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None


def read_sentences(path: Path, *, scheme: str = "IOB2", labelled: bool = True) -> list[Sentence]:
    """Returns all sentences of a file. With `labelled=False` only the first column is read.

    Raises UsageError that names file and line where a word has no tag, or a tag breaks the scheme.
    """
    sentences: list[Sentence] = []
    words: list[str] = []
    tags: list[str] = []
    first = 1

    def close() -> None:
        if words:
            found = tuple(tags) if labelled else None
            sentences.append(Sentence(f"{path}, line {first}", tuple(words), found))
            words.clear()
            tags.clear()

    for number, line in enumerate(read_text(path).replace("\r\n", "\n").split("\n"), 1):
        # A tab separates where there is one: a word may hold a no-break space.
        line = line.strip(_SPACES)
        cells = line.split("\t") if "\t" in line else line.split(" ")
        cells = [cell.strip(_SPACES) for cell in cells if cell.strip(_SPACES)]
        if not cells or cells[0] == "-DOCSTART-":
            close()
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
    return sentences


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
