"""Run a fine-tuned model on new examples.

Reads a file in the format of the task's training data and ignores labels in it. Writes one JSON
object per example, to stdout or to --output-file.

example:
  bert-jax predict runs/sst2 --input reviews.txt --output-file predicted.jsonl
"""

import json
import sys
from pathlib import Path
from typing import Annotated

from bert_jax.cli.options import (
    Address,
    Positional,
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
    checkpoint: Positional[Address] = setting(
        REQUIRED,
        "CHECKPOINT: a workdir of bert-jax finetune, or one step of it (DIR/checkpoints/STEP)",
    )
    input: str | None = setting(
        None,
        "FILE|ADDRESS: examples in the format of the task, or one text per line (two texts with a "
        "tab between). The default, -, is standard input if examples are piped in",
    )
    output: Annotated[Path | None, "--output-file"] = setting(
        None, "FILE: JSON lines to write (default: stdout)"
    )
    text: Annotated[tuple[str, ...], "--text-column"] = setting(
        (),
        "COLUMN: column of the text, if the name differs from the training data; twice for pairs",
    )
    id: Annotated[str | None, "--id-column"] = setting(
        None, "COLUMN: column of the example's name (default: its number, from 0)"
    )
    glue: Annotated[Path | None, "--data"] = setting(
        None,
        "DIR: a folder of GLUE files in place of --input: writes the files of a GLUE submission "
        "for its test split to --output-dir",
    )
    output_dir: Path | None = setting(None, "DIR: new directory for the submission of --data")
    null_threshold: float | None = setting(
        None,
        "X: score margin by which no answer must exceed the best answer, for squad2 (default: the "
        "value of the fine-tuning)",
    )


def run(options: PredictOptions) -> None:
    source = standard_input(options.input) if options.glue is None else options.input
    if (source is None) == (options.glue is None):
        raise UsageError("name --input FILE, or --data DIR for a GLUE submission")
    if (options.glue is None) != (options.output_dir is None):
        raise UsageError("a GLUE submission needs both --data DIR and --output-dir DIR")
    require_place_for(is_directory=True, output_dir=options.output_dir)
    require_place_for(output=options.output)
    from bert_jax.tasks.predict import Predictor, write_submission

    predictor = Predictor(options.checkpoint, null_threshold=options.null_threshold)
    if options.glue is not None and options.output_dir is not None:
        for path in write_submission(predictor, options.glue, options.output_dir):
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
        print(f"wrote {options.output}: {len(records):,} examples")
