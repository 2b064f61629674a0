"""The output of the command line: tables on stdout, messages of the library on stderr."""

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
        # A text without blanks, such as a path, continues in the next line: two rows may differ in
        # its end only.
        found.add_column(Text(shown(column)), overflow="fold")
    for row in rows:
        # A cell may have several lines.
        found.add_row(*(Text("\n".join(map(shown, cell.split("\n")))) for cell in row))

    # A file or a pipe has no width.
    console = Console(width=None if sys.stdout.isatty() else 110)
    # Printed by `print`: the console would end the process if the pipe is closed.
    with console.capture() as text:
        # The title of a `Table` would be wrapped to the width of the table.
        console.print(Text(shown(title)), soft_wrap=True)
        console.print(found)
    print(text.get(), end="")


def tell(text: str) -> None:
    """Prints a line on stdout. Control characters of quoted records are escaped."""
    print(shown(text))


def flushed(stream: TextIO) -> bool:
    """Flushes a stream. Returns False if it has no reader: its text is discarded, because a flush
    at the exit of the process would fail again.
    """
    try:
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        return False
    return True


def is_closed(stream: TextIO) -> bool:
    """Returns whether the reader of a stream is gone: a terminal that was closed takes text without
    an error.
    """
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def in_options(text: str, options: Mapping[str, str]) -> str:
    """Returns a message of the library with the options of the command line.

    An argument `init_from` becomes --init-from, and "set model.x=1" becomes --set model.x=1.
    `options` maps the name of an argument to its option.
    """
    text = re.sub(r"`([a-z_]+)`", lambda m: options.get(m[1], m[0]), text)
    text = re.sub(r"(?<![\w-])set (?=[a-z][\w.]*=)", "--set ", text)
    # The message of a wrong --set starts with "override".
    return re.sub(r"^override (?=.*:)", "--set ", text, flags=re.DOTALL)


class MessageHandler(logging.Handler):
    """Writes the messages of the library to stderr, one per line, as `in_options` returns them."""

    def __init__(self, options: Mapping[str, str]):
        """`options` is that of `in_options`."""
        super().__init__()
        self._options = options

    def emit(self, record: logging.LogRecord) -> None:
        say(in_options(record.getMessage(), self._options))


def show_messages(options: Mapping[str, str]) -> None:
    """Shows the messages of the logger `bert_jax` on stderr, as `in_options` returns them."""
    logger = logging.getLogger("bert_jax")
    for handler in [*logger.handlers]:
        if isinstance(handler, MessageHandler):
            logger.removeHandler(handler)
    logger.addHandler(MessageHandler(options))
    logger.setLevel(logging.INFO)
    logger.propagate = False
