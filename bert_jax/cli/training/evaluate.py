"""Score checkpoints on held-out text, or their vectors on search and similarity.

Fixed examples with fixed masks: the same numbers on any number of devices. By default
a checkpoint is scored on the rows of its run. Several checkpoints are scored on the same rows: the
rows of --like WORKDIR, or of the first workdir in the list. --retrieval and --similarity
score the vectors of the texts of a file.

examples:
  bert-jax evaluate runs/base
before and after, on the rows of runs/adapted:
  bert-jax evaluate bert-base-uncased runs/adapted
search in a set in the form of BEIR, with BM25 for comparison:
  bert-jax evaluate runs/embedder --retrieval scifact
"""

import json
from typing import Any

from bert_jax.cli.closing import COLUMNS, figure_rows
from bert_jax.cli.corpora import Corpora, corpora
from bert_jax.cli.inference import vector_scores
from bert_jax.cli.inference.vector_scores import VectorScoresOptions
from bert_jax.cli.options import Address, Positional
from bert_jax.cli.output import table, tell
from bert_jax.config.fields import section, setting
from bert_jax.errors import UsageError
from bert_jax.progress import note
from bert_jax.registry import OBJECTIVES


@section
class EvaluateOptions(VectorScoresOptions):
    checkpoints: Positional[tuple[Address, ...]] = setting(
        (),
        "CHECKPOINT: a workdir (its newest step), one step of it (DIR/checkpoints/STEP), a "
        "Hugging Face directory, or a TF1 checkpoint; a workdir may be gs://BUCKET/PATH",
    )
    checkpoint: tuple[Address, ...] = setting((), "DIR: the same, as an option")
    corpus: Corpora = setting(
        (),
        "DIR|NAME=DIR: a corpus made with the checkpoint's tokenizer; repeat for "
        "[several](data.md#several-corpora) (default: the corpus of the run)",
    )
    like: Address | None = setting(None, "WORKDIR: score on the rows of this run")
    length: int | None = setting(
        None,
        "N: tokens of a row, or most tokens of a text (default: as the run's last phase, or the "
        "length of the directory)",
    )
    json: bool = setting(False, "print an object per checkpoint in place of the tables")


def run(options: EvaluateOptions) -> None:
    given = [*options.checkpoints, *options.checkpoint]
    if not given:
        raise UsageError("name a checkpoint, such as: bert-jax evaluate runs/base")
    if options.length is not None and options.length < 8:
        raise UsageError(f"--length {options.length}: it must be at least 8")
    if options.text and options.similarity is None:
        raise UsageError("--text names columns of the file of --similarity: name the file")
    if options.retrieval is not None or options.similarity is not None:
        if options.corpus or options.like is not None:
            raise UsageError("--corpus and --like are for held-out text: leave them out")
        return vector_scores.run(options, given, length=options.length, as_json=options.json)
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
            length=options.length,
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
        f"{100 * found['masked_lm_prob']:g} % masked by {found['mask']}), the validation side of "
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
            "the run that trained the model is unknown, so the rows are those of BERT's recipe; "
            "--like WORKDIR scores it on the rows of a run"
        )
