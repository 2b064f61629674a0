"""Beam's local runner, with worker processes that do not use the terminal.

Beam's worker processes would react to Ctrl-C, and print a traceback of each error to the terminal;
the command reports the error in one line.
"""

import os
import shlex
import signal
import sys
from typing import Any

from apache_beam.portability import python_urns  # pyright: ignore[reportMissingImports]
from apache_beam.runners.portability.fn_api_runner import (  # pyright: ignore[reportMissingImports]
    FnApiRunner,
)
from apache_beam.runners.worker import sdk_worker_main  # pyright: ignore[reportMissingImports]


class DirectRunner(FnApiRunner):
    """Starts this module instead of a worker process of Beam."""

    def run_via_runner_api(self, pipeline_proto: Any, options: Any) -> Any:
        for environment in pipeline_proto.components.environments.values():
            if environment.urn == python_urns.SUBPROCESS_SDK:
                # `exec` replaces the shell, which would end when the terminal closes.
                command = f"exec {shlex.quote(sys.executable)} -m {__name__}"
                environment.payload = command.encode()
        return super().run_via_runner_api(pipeline_proto, options)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with open(os.devnull, "w") as sys.stderr:  # native code still writes to the terminal
        sdk_worker_main.main(sys.argv)
