"""The verbs `predict` and `embed`: options, calls, and what is said at the end."""

import json
import sys
from pathlib import Path
from typing import Any

from bert_jax.commands.local import local
from bert_jax.errors import UsageError

PREDICT = (
    "Reads a file of the format that the task was trained on; a label in it is not needed and not "
    "read. One JSON object a row."
)
EMBED = (
    "A line of the file is a text. Writes a NumPy archive with 'vectors', float32, a row a text; "
    "with --pooling none a row a token, and 'offsets' says where each text begins."
)


def add_predict_options(parser: Any) -> None:
    parser.add_argument("--input", type=Path, metavar="FILE", help="rows to predict")
    parser.add_argument(
        "--output", type=local, metavar="PATH", help="a file to write (default: stdout)"
    )
    parser.add_argument(
        "--text",
        action="append",
        default=[],
        metavar="COLUMN",
        help="the column of the text, twice for a pair, where the file has other names for them",
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
        help="of squad2: how much better no answer must score than the best one (default: as it "
        "was fine-tuned with)",
    )


def add_embed_options(parser: Any) -> None:
    parser.add_argument("--input", type=Path, required=True, metavar="FILE")
    parser.add_argument("--output", type=local, required=True, metavar="FILE", help="an .npz file")
    parser.add_argument(
        "--layers",
        default="-1",
        metavar="N",
        help="layers to join, from 1 (0 is the embeddings) or from the end; "
        "--layers=-4,-3,-2,-1 joins the last four (default: %(default)s)",
    )
    parser.add_argument(
        "--pooling",
        choices=("mean", "cls", "none"),
        default="mean",
        help="of the tokens of a text (default: %(default)s)",
    )
    parser.add_argument("--length", type=int, default=128, metavar="N", help="tokens of a text")


def run_predict(arguments: Any) -> None:
    if (arguments.input is None) == (arguments.glue is None):
        raise UsageError("name --input FILE, or --glue DIR for a submission")
    if arguments.glue is not None and arguments.output is None:
        raise UsageError("--glue needs --output, a new directory")
    from bert_jax.tasks.predict import Predictor, write_submission

    predictor = Predictor(arguments.checkpoint, null_threshold=arguments.null_threshold)
    if arguments.glue is not None:
        for path in write_submission(predictor, arguments.glue, arguments.output):
            print(f"wrote {path}")
        return
    records = predictor.file(arguments.input, columns=tuple(arguments.text), id_column=arguments.id)
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        arguments.output.write_text(text, encoding="utf-8")
        print(f"wrote {arguments.output}: {len(records):,} rows")


def run_embed(arguments: Any) -> None:
    try:
        layers = [int(part) for part in arguments.layers.split(",")]
    except ValueError:
        raise UsageError(
            f"--layers {arguments.layers}: write numbers, as --layers=-4,-3,-2,-1"
        ) from None
    if arguments.length < 3:
        raise UsageError(f"--length {arguments.length}: it must be at least 3")
    if arguments.output.suffix != ".npz":
        raise UsageError(f"--output {arguments.output}: the name must end in .npz")
    from bert_jax.tasks.embed import embed, save

    arrays = embed(
        arguments.checkpoint,
        arguments.input,
        layers=layers,
        pooling=arguments.pooling,
        length=arguments.length,
    )
    save(arguments.output, arrays)
    count, width = arrays["vectors"].shape
    print(f"wrote {arguments.output}: {count:,} vectors of {width}")
