"""Predict the masked tokens of a text.

example:
  bert-jax fill-mask runs/base "Paris is the [MASK] of France."
"""

import dataclasses
import json
import sys
from collections.abc import Iterator

from bert_jax.cli.options import FromCheckpoint, Positional
from bert_jax.cli.output import table
from bert_jax.config.fields import section, setting
from bert_jax.errors import UsageError


@section
class FillMaskOptions(FromCheckpoint):
    text: Positional[tuple[str, ...]] = setting(
        (),
        "TEXT: one or more texts with a mask token (default: one text per line of standard input)",
    )
    top: int = setting(5, "N: number of candidates per mask")
    json: bool = setting(False, "print one JSON object per text with the candidates of each mask")


def run(options: FillMaskOptions) -> None:
    is_piped = options.text == ("-",) or (not options.text and not sys.stdin.isatty())
    if not options.text and not is_piped:
        raise UsageError('name a text, such as "Paris is the [MASK] of France.", or pipe some in')
    from bert_jax.api.model import load

    model = load(
        options.checkpoint,
        allow_missing_heads=False,
        ignore_unexpected=options.ignore_unexpected,
    )
    for where, text in _lines() if is_piped else (("", text) for text in options.text):
        try:
            places = model.fill_mask(text, top=options.top)
        except UsageError as error:
            raise UsageError(f"{where}{error}") from error
        if options.json:
            masks = [[dataclasses.asdict(c) for c in candidates] for candidates in places]
            print(json.dumps({"text": text, "masks": masks}, ensure_ascii=False), flush=is_piped)
            continue
        for number, candidates in enumerate(places):
            table(
                text if number == 0 else f"{text} (mask {number + 1})",
                ("probability", "token", "text"),
                [(f"{c.probability:.3f}", c.token, c.text) for c in candidates],
            )


def _lines() -> Iterator[tuple[str, str]]:
    """Yields the lines of standard input that have text, each with the start of an error message.

    Raises UsageError if no line has text.
    """
    has_text = False
    for number, data in enumerate(sys.stdin.buffer, 1):
        try:
            line = data.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(
                f"standard input, line {number}, is not UTF-8 text: {error}; if Windows wrote it "
                "in a western language, `iconv -f cp1252 -t utf-8` converts it"
            ) from error
        if line.strip():
            has_text = True
            yield f"standard input, line {number}: ", line.strip()
    if not has_text:
        raise UsageError("standard input has no text; write one with a [MASK] on each line")
