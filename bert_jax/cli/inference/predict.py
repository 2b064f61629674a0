"""The verb `predict`: options, call, and what is said at the end."""

import json
import sys
from pathlib import Path
from typing import Any

from bert_jax.cli.options import (
    add_checkpoint,
    add_reading,
    local,
    reading,
    require_place_for,
    require_place_for_directory,
    standard_input,
)
from bert_jax.errors import UsageError
from bert_jax.progress import ticking

SUMMARY = "say what a fine-tuned model makes of rows"
DETAILS = (
    "Reads a file of the format that the task was trained on; a label in it is not needed and not "
    "read. One JSON object a row, on stdout or in --output."
)


_FINE_TUNED = "a workdir of bert-jax finetune, or one step of it (DIR/checkpoints/STEP)"


def add_options(parser: Any) -> None:
    add_checkpoint(parser, _FINE_TUNED)
    parser.add_argument(
        "--input",
        type=Path,
        metavar="FILE",
        help="the rows to predict, in the task's format, or a text a line (a pair with a tab "
        "between). - reads standard input; so does leaving it out where rows are piped in",
    )
    add_reading(parser)
    parser.add_argument(
        "--output", type=local, metavar="PATH", help="a file to write (default: stdout)"
    )
    parser.add_argument(
        "--text",
        action="append",
        default=[],
        metavar="COLUMN",
        help="the column that holds the text, where this file calls it otherwise; twice for a pair",
    )
    parser.add_argument(
        "--id",
        metavar="COLUMN",
        help="the column that names a row of a table (default: its number, from 0)",
    )
    parser.add_argument(
        "--glue",
        type=Path,
        metavar="DIR",
        help="instead of --input: a folder of GLUE's files, whose test rows become the files of a "
        "submission in --output",
    )
    parser.add_argument(
        "--null-threshold",
        type=float,
        metavar="X",
        help="for squad2: how much better no answer must score than the best one (default: as it "
        "was fine-tuned with)",
    )


def run(arguments: Any) -> None:
    source = standard_input(arguments.input) if arguments.glue is None else arguments.input
    if (source is None) == (arguments.glue is None):
        raise UsageError("name --input FILE, or --glue DIR for a submission")
    if arguments.glue is not None and arguments.output is None:
        raise UsageError("--glue needs --output, a new directory")
    is_file = arguments.glue is None
    (require_place_for if is_file else require_place_for_directory)(output=arguments.output)
    from bert_jax.tasks.predict import Predictor, write_submission

    predictor = Predictor(arguments.checkpoint, null_threshold=arguments.null_threshold)
    if arguments.glue is not None:
        for path in write_submission(predictor, arguments.glue, arguments.output):
            print(f"wrote {path}")
        return
    assert source is not None
    with ticking("predicting"):
        records = predictor.file(
            source,
            columns=tuple(arguments.text),
            id_column=arguments.id,
            reading=reading(arguments),
        )
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        arguments.output.write_text(text, encoding="utf-8")
        print(f"wrote {arguments.output}: {len(records):,} rows")
