"""The part of the verb evaluate that scores the vectors of checkpoints."""

import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from bert_jax.cli.options import FromCheckpoint
from bert_jax.cli.output import table
from bert_jax.config.fields import section, setting
from bert_jax.errors import UsageError, install_command
from bert_jax.progress import note

# The package; without it, tables do not have the row.
BM25 = "bm25s"


@section
class VectorScoresOptions(FromCheckpoint):
    """The sets that vectors are scored on."""

    GROUP: ClassVar = ("vectors", "Score vectors of texts in place of held-out text.")
    retrieval: Path | None = setting(
        None,
        "DIR: a retrieval set in the format of BEIR; prints nDCG@10, MRR@10, recall@10 and "
        "recall@100, with BM25 for comparison",
    )
    similarity: str | None = setting(
        None,
        "FILE|ADDRESS: pairs of texts with a similarity score; prints the Spearman correlation of "
        "score and cosine",
    )
    text: Annotated[tuple[str, ...], "--text-column"] = setting(
        (),
        "COLUMN: columns of the two texts of --similarity; give it twice (default: sentence1 and "
        "sentence2)",
    )
    label: Annotated[str, "--label-column"] = setting(
        "score", "COLUMN: column of the score of --similarity"
    )
    dims: int | None = setting(
        None, "N: keep the first N columns of each vector, for a model trained with embedding.dims"
    )


def run(
    options: VectorScoresOptions,
    checkpoints: Sequence[Path | str],
    *,
    length: int | None,
    as_json: bool,
) -> None:
    """Prints a table for each set with a row for each checkpoint, or an object for each row."""
    if len(options.text) not in (0, 2):
        raise UsageError("give --text-column twice, with the columns of the two texts")
    from bert_jax.pretrained.load import load_checkpoint
    from bert_jax.tasks.vector_scores import Retrieval, read_sets, score_vectors

    named = [str(each or "") for each in (options.retrieval, options.similarity)]
    sets = read_sets(*named, text=options.text, label=options.label)
    for name, given in zip(filter(None, named), sets.values(), strict=True):
        found: dict[str, Mapping[str, float]] = {}
        for each in checkpoints:
            checkpoint = load_checkpoint(
                each, allow_missing_heads=True, ignore_unexpected=options.ignore_unexpected
            )
            found[str(each)] = score_vectors(checkpoint, given, length=length, dims=options.dims)
        if isinstance(given, Retrieval) and importlib.util.find_spec(BM25):
            found["BM25"] = given.bm25()
        elif isinstance(given, Retrieval):
            note(f"for BM25 in the table: {install_command(BM25)}")
        _print(name, found, as_json=as_json)


def _print(name: str, found: Mapping[str, Mapping[str, Any]], *, as_json: bool) -> None:
    if as_json:
        for checkpoint, scores in found.items():
            print(json.dumps({"checkpoint": checkpoint, "set": name, **scores}))
        return
    names = [*next(iter(found.values()))]
    rows = [(each, *(f"{scores[n]:.4f}" for n in names)) for each, scores in found.items()]
    table(name, ("", *names), rows)
