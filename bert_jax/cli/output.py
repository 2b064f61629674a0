"""The output of the command line: tables on stdout, the library's messages on stderr."""

import logging
import os
import re
import select
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from bert_jax.errors import shown
from bert_jax.progress import say


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table on stdout."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    found = Table()
    for column in columns:
        # What has no blanks, a path or Chinese, goes on in the next line: its end may be all that
        # two rows differ in.
        found.add_column(Text(shown(column)), overflow="fold")
    for row in rows:
        # A cell may have several lines: its frame says that they are one.
        found.add_row(*(Text("\n".join(map(shown, cell.split("\n")))) for cell in row))

    class Raising(Console):
        def on_broken_pipe(self) -> None:
            """Leaves it to `main`: the console would end the process with a code of its own."""
            raise

    # A file or a pipe has no width of its own.
    console = Raising(width=None if sys.stdout.isatty() else 110)
    # A title of the table's own would be cut to lines of its width, and be in italics.
    console.print(Text(shown(title)), soft_wrap=True)
    console.print(found)


def tell(text: str) -> None:
    """Prints a line on stdout that may quote a record: it acts on no terminal."""
    print(shown(text))


def is_closed() -> bool:
    """Returns whether whoever read what is printed has left, as `head` does."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return False
    asked = select.poll()
    asked.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in asked.poll(0))


def discard(stream: TextIO) -> None:
    """Lets what is still to be written go nowhere: at the exit it would fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def in_options(text: str, options: Mapping[str, str]) -> str:
    """Returns a message of the library in the words of the command line.

    The library names an argument `init_from`, and a change of the config "set model.x=1"; whoever
    types a command knows them as --init-from and --set model.x=1. `options` maps an argument's name
    to the option that gives it.
    """
    text = re.sub(r"`([a-z_]+)`", lambda m: options.get(m[1], m[0]), text)
    text = re.sub(r"(?<![\w-])set (?=[a-z][\w.]*=)", "--set ", text)
    # What is wrong with a --set comes first in its message, whatever was typed there.
    return re.sub(r"^override (?=.*:)", "--set ", text, flags=re.DOTALL)


class MessageHandler(logging.Handler):
    """Writes the library's messages on stderr, one a line, in the words of the command line."""

    def __init__(self, options: Mapping[str, str]):
        """`options` is that of `in_options`."""
        super().__init__()
        self._options = options

    def emit(self, record: logging.LogRecord) -> None:
        say(in_options(record.getMessage(), self._options))


def show_messages(options: Mapping[str, str]) -> None:
    """Shows the messages of `bert_jax` on stderr from now on, in the words of `in_options`."""
    logger = logging.getLogger("bert_jax")
    for handler in [*logger.handlers]:
        if isinstance(handler, MessageHandler):
            logger.removeHandler(handler)
    logger.addHandler(MessageHandler(options))
    logger.setLevel(logging.INFO)
    logger.propagate = False
