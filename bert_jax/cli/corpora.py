"""The option --corpus: one directory of prepare, or several with names."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from bert_jax.cli.options import local
from bert_jax.errors import UsageError

_NAME = re.compile(r"[\w.-]+")
_NAMES = "a source has a name of letters, digits and _ . -, and is written as NAME=DIR"


class NamedCorpus(NamedTuple):
    """One of several corpora, with the name of its source."""

    name: str
    directory: Path


def named_corpus(text: str) -> NamedCorpus:
    """Returns a corpus for NAME=DIR, or for DIR, with the last part of the path as its name."""
    name, equals, place = text.partition("=")
    if not equals or "/" in name or Path(text).exists():
        name, place = "", text
    directory = local(place)
    if name and not _NAME.fullmatch(name):
        raise argparse.ArgumentTypeError(f"{text}: {_NAMES}")
    return NamedCorpus(name or directory.resolve().name, directory)


def corpora(given: Sequence[NamedCorpus]) -> Path | dict[str, Path] | None:
    """Returns the directory of one corpus, the directories of several by name, or None.

    Raises UsageError if two of several have one name, or if a folder name is no valid name.
    """
    if len(given) < 2:
        return given[0].directory if given else None
    found: dict[str, Path] = {}
    for name, directory in given:
        if not _NAME.fullmatch(name):
            raise UsageError(f"--corpus {directory}: {_NAMES}")
        if name in found:
            raise UsageError(
                f"--corpus {found[name]} and --corpus {directory} are both called {name}; write "
                "them as NAME=DIR"
            )
        found[name] = directory
    return found


# The type of a repeated option.
Corpora = tuple[Annotated[NamedCorpus, named_corpus], ...]
