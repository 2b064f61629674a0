"""Turn texts into vectors.

Reads one text per line. Writes a NumPy archive with 'vectors', float32, one row per text. With
--pooling none it has one row per token, and 'offsets' has the first row of each text. A
sentence-transformers directory sets the length, the pooling and the modules after it.

example:
  bert-jax embed my-encoder --input texts.txt --output-file vectors.npz
"""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from bert_jax.cli.options import (
    FromCheckpoint,
    require_place_for,
    standard_input,
)
from bert_jax.config.fields import section, setting
from bert_jax.errors import UsageError
from bert_jax.progress import note

# As in `interchange.sentence_transformers`, which imports NumPy: `--help` must not.
_Pooling = Literal["mean", "cls", "max", "lasttoken", "none"]


@section
class EmbedOptions(FromCheckpoint):
    input: str | None = setting(
        None,
        "FILE|ADDRESS: texts, one per line. The default, -, is standard input if texts are piped "
        "in",
    )
    output: Annotated[Path | None, "--output-file"] = setting(
        None, "FILE: .npz file to write; required without --json"
    )
    json: bool = setting(
        False,
        "print one JSON object per text with its line number, from 1, and its vector, or with "
        "`--pooling none` the vectors of its tokens",
    )
    layers: str = setting(
        "-1",
        "N: layers to concatenate, counted from 1 (0 is the embeddings) or from the end; "
        "`--layers=-4,-3,-2,-1` concatenates the last four",
    )
    pooling: _Pooling | None = setting(
        None,
        "how token vectors become one vector per text; replaces the modules of a "
        "sentence-transformers directory (default: the pooling of the directory, or mean)",
    )
    normalize: bool | None = setting(
        None, "scale vectors to length 1 (default: the setting of the directory)"
    )
    length: Annotated[int | None, "--max-length"] = setting(
        None,
        "N: most tokens per text, with [CLS] and [SEP] (default: the length of the directory, or "
        "the number of positions)",
    )
    prompt: str | None = setting(
        None, "NAME: prompt of the model to put before every text: query or document"
    )
    dims: int | None = setting(
        None, "N: keep the first N columns of each vector, for a model trained with embedding.dims"
    )


def run(options: EmbedOptions) -> None:
    try:
        layers = [int(part) for part in options.layers.split(",")]
    except ValueError:
        raise UsageError(
            f"--layers {options.layers}: write numbers, as --layers=-4,-3,-2,-1"
        ) from None
    if options.output is None and not options.json:
        raise UsageError("name --output-file FILE.npz, or print the vectors with --json")
    if options.output is not None and options.output.suffix != ".npz":
        raise UsageError(f"--output-file {options.output}: the name must end in .npz")
    require_place_for(output=options.output)
    source = standard_input(options.input)
    if source is None:
        raise UsageError("name --input FILE, or pipe texts in")
    from bert_jax.inference.embed import embed, save

    arrays = embed(
        options.checkpoint,
        source,
        layers=layers,
        pooling=options.pooling,
        length=options.length,
        normalize=options.normalize,
        prompt=options.prompt,
        dims=options.dims,
        ignore_unexpected=options.ignore_unexpected,
    )
    if options.json:
        _print(arrays)
    if options.output is None:
        return
    blank = int(arrays.pop("blank_lines"))  # the file has the numbers of the other lines
    save(options.output, arrays)
    count, width = arrays["vectors"].shape
    left_out = f"; {blank:,} blank lines have none ('lines' has the numbers of the others)"
    summary = f"wrote {options.output}: {count:,} vectors of {width}" + left_out * bool(blank)
    if options.json:
        note(summary)  # stdout has the objects
    else:
        print(summary)


def _print(arrays: Any) -> None:
    vectors, lines = arrays["vectors"].tolist(), arrays["lines"].tolist()
    offsets = arrays["offsets"].tolist() if "offsets" in arrays else None
    for i, line in enumerate(lines):
        # With tokens, a list of vectors per line.
        found = vectors[i] if offsets is None else vectors[offsets[i] : offsets[i + 1]]
        print(json.dumps({"line": line, "vector" if offsets is None else "vectors": found}))
