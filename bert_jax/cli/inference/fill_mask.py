"""The verb `fill-mask`: candidates for masked words."""

import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import Any

from bert_jax.cli.options import add_checkpoint, add_json
from bert_jax.cli.output import table
from bert_jax.errors import UsageError

SUMMARY = "guess the masked words of a text"
DETAILS = "Reads a text a line from standard input where it is - or none is named."


def add_options(parser: Any) -> None:
    add_checkpoint(parser)
    parser.add_argument(
        "--top", type=int, default=5, metavar="N", help="candidates a mask (default: %(default)s)"
    )
    add_json(parser, "print an object a text, with a list of candidates for each mask")
    parser.add_argument(
        "text", nargs="*", default=[], help='such as "Paris is the [MASK] of France."'
    )


def run(arguments: Any) -> None:
    is_piped = arguments.text == ["-"] or (not arguments.text and not sys.stdin.isatty())
    if not arguments.text and not is_piped:
        raise UsageError('name a text, such as "Paris is the [MASK] of France.", or pipe some in')
    from bert_jax.api.model import load

    model = load(
        arguments.checkpoint,
        allow_missing_heads=False,
        ignore_unexpected=arguments.ignore_unexpected,
    )
    for text in _lines() if is_piped else arguments.text:
        places = model.fill_mask(text, top=arguments.top)
        if arguments.json:
            masks = [[dataclasses.asdict(c) for c in candidates] for candidates in places]
            print(json.dumps({"text": text, "masks": masks}, ensure_ascii=False), flush=is_piped)
            continue
        for number, candidates in enumerate(places):
            table(
                text if number == 0 else f"{text} (mask {number + 1})",
                ("probability", "token", "text"),
                [(f"{c.probability:.3f}", c.token, c.text) for c in candidates],
            )


def _lines() -> Iterator[str]:
    """Yields the lines of standard input that have text. Raises UsageError if none has."""
    has_text = False
    for number, data in enumerate(sys.stdin.buffer, 1):
        try:
            line = data.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(
                f"standard input, line {number}, is not UTF-8 text: {error}; convert it"
            ) from error
        if line.strip():
            has_text = True
            yield line.strip()
    if not has_text:
        raise UsageError("standard input has no text; write one with a [MASK] on each line")
