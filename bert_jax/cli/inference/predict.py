"""Predict rows with a fine-tuned model.

Reads a file of the format that the task was trained on; labels in it are not read. Writes one JSON
object per row, to stdout or to --output.
"""

import json
import sys
from pathlib import Path

from bert_jax.cli.options import (
    Address,
    Local,
    require_place_for,
    standard_input,
)
from bert_jax.cli.table_format import TableFormat
from bert_jax.config.fields import REQUIRED, section, setting
from bert_jax.errors import UsageError
from bert_jax.files import write_whole
from bert_jax.progress import ticking


@section
class PredictOptions(TableFormat):
    checkpoint: Address = setting(
        REQUIRED, "DIR: a workdir of bert-jax finetune, or one step of it (DIR/checkpoints/STEP)"
    )
    input: str | None = setting(
        None,
        "FILE|ADDRESS: the rows to predict, in the task's format, or a text a line (a pair with"
        " a tab between). - reads standard input; so does leaving it out where rows are piped "
        "in",
    )
    output: Local | None = setting(
        None, "PATH: a file to write, with --glue a new directory (default: stdout)"
    )
    text: tuple[str, ...] = setting(
        (),
        "COLUMN: the column that holds the text, where this file calls it otherwise; twice for "
        "a pair",
    )
    id: str | None = setting(
        None, "COLUMN: the column that names a row of a table (default: its number, from 0)"
    )
    glue: Path | None = setting(
        None,
        "DIR: a folder of GLUE files in place of --input; the test rows become the files of a"
        " submission in --output",
    )
    null_threshold: float | None = setting(
        None,
        "X: for squad2: how much better no answer must score than the best one (default: as it "
        "was fine-tuned with)",
    )


def run(options: PredictOptions) -> None:
    source = standard_input(options.input) if options.glue is None else options.input
    if (source is None) == (options.glue is None):
        raise UsageError("name --input FILE, or --glue DIR for a submission")
    if options.glue is not None and options.output is None:
        raise UsageError("--glue needs --output, a new directory")
    require_place_for(is_directory=options.glue is not None, output=options.output)
    from bert_jax.tasks.predict import Predictor, write_submission

    predictor = Predictor(options.checkpoint, null_threshold=options.null_threshold)
    if options.glue is not None and options.output is not None:
        for path in write_submission(predictor, options.glue, options.output):
            print(f"wrote {path}")
        return
    assert source is not None
    with ticking("predicting"):
        records = predictor.file(
            str(source),
            columns=options.text,
            id_column=options.id,
            reading=options.reading(),
        )
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    if options.output is None:
        sys.stdout.write(text)
    else:
        write_whole(options.output, text)
        print(f"wrote {options.output}: {len(records):,} rows")
