"""The verb `evaluate`: held-out metrics of a checkpoint."""

import json
from pathlib import Path
from typing import Any

from bert_jax.cli.options import add_checkpoint

SUMMARY = "print held-out metrics of a checkpoint as JSON"
DETAILS = "Fixed examples with fixed masks: the same numbers on any number of devices."


def add_options(parser: Any) -> None:
    add_checkpoint(parser)
    parser.add_argument("--corpus", type=Path, required=True, metavar="DIR")


def run(arguments: Any) -> None:
    from bert_jax.training.evaluate import evaluate_checkpoint

    found = evaluate_checkpoint(
        arguments.checkpoint, arguments.corpus, ignore_unexpected=arguments.ignore_unexpected
    )
    print(json.dumps(found, indent=2))
