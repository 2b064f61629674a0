"""Score checkpoints on held-out text, or their vectors on search and similarity.

The examples and masks are fixed, so the scores are the same on any number of devices. By default a
checkpoint is scored on the validation examples of its run. Several checkpoints are scored on the
same examples: those of --eval-set-from WORKDIR, or of the first workdir in the list. --retrieval
and --similarity score the vectors of texts.

examples:
  bert-jax evaluate runs/base
before and after, on the examples of runs/adapted:
  bert-jax evaluate bert-base-uncased runs/adapted
a retrieval set in the format of BEIR, with BM25 for comparison:
  bert-jax evaluate runs/embedder --retrieval scifact
"""

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from bert_jax.cli.closing import COLUMNS, figure_rows
from bert_jax.cli.corpora import Corpora, corpora
from bert_jax.cli.options import CHECKPOINT, Address, FromCheckpoint, Positional
from bert_jax.cli.output import table, tell
from bert_jax.config.fields import REQUIRED, section, setting
from bert_jax.errors import UsageError, install_command
from bert_jax.progress import note
from bert_jax.registry import OBJECTIVES

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


@section
class EvaluateOptions(VectorScoresOptions):
    checkpoint: Positional[tuple[Address, ...]] = setting(REQUIRED, f"CHECKPOINT: {CHECKPOINT}")
    corpus: Corpora = setting(
        (),
        "DIR|NAME=DIR: a corpus with the checkpoint's tokenizer; repeat for several (default: the "
        "corpus of the run)",
    )
    like: Annotated[Address | None, "--eval-set-from"] = setting(
        None, "WORKDIR: use the validation examples of this run"
    )
    length: Annotated[int | None, "--max-length"] = setting(
        None,
        "N: tokens per sequence (default: the length of the last phase, or of the directory)",
    )
    json: bool = setting(False, "print one JSON object per checkpoint in place of tables")


def run(options: EvaluateOptions) -> None:
    given, length = options.checkpoint, options.length
    if length is not None and length < 8:
        raise UsageError(f"--max-length {length}: it must be at least 8")
    if options.text and options.similarity is None:
        raise UsageError("--text-column names columns of the file of --similarity: name the file")
    if options.retrieval is not None or options.similarity is not None:
        if options.corpus or options.like is not None:
            raise UsageError(
                "--corpus and --eval-set-from do not go with --retrieval or --similarity"
            )
        return _score_vectors(options)
    if options.dims is not None:
        raise UsageError("--dims needs --retrieval or --similarity")
    from bert_jax.pretrained.load import run_config, run_of
    from bert_jax.training.evaluate import evaluate_checkpoint, trained_on

    like, corpus = options.like, corpora(options.corpus)
    if len(given) > 1:
        runs = (each for each in given if run_config(each) is not None)
        like = like or next(runs, None)
    if corpus is None and like is not None:
        # A foreign model has no corpus; a run that was initialized from it has one.
        places = (trained_on(run_of(each)[0], each) for each in (like, *given))
        corpus = next((place for place in places if place is not None), None)
    for checkpoint in given:
        found = evaluate_checkpoint(
            checkpoint,
            corpus,
            like=like,
            length=length,
            ignore_unexpected=options.ignore_unexpected,
        )
        if options.json:
            print(json.dumps(found, indent=2))
        else:
            _print(found)


def _print(found: dict[str, Any]) -> None:
    rows = figure_rows(found["objective"], found, entropy=found["unigram_entropy_nats"])
    table(f"{found['checkpoint']}, step {found['step']:,}", COLUMNS, rows)
    tell(
        f"{found['examples']:,} rows of {found['sequence_length']} tokens ({found['rows']}; "
        f"{100 * found['masked_lm_prob']:g} % masked by {found['mask']}), the validation split of "
        f"corpus {found['corpus_fingerprint'][:12]}"
    )
    if "sources" in found:
        shown = OBJECTIVES[found["objective"]].figures
        table(
            "by source",
            ("source", *(figure.heading for figure in shown), "unigram entropy"),
            [
                (
                    name,
                    *(figure.shown(values[figure.name]) for figure in shown),
                    f"{values['unigram_entropy_nats']:.3f}",
                )
                for name, values in found["sources"].items()
            ],
        )
    if found["rows_of"] is None:
        note(
            "the run that trained the model is unknown, so the examples follow the recipe of BERT; "
            "--eval-set-from WORKDIR uses the examples of a run"
        )


def _score_vectors(options: EvaluateOptions) -> None:
    """Prints a table for each set with a row for each checkpoint, or an object for each row."""
    from bert_jax.inference.retrieve import text_vectors
    from bert_jax.pretrained.load import load_checkpoint
    from bert_jax.tasks.vector_scores import Retrieval, read_sets

    named = [str(each or "") for each in (options.retrieval, options.similarity)]
    sets = read_sets(*named, text=options.text, label=options.label)
    for name, given in zip(filter(None, named), sets.values(), strict=True):
        found: dict[str, Mapping[str, float]] = {}
        for each in options.checkpoint:
            checkpoint = load_checkpoint(
                each, allow_missing_heads=True, ignore_unexpected=options.ignore_unexpected
            )
            vectors = text_vectors(
                checkpoint, *given.texts, length=options.length, dims=options.dims
            )
            found[str(each)] = given.score(*vectors, mesh=checkpoint.mesh)
        if isinstance(given, Retrieval) and importlib.util.find_spec(BM25):
            found["BM25"] = given.bm25()
        elif isinstance(given, Retrieval):
            note(f"for BM25 in the table: {install_command(BM25)}")
        if options.json:
            for each, scores in found.items():
                print(json.dumps({"checkpoint": each, "set": name, **scores}))
            continue
        names = [*next(iter(found.values()))]
        rows = [(each, *(f"{scores[n]:.4f}" for n in names)) for each, scores in found.items()]
        table(name, ("", *names), rows)
