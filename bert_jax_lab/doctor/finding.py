"""A finding: the result of one check, and how to fix the problem."""

from dataclasses import dataclass

from bert_jax.errors import BertJaxError, StorageFailed, UsageError, exit_code_of
from bert_jax.runtime import network

PASSED, WARNED, FAILED, SKIPPED = "passed", "warned", "failed", "skipped"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check. `exit_code` is the exit code of a run if the check failed."""

    result: str
    found: str
    remedy: str = ""
    exit_code: int = 0


def passed(found: str) -> Finding:
    return Finding(result=PASSED, found=found)


def warned(found: str, remedy: str) -> Finding:
    return Finding(result=WARNED, found=found, remedy=remedy)


def failed(found: str, remedy: str, *, exit_code: int = UsageError.exit_code) -> Finding:
    # Messages of libraries may have several lines.
    found, remedy = (" ".join(text.split()) for text in (found, remedy))
    return Finding(result=FAILED, found=found, remedy=remedy, exit_code=exit_code)


def skipped(found: str) -> Finding:
    return Finding(result=SKIPPED, found=found)


def of_error(error: Exception) -> Finding:
    """Returns the finding of a check that raised an error."""
    known = error if isinstance(error, BertJaxError) else network.failure_of(error)
    if known is not None:
        # The single line of such an error names the problem and the fix.
        return failed("", str(known), exit_code=known.exit_code)
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        code = exit_code_of(error)
        remedy = "check this path"
        if code == StorageFailed.exit_code:
            remedy = "free the storage or make it writable, or choose another place"
        return failed(f"{name}{error.strerror or error}", remedy, exit_code=code)
    first_line = (str(error).strip().splitlines() or [""])[0][:300]
    return failed(
        f"{type(error).__name__}: {first_line}",
        "a run would fail as well: start it to see the whole traceback",
        exit_code=1,
    )
