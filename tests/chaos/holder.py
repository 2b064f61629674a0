"""Holds a workdir until its standard input ends, as a trainer does: `python -m tests.chaos.holder
WORKDIR SKEW`, on a machine whose clock is SKEW seconds wrong.
"""

import sys
import time

from bert_jax.errors import BertJaxError
from bert_jax.workdir.lease import only_trainer


def main(workdir: str, skew: float) -> int:
    now = time.time
    time.time = lambda: now() + skew
    print("begins", flush=True)
    try:
        with only_trainer(workdir):
            print("trains", flush=True)
            sys.stdin.read()
    except BertJaxError as error:
        print(error, flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2])))
