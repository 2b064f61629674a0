"""The errors of the program, each with its exit code.

A message names the wrong file, field or value, and the fix. After exit codes 2 to 8 a restart would
fail with the same error. Supervisors restart after the codes in RESTART of launch/worker.sh.
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
    """Base of every error that is reported as one line, without a traceback. Further arguments are
    additional lines, such as a list.
    """

    exit_code = 1
    # Whether every process of the run raises the error at the same point.
    is_everywhere = False

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class UsageError(BertJaxError):
    """A wrong argument, config field or input file: nothing was started, nothing was lost."""

    exit_code = 2


class WorkdirTaken(UsageError):
    """Another process trains in the workdir now: this process must not write there."""


class ResumeRefused(BertJaxError):
    """The workdir holds a run with another config or corpus."""

    exit_code = 3


class DataDamaged(BertJaxError):
    """A corpus file is missing, truncated or altered."""

    exit_code = 4


class NoUsableCheckpoint(BertJaxError):
    """A workdir or directory has no checkpoint that can be read."""

    exit_code = 5


class NonFinite(BertJaxError):
    """Too many updates were skipped, or outputs are not finite."""

    exit_code = 6


class Diverged(BertJaxError):
    """The loss stays far above the loss of a random prediction, or no fine-tuning run has a
    score.
    """

    exit_code = 8


class Preempted(BertJaxError):
    """The machine is taken away. The state is saved; the same command resumes from it."""

    exit_code = 42


class Interrupted(Preempted):
    """Ctrl-C. The state is saved; the same command resumes from it."""

    exit_code = 130


class StorageFailed(BertJaxError):
    """Output could not be written: disk full, read-only or failing."""

    exit_code = 7


class Unreachable(BertJaxError):
    """The network failed for too long. Stored files are intact: the same command resumes once the
    network is back.
    """

    exit_code = 75  # "temporary failure; the user is invited to retry" (sysexits.h)


# A disk that is full, read-only or failing, and a lack of permission.
_STORAGE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM}


# The message of NumPy for an array that was written in part; the error has no number.
_SHORT_WRITE = re.compile(r"[0-9]+ requested and [0-9]+ written")


def reason_of(error: OSError) -> str:
    """Returns the message of the operating system."""
    if _SHORT_WRITE.fullmatch(str(error)):
        return os.strerror(errno.ENOSPC)
    return error.strerror or str(error)


def exit_code_of(error: OSError) -> int:
    """Returns the exit code for an error of the operating system: StorageFailed or UsageError."""
    is_storage = error.errno in _STORAGE_ERRORS or _SHORT_WRITE.fullmatch(str(error))
    return StorageFailed.exit_code if is_storage else UsageError.exit_code


def with_exit_code(code: int, message: str) -> BertJaxError:
    """Returns an error with an exit code, such as the code of another process."""
    kinds = {kind.exit_code: kind for kind in BertJaxError.__subclasses__()}
    return kinds.get(code, BertJaxError)(message)


# Control characters, bidirectional overrides, line separators and surrogates. Joiners, marks of
# direction and soft hyphens stay, as parts of words.
_ACTED_ON = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def shown(text: str) -> str:
    """Returns a text as one line for a terminal: control characters are escaped, as \\x1b."""
    return _ACTED_ON.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def brief(value: object) -> str:
    """Returns a value for a message: one line, of bounded length and depth."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = 120
    return short.repr(value)


def did_you_mean(name: str, names: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Returns a hint for an unknown `name`: the nearest of `names`; "" if none is near."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)
    return f" Did you mean {brief(close[0])}?" if close else ""


def install_command(*packages: str) -> str:
    """Returns the command that installs optional packages: `pip install 'pyarrow>=20'`.

    The version ranges are from the extras in the metadata of the installed bert-jax.
    """
    import importlib.metadata  # not for --help, which is instant

    declared: dict[str, str] = {}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for line in importlib.metadata.requires("bert-jax") or ():
            requirement = line.partition(";")[0].strip()
            declared.setdefault(re.split(r"[<>=!~ ]", requirement)[0], requirement)
    return f"pip install {' '.join(shlex.quote(declared.get(each, each)) for each in packages)}"


def some(texts: Iterable[str], most: int = 8) -> str:
    """Returns texts as one line: the first ones, and the number of the others."""
    found = list(texts)
    return ", ".join(found[:most]) + (f" and {len(found) - most} more" if len(found) > most else "")
