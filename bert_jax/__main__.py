"""The command line: verbs that call functions. Heavy imports wait until a verb needs them.

So that Ctrl-C is heard before them, what makes the command line is imported in functions, too.
"""

import codecs
import contextlib
import errno
import io
import json
import os
import sys
import traceback
from collections.abc import Sequence
from typing import TextIO

from bert_jax.errors import (
    BertJaxError,
    Interrupted,
    Preempted,
    StorageFailed,
    Unreachable,
    exit_code_of,
    reason_of,
)
from bert_jax.progress import leave, say
from bert_jax.runtime import network
from bert_jax.runtime.signals import Ending

# The remedies where memory does not suffice after all.
_LESS_TRAINING = (
    "`fit_memory` chooses what does, or set optimizer.gradient_accumulation_steps=N, or a smaller "
    "batch"
)
_LESS_MEMORY = {"pretrain": _LESS_TRAINING, "finetune": _LESS_TRAINING}
_LESS_DATA = "use fewer rows at a time, or a machine with more memory"
_NOTHING_KEPT = "nothing was saved; the same command starts from the beginning"
# What a shell shows for a program that a closed pipe ends: 128 and the number of SIGPIPE.
_PIPE_CLOSED = 141


def main(argv: Sequence[str] | None = None, *, ending: Ending | None = None) -> int:
    """Runs one verb and returns its exit code. Errors of the user are one line on stderr.

    `ending` hears the signals of a process that does nothing else: it learns what they leave.
    """
    from bert_jax import config_loader
    from bert_jax.cli import options, output, usage

    words = sys.argv[1:] if argv is None else argv
    parser = usage.command_parser(words)
    arguments = usage.parse(parser, words)
    verb = usage.verb_module(arguments.verb)
    output.show_messages(usage.options_by_name(parser))
    kept = getattr(verb, "INTERRUPTED", _NOTHING_KEPT)
    if ending is not None:
        ending.name, ending.kept = f"bert-jax {arguments.verb}", kept
    # TensorFlow's start-up chatter hides what matters, and it computes nothing here; the user's
    # own settings win.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    # Or it imports Keras, and with it scikit-learn and matplotlib: a third of its four seconds.
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

    def refuse(*lines: object) -> None:
        # The error may name options of other verbs.
        names = usage.options_by_name(usage.command_parser())
        start = f"bert-jax {arguments.verb}: error: "
        for line in lines:
            say(start + output.in_options(str(line), names))
            start = ""

    try:
        for file in arguments.extend:
            config_loader.execute(file)
        code = verb.run(options.read(usage.options_of(arguments.verb), arguments)) or 0
        sys.stdout.flush()  # here, or a reader that has left would be a traceback at the exit
        return code
    except BertJaxError as error:
        refuse(*error.args)
        return error.exit_code
    except OSError as error:
        # EIO is what a terminal says that was closed.
        if error.errno in (errno.EPIPE, errno.EIO) and not error.filename and output.is_closed():
            output.discard(sys.stdout)
            return _PIPE_CLOSED
        name = f"{error.filename}: " if error.filename else ""
        if (failure := network.failure_of(error)) is not None:
            refuse(f"{name}{failure}")
            return failure.exit_code
        refuse(f"{name}{reason_of(error)}")
        return exit_code_of(error)
    except (MemoryError, RuntimeError) as error:  # jax's own kind of it is the second
        if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        what = (str(error) or "the limit of this process").splitlines()[0]
        refuse(f"not enough memory ({what}): {_LESS_MEMORY.get(arguments.verb, _LESS_DATA)}")
        return 2
    except Exception as error:
        if (failure := network.failure_of(error)) is None:
            raise
        refuse(failure)
        return failure.exit_code
    except KeyboardInterrupt:
        say(f"bert-jax {arguments.verb}: interrupted; {kept}")
        return Interrupted.exit_code


def console() -> None:
    """The `bert-jax` command. What still waits for storage, data or other processes may wait for
    ever: not at the exit."""
    _open_streams()
    with Ending() as ending:
        try:
            code = main(ending=ending)
        except SystemExit:  # argparse's, after --help or a wrong option
            _flush(sys.stdout, BrokenPipeError)
            raise
        except BaseException:
            # An import, or a library, may have made something else of the interruption.
            if ending.code is None and not _has_peers():
                raise
            traceback.print_exc()
            code = 1
    if ending.code is not None:
        leave(ending.code)
    # Where processes are still connected, this one leaves them behind. At an ordinary exit jax
    # would wait for them, and then end this one, too, with a code of its own.
    leaving = (
        StorageFailed.exit_code,
        Unreachable.exit_code,
        Preempted.exit_code,
        Interrupted.exit_code,
    )
    if code in leaving or _has_peers():
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    _flush(sys.stderr, OSError)
    sys.exit(code)


def _open_streams() -> None:
    """Opens the standard streams that a process was begun without (`2>&-`): the next file would be
    one, and have written into it what libraries print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest number that is free is the stream's own.
            descriptor = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(descriptor, mode, encoding="utf-8"))  # noqa: SIM115
    # A terminal that lacks a letter shows its number, as JSON writes it.
    codecs.register_error("numbered", _numbered)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="numbered")


def _numbered(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _flush(stream: TextIO, allowed: type[OSError]) -> None:
    """Lets go what such an error keeps from being written: at the exit, it would be the code."""
    try:
        stream.flush()
    except allowed:
        from bert_jax.cli import output

        output.discard(stream)


def _has_peers() -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()


if __name__ == "__main__":
    console()
