"""The verb `embed`: options, call, and what is said at the end."""

import argparse
import json
from pathlib import Path
from typing import Any

from bert_jax.cli.options import add_checkpoint, add_json, local, require_place_for, standard_input
from bert_jax.errors import UsageError
from bert_jax.progress import note

SUMMARY = "turn texts into vectors"
DETAILS = (
    "A line of the input is a text. Writes a NumPy archive with 'vectors', float32, a row a text; "
    "with --pooling none a row a token, and 'offsets' says where each text begins. Of a directory "
    "of sentence-transformers the length, the pooling and what follows it are its own."
)
# As `interchange.sentence_transformers` has them: that imports NumPy, which `--help` must not.
_POOLINGS = ("mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", "none")


def add_options(parser: Any) -> None:
    add_checkpoint(parser)
    parser.add_argument(
        "--input",
        type=Path,
        metavar="FILE",
        help="texts; - reads standard input, as no --input does where texts are piped in",
    )
    parser.add_argument("--output", type=local, metavar="FILE", help="an .npz file")
    add_json(
        parser,
        "print an object a text, with its line, counted from 1, and its vector or, with "
        "--pooling none, those of its tokens",
    )
    parser.add_argument(
        "--layers",
        default="-1",
        metavar="N",
        help="layers to join, from 1 (0 is the embeddings) or from the end; "
        "--layers=-4,-3,-2,-1 joins the last four (default: %(default)s)",
    )
    parser.add_argument(
        "--pooling",
        choices=_POOLINGS,
        help="of the tokens of a text; instead of what a directory of sentence-transformers has, "
        "and of what follows it there (default: as the directory says, else mean)",
    )
    parser.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="make vectors of length 1 (default: as the directory says)",
    )
    parser.add_argument(
        "--length",
        type=int,
        metavar="N",
        help="tokens of a text, [CLS] and [SEP] included (default: as many as the directory says, "
        "else as the model has positions for)",
    )


def run(arguments: Any) -> None:
    try:
        layers = [int(part) for part in arguments.layers.split(",")]
    except ValueError:
        raise UsageError(
            f"--layers {arguments.layers}: write numbers, as --layers=-4,-3,-2,-1"
        ) from None
    if arguments.length is not None and arguments.length < 3:
        raise UsageError(f"--length {arguments.length}: it must be at least 3")
    if arguments.output is None and not arguments.json:
        raise UsageError("name --output FILE.npz, or print the vectors with --json")
    if arguments.output is not None and arguments.output.suffix != ".npz":
        raise UsageError(f"--output {arguments.output}: the name must end in .npz")
    require_place_for(output=arguments.output)
    source = standard_input(arguments.input)
    if source is None:
        raise UsageError("name --input FILE, or pipe texts in")
    from bert_jax.inference.embed import embed, save

    arrays = embed(
        arguments.checkpoint,
        source,
        layers=layers,
        pooling=arguments.pooling,
        length=arguments.length,
        normalize=arguments.normalize,
        ignore_unexpected=arguments.ignore_unexpected,
    )
    if arguments.json:
        _print(arrays)
    if arguments.output is None:
        return
    blank = int(arrays.pop("blank_lines"))  # for the eye: the file has the numbers of the others
    save(arguments.output, arrays)
    count, width = arrays["vectors"].shape
    left_out = f"; {blank:,} blank lines have none ('lines' has the numbers of the others)"
    said = f"wrote {arguments.output}: {count:,} vectors of {width}" + left_out * bool(blank)
    if arguments.json:
        note(said)  # stdout has the objects
    else:
        print(said)


def _print(arrays: Any) -> None:
    vectors, lines = arrays["vectors"].tolist(), arrays["lines"].tolist()
    offsets = arrays["offsets"].tolist() if "offsets" in arrays else None
    for i, line in enumerate(lines):
        # Of tokens a list of vectors.
        found = vectors[i] if offsets is None else vectors[offsets[i] : offsets[i + 1]]
        print(json.dumps({"line": line, "vector" if offsets is None else "vectors": found}))
