"""Mine hard negatives for pairs of texts.

Reads pairs of a query and a positive (a text that answers the query). Finds the candidates that the
model ranks closest to the query, among the positives of the other pairs and --documents. Writes
JSON lines with query, positive and negative_1 to negative_N. A negative is never the positive, the
query or a copy of them.

examples:
  bert-jax mine runs/base --input pairs.jsonl --output-file triples.jsonl
negatives with a cosine at least 5 % below the cosine of the positive:
  bert-jax mine runs/base --input pairs.jsonl --output-file b.jsonl --relative-margin 0.05
"""

import json
from pathlib import Path
from typing import Annotated, Literal

from bert_jax.cli.options import FromCheckpoint, require_place_for, standard_input
from bert_jax.cli.table_format import TableFormat
from bert_jax.config.fields import REQUIRED, section, setting
from bert_jax.errors import UsageError
from bert_jax.files import write_whole


@section
class MineOptions(FromCheckpoint, TableFormat):
    input: str | None = setting(
        None,
        "FILE|ADDRESS: the pairs, a table or JSON lines. The default, -, is standard input if rows "
        "are piped in",
    )
    output: Annotated[Path, "--output-file"] = setting(REQUIRED, "FILE: JSON lines to write")
    text: Annotated[tuple[str, ...], "--text-column"] = setting(
        (),
        "COLUMN: columns of the query and of the positive; give it twice (default: query and "
        "positive)",
    )
    documents: str | None = setting(
        None,
        "FILE|ADDRESS: more candidates, rows with a `text` and an optional `title` (default: the "
        "positives only)",
    )
    negatives: int = setting(3, "N: number of negatives per pair")
    range_min: int = setting(0, "N: skip the N nearest candidates")
    range_max: int | None = setting(
        None,
        "N: use the N nearest candidates only (default: as few as are needed; with a margin 10 "
        "times --negatives)",
    )
    margin: float | None = setting(
        None, "X: the cosine of a negative is at least X below the cosine of the positive"
    )
    relative_margin: float | None = setting(
        None,
        "X: the cosine of a negative is at least the share X of the positive's cosine below it, "
        "such as 0.05",
    )
    on_bad_record: Literal["stop", "skip"] = setting(
        "stop", "what to do with pairs that have a blank text or two equal texts"
    )
    length: Annotated[int | None, "--max-length"] = setting(
        None,
        "N: most tokens per text (default: the length of the directory, or the number of "
        "positions)",
    )


def run(options: MineOptions) -> None:
    columns = options.text or ("query", "positive")
    if len(columns) != 2:
        raise UsageError(
            "give --text-column twice: the column of the query, then the column of the positive"
        )
    require_place_for(output=options.output)
    source = standard_input(options.input)
    if source is None:
        raise UsageError("name --input FILE, or pipe pairs in")
    from bert_jax.data.tasks.retrieval_sets import read_candidates
    from bert_jax.data.tasks.tables import read_rows
    from bert_jax.inference.mine import mine, usable_pairs
    from bert_jax.pretrained.load import load_checkpoint

    rows = read_rows(source, text_columns=columns, label_column=None, reading=options.reading())
    pairs = usable_pairs(rows, skip_bad=options.on_bad_record == "skip")
    documents = [*read_candidates(options.documents)] if options.documents else []
    checkpoint = load_checkpoint(
        options.checkpoint, allow_missing_heads=True, ignore_unexpected=options.ignore_unexpected
    )
    found = mine(
        checkpoint,
        pairs,
        documents,
        negatives=options.negatives,
        range_min=options.range_min,
        range_max=options.range_max,
        margin=options.margin,
        relative_margin=options.relative_margin,
        length=options.length,
    )
    records = [json.dumps(record, ensure_ascii=False) for record in found]
    write_whole(options.output, "\n".join([*records, ""]))
    counts = f"{len(records):,} pairs with {options.negatives} negatives each"
    print(f"wrote {options.output}: {counts}")
