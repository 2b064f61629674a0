"""The command line: verbs that call functions.

Functions import their dependencies, so that Ctrl-C is handled before slow imports.
"""

import errno
import io
import os
import sys
import threading
import traceback
from collections.abc import Sequence

from bert_jax.cli import output
from bert_jax.errors import (
    BertJaxError,
    Interrupted,
    Preempted,
    StorageFailed,
    Unreachable,
    exit_code_of,
    reason_of,
)
from bert_jax.progress import ABANDONED, leave, say
from bert_jax.runtime import network
from bert_jax.runtime.stop import Ending

# The fixes for a lack of memory.
_LESS_TRAINING = (
    "`fit_memory` chooses settings that fit, or set optimizer.gradient_accumulation_steps=N, or a "
    "smaller batch"
)
_LESS_MEMORY = {"pretrain": _LESS_TRAINING, "finetune": _LESS_TRAINING}
_LESS_DATA = "use fewer rows at a time, or a machine with more memory"
_NOTHING_KEPT = "nothing was saved; the same command starts from the beginning"
# The exit codes after which libraries may still work in threads that Python does not know.
_AT_ONCE = {kind.exit_code for kind in (StorageFailed, Unreachable, Preempted, Interrupted)}
# The exit code of shells for a program that a closed pipe ends: 128 + SIGPIPE.
_PIPE_CLOSED = 141


def main(argv: Sequence[str] | None = None, *, ending: Ending | None = None) -> int:
    """Runs one verb and returns its exit code. Usage errors are one line on stderr.

    `ending` handles the signals of the process: it gets the name of the command and the state of
    its output.
    """
    from bert_jax import config_loader
    from bert_jax.cli import options, usage

    words = sys.argv[1:] if argv is None else argv
    parser = usage.command_parser(words)
    arguments = usage.parse(parser, words)
    verb = usage.verb_module(arguments.verb)
    output.show_messages(usage.options_by_name(parser))
    kept = getattr(verb, "INTERRUPTED", _NOTHING_KEPT)
    if ending is not None:
        ending.name, ending.kept = f"bert-jax {arguments.verb}", kept
    # Hides the messages of TensorFlow's start, unless the user has set these variables.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    # Otherwise TensorFlow imports Keras, scikit-learn and matplotlib: a third of its four seconds.
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

    def refuse(*lines: object) -> None:
        # The error may name options of other verbs.
        names = usage.options_by_name(usage.command_parser(), arguments.verb)
        start = f"bert-jax {arguments.verb}: error: "
        for line in lines:
            say(start + output.in_options(str(line), names))
            start = ""

    try:
        for file in arguments.extend:
            config_loader.execute(file)
        code = verb.run(options.read(usage.options_of(arguments.verb), arguments)) or 0
        sys.stdout.flush()  # at the exit, a closed pipe would cause a traceback
        return code
    except BertJaxError as error:
        refuse(*error.args)
        return error.exit_code
    except OSError as error:
        # EIO is the error of a terminal that was closed.
        is_of_stream = error.errno in (errno.EPIPE, errno.EIO) and not error.filename
        if is_of_stream and (not output.flushed(sys.stdout) or output.is_closed(sys.stdout)):
            return _PIPE_CLOSED
        name = f"{error.filename}: " if error.filename else ""
        if (failure := network.failure_of(error)) is not None:
            refuse(f"{name}{failure}")
            return failure.exit_code
        refuse(f"{name}{reason_of(error)}")
        return exit_code_of(error)
    except (MemoryError, RuntimeError) as error:  # JAX raises the second
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
    """The `bert-jax` command. Its exit does not wait for storage, data or other processes."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal may lack a character
        sys.stdout.reconfigure(errors="backslashreplace")
    with Ending() as ending:
        try:
            code = main(ending=ending)
        except SystemExit:  # from argparse, after --help or a wrong option
            output.flushed(sys.stdout)
            raise
        except BaseException:
            # An import or a library may have replaced the interruption with another error.
            if ending.code is None and not _has_peers():
                raise
            traceback.print_exc()
            code = 1
    if ending.code is not None:
        leave(ending.code)
    # At a normal exit JAX waits for connected processes, which may have failed, and then ends this
    # process with another code. Python waits for the threads that compile or read data.
    threads = {*threading.enumerate()} - {threading.main_thread()}
    is_busy = any(thread.name == ABANDONED for thread in threads)
    is_awaited = code != 0 and any(not thread.daemon for thread in threads)
    if is_busy or is_awaited or _has_peers() or code in _AT_ONCE:
        output.flushed(sys.stdout)
        output.flushed(sys.stderr)
        os._exit(code)
    output.flushed(sys.stderr)
    sys.exit(code)


def _has_peers() -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()


if __name__ == "__main__":
    console()
