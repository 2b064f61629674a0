"""Holds a workdir as a trainer does, with a wrong clock, until the pipe is closed."""

import os
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection

from bert_jax.errors import BertJaxError
from bert_jax.workdir.lock import only_trainer


def hold(workdir: str, skew: float, variables: Mapping[str, str], ear: Connection) -> None:
    """Runs in a process whose clock is `skew` seconds wrong; sends times and states."""
    os.environ.update(variables)
    now = time.time
    time.time = lambda: now() + skew

    def say(text: str) -> None:
        ear.send((time.monotonic(), text))

    say("begins")
    try:
        with only_trainer(workdir):
            say("trains")
            ear.poll(None)
    except BertJaxError as error:
        say(str(error))
        sys.exit(error.exit_code)
