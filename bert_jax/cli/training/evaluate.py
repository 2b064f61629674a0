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

import json
from typing import Annotated, Any

from bert_jax.cli.closing import COLUMNS, figure_rows
from bert_jax.cli.corpora import Corpora, corpora
from bert_jax.cli.inference import vector_scores
from bert_jax.cli.inference.vector_scores import VectorScoresOptions
from bert_jax.cli.options import CHECKPOINT, Address, Positional
from bert_jax.cli.output import table, tell
from bert_jax.config.fields import REQUIRED, section, setting
from bert_jax.errors import UsageError
from bert_jax.progress import note
from bert_jax.registry import OBJECTIVES


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
        return vector_scores.run(options, given, length=length, as_json=options.json)
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
