"""The errors a user can meet, each with the exit code the supervisor acts on.

A message names the file, field or value that is wrong and says what to do next. Codes from 2 to 8
mean "do not restart: a restart would meet the same error", all others "restart at will".
"""

import contextlib
import difflib
import errno
import os
import re
import reprlib
import shlex
from collections.abc import Iterable


class BertJaxError(Exception):
    """Base of every error that is reported as one line, without a traceback. A second argument and
    those after it are lines of their own below it: a list.
    """

    exit_code = 1
    # Whether every process of the run raises it, at the same place.
    is_everywhere = False

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class UsageError(BertJaxError):
    """A wrong argument, config field or input file: nothing was started, nothing was lost."""

    exit_code = 2


class WorkdirTaken(UsageError):
    """Another process trains in the workdir now: this one must write nothing there."""


class ResumeRefused(BertJaxError):
    """The workdir holds a run whose config or corpus differs from the one asked for."""

    exit_code = 3


class DataDamaged(BertJaxError):
    """A corpus file is missing, truncated or altered."""

    exit_code = 4


class NoUsableCheckpoint(BertJaxError):
    """A workdir or directory that should hold a checkpoint holds none that can be read."""

    exit_code = 5


class NonFinite(BertJaxError):
    """Too many updates had to be left out, or outputs are not finite: training on is no use."""

    exit_code = 6


class Diverged(BertJaxError):
    """The loss has stayed far above that of guessing: training on is no use."""

    exit_code = 8


class Preempted(BertJaxError):
    """The machine is being taken away. The state is saved; the same command goes on from it."""

    exit_code = 42


class Interrupted(Preempted):
    """Ctrl-C. The state is saved; the same command goes on from it."""

    exit_code = 130


class StorageFailed(BertJaxError):
    """Output could not be written: disk full, read-only or failing."""

    exit_code = 7


class Unreachable(BertJaxError):
    """The network failed for longer than is waited for. Nothing is wrong with what is stored: the
    same command goes on once it is back.
    """

    exit_code = 75  # "temporary failure; the user is invited to retry" (sysexits.h)


# A disk that is full, read-only or failing, and a place one may not write.
_STORAGE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM}


# NumPy's words where a file did not take all of an array; it has no number of an error for that.
_SHORT_WRITE = re.compile(r"[0-9]+ requested and [0-9]+ written")


def reason_of(error: OSError) -> str:
    """Returns what the operating system refused, in its words."""
    if _SHORT_WRITE.fullmatch(str(error)):
        return os.strerror(errno.ENOSPC)
    return error.strerror or str(error)


def exit_code_of(error: OSError) -> int:
    """Returns the code for a refusal of the operating system: of the storage, or of a wrong
    path.
    """
    is_storage = error.errno in _STORAGE_ERRORS or _SHORT_WRITE.fullmatch(str(error))
    return StorageFailed.exit_code if is_storage else UsageError.exit_code


def with_exit_code(code: int, message: str) -> BertJaxError:
    """Returns the error of that exit code: another process's, seen from here."""
    kinds = {kind.exit_code: kind for kind in BertJaxError.__subclasses__()}
    return kinds.get(code, BertJaxError)(message)


# A terminal acts on controls and turns the line at the bidirectional ones; separators end a line,
# and half a surrogate pair is no character. Joiners, marks of direction and soft hyphens stay, as
# parts of words, and so do characters of a later Unicode than Python's.
_ACTED_ON = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def shown(text: str) -> str:
    """Returns a text as one line of a terminal: what it would act on is written as \\x1b."""
    return _ACTED_ON.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def brief(value: object) -> str:
    """Returns a value from outside as a message quotes it: one line, of bounded length and
    depth.
    """
    short = reprlib.Repr()
    short.maxstring = short.maxother = 120
    return short.repr(value)


def did_you_mean(name: str, names: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Returns what to say after an unknown `name`: the one of `names` that it resembles, if any."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)
    return f" Did you mean {brief(close[0])}?" if close else ""


def install_command(*packages: str) -> str:
    """Returns what to type to install optional packages: `pip install 'pyarrow>=20'`.

    The versions are those of the extras of bert-jax as it is installed, so that the command works
    for a clone and for a wheel.
    """
    import importlib.metadata  # not for --help, which is instant

    declared: dict[str, str] = {}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for line in importlib.metadata.requires("bert-jax") or ():
            requirement = line.partition(";")[0].strip()
            declared.setdefault(re.split(r"[<>=!~ ]", requirement)[0], requirement)
    return f"pip install {' '.join(shlex.quote(declared.get(each, each)) for each in packages)}"


def some(texts: Iterable[str], most: int = 8) -> str:
    """Returns texts as one line: the first ones, and how many more there are."""
    found = list(texts)
    return ", ".join(found[:most]) + (f" and {len(found) - most} more" if len(found) > most else "")
