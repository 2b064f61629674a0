"""The verb `evaluate`: held-out metrics of checkpoints."""

import json
from typing import Any

from bert_jax.cli.closing import COLUMNS, figure_rows
from bert_jax.cli.options import ANY_MODEL, add_ignore_unexpected, add_json, corpus_directory
from bert_jax.cli.output import table
from bert_jax.config_loader import path_or_address
from bert_jax.errors import UsageError
from bert_jax.progress import note

SUMMARY = "say how well checkpoints predict held-out text"
DETAILS = (
    "Fixed examples with fixed masks: the same numbers on any number of devices. A checkpoint is "
    "scored on the rows of its own run; several, or those of another system, compare only on the "
    "same rows, which are those of --like RUN or of the first run among them."
)
EXAMPLE = """\
examples:
  bert-jax evaluate runs/base
before and after, on the rows of runs/adapted:
  bert-jax evaluate bert-base-uncased runs/adapted
"""


def add_options(parser: Any) -> None:
    parser.add_argument(
        "checkpoints",
        nargs="*",
        default=[],
        type=path_or_address,
        metavar="CHECKPOINT",
        help=ANY_MODEL,
    )
    parser.add_argument(
        "--checkpoint",
        action="append",
        default=[],
        type=path_or_address,
        metavar="DIR",
        help="the same, as an option",
    )
    add_ignore_unexpected(parser)
    parser.add_argument(
        "--corpus",
        type=corpus_directory,
        metavar="DIR",
        help="(default: the one that a run was trained on)",
    )
    parser.add_argument(
        "--like",
        type=path_or_address,
        metavar="RUN",
        help="score on the rows of this run: a workdir, or an export of one",
    )
    parser.add_argument(
        "--length", type=int, metavar="N", help="tokens of a row (default: as the run's last phase)"
    )
    add_json(parser, "print an object a checkpoint, instead of the tables")


def run(arguments: Any) -> None:
    given = [*arguments.checkpoints, *arguments.checkpoint]
    if not given:
        raise UsageError("name a checkpoint, such as: bert-jax evaluate runs/base")
    if arguments.length is not None and arguments.length < 8:
        raise UsageError(f"--length {arguments.length}: it must be at least 8")
    from bert_jax.pretrained.load import first_run
    from bert_jax.training.evaluate import evaluate_checkpoint
    from bert_jax.workdir import remote_workdir
    from bert_jax.workdir.run_directory import corpus_of

    like, corpus = arguments.like, arguments.corpus
    if len(given) > 1:
        like = like or first_run(given)
    if corpus is None and like is not None:
        # Of a model and the run that went on from it, the run knows the text.
        places = map(corpus_of, map(remote_workdir.directory_of, (like, *given)))
        corpus = next((place for place in places if place is not None), None)
    for checkpoint in given:
        found = evaluate_checkpoint(
            checkpoint,
            corpus,
            like=like,
            length=arguments.length,
            ignore_unexpected=arguments.ignore_unexpected,
        )
        if arguments.json:
            print(json.dumps(found, indent=2))
        else:
            _print(found)


def _print(found: dict[str, Any]) -> None:
    rows = figure_rows(
        found["objective"],
        found,
        entropy=found["unigram_entropy_nats"],
        expected=found["expected"],
    )
    table(f"{found['checkpoint']}, step {found['step']:,}", COLUMNS, rows)
    print(
        f"{found['examples']:,} rows of {found['sequence_length']} tokens ({found['rows']}; "
        f"{100 * found['masked_lm_prob']:g} % masked by {found['mask']}), the validation side of "
        f"corpus {found['corpus_fingerprint'][:12]}"
    )
    if found["rows_of"] is None:
        note(
            "its run is not known, so these rows are BERT's: --like RUN scores it on those of a run"
        )
