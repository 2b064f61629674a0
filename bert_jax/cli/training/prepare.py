"""Turn text into a tokenized corpus.

Reads the sources, trains or loads a tokenizer, splits documents into sentences and writes token ids
with a validation split. An interrupted run resumes; the result does not depend on the number of
workers.

with the tokenizer of a model, to continue its training:
  bert-jax prepare --tokenizer DIR --source texts/ --output-dir corpus
other examples:
  bert-jax prepare --source texts/ --output-dir corpus --vocab-size 8192
  bert-jax prepare --source rows.csv --text-column content --output-dir corpus
more text, trained on together with the first corpus:
  bert-jax prepare --tokenizer corpus --known corpus --source new.txt --output-dir more
on many machines, with Apache Beam:
  bert-jax prepare --runner DataflowRunner --source gs://BUCKET/crawl \
      --output-dir gs://BUCKET/corpus -- --project NAME --region NAME --temp_location gs://BUCKET/tmp
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from bert_jax.cli.options import Address, Positional, Verb
from bert_jax.config.fields import REQUIRED, section, setting
from bert_jax.data.corpus.options import CorpusOptions
from bert_jax.errors import UsageError

INTERRUPTED = "the same command resumes with the parts that are encoded"


@section
class PrepareOptions(CorpusOptions, Verb):
    output: Annotated[Address, "--output-dir"] = setting(
        REQUIRED,
        "DIR: corpus directory to write or to resume; with --runner it may be an address such as "
        "gs://BUCKET/PATH",
    )
    workers: int | None = setting(None, "N: number of processes (default: one per core)")
    runner: str | None = setting(
        None,
        "NAME: run on many machines with this runner of Apache Beam, for example DataflowRunner, "
        "FlinkRunner or DirectRunner (default: run on this machine)",
    )
    runner_options: Positional[tuple[str, ...]] = setting(
        (), "OPTIONS: options of the runner, after `--`"
    )


def run(options: PrepareOptions) -> None:
    from bert_jax.data.corpus.prepare import prepare

    chosen = options.fields_of(CorpusOptions)
    if options.runner is not None:
        from bert_jax.data.cluster.run import prepare_on

        if options.extend:
            raise UsageError("`extend` does not work with `runner`: leave one of them out")
        if options.workers is not None:
            raise UsageError("`workers` does not work with `runner`: name its options after --")
        flags, output = options.runner_options, str(options.output)
        manifest = prepare_on(options.runner, flags, output=output, **chosen)
    elif options.runner_options:
        raise UsageError("options after -- are options of a `runner`: name one")
    elif isinstance(options.output, str):
        raise UsageError(
            f"`output_dir` {options.output} is an address: write to a local directory and copy "
            "it with gcloud storage cp --recursive, or name a `runner`, which writes to addresses"
        )
    else:
        manifest = prepare(output=options.output, workers=options.workers, **chosen).manifest
    print_corpus(options.output, manifest)


_COUNTS = ("documents", "sentences", "tokens", "words")


def print_corpus(place: Path | str, manifest: dict[str, Any]) -> None:
    """Prints the counts and the tokenizer of a corpus, and what it leaves out."""
    from bert_jax.cli.output import table, tell

    rows = []
    for split in ("train", "validation"):
        numbers = [f"{manifest['counts'][split][name]:,}" for name in _COUNTS]
        rows.append((split, *numbers, f"{100 * manifest['unknown_share'][split]:.2f} %"))
    table(f"corpus {place}", ("split", *_COUNTS, "[UNK]"), rows)
    tokenizer = manifest["tokenizer"]
    tell(
        f"tokenizer: {tokenizer['kind']}, {tokenizer['vocab_size']:,} tokens; "
        f"unigram entropy {manifest['unigram_entropy_nats']:.3f} nats; "
        f"fingerprint {manifest['fingerprint'][:16]}"
    )
    for line in _remarks(manifest):
        tell(line)


def _remarks(manifest: dict[str, Any]) -> Iterator[str]:
    """Yields lines about the text that the corpus does not have."""
    if count := manifest["stripped_marks"]:
        is_trained = manifest["options"]["tokenizer"] != "given"
        fix = " (--strip-accents no keeps them)" if is_trained else ", as the vocabulary does"
        yield f"stripped: {count:,} marks of letters{fix}"
    total = manifest["counts"]["total"]
    near, contaminated = (
        sum(manifest[f"{name}_documents"].values()) for name in ("near_duplicate", "contaminated")
    )
    if copies := total["duplicate_documents"]:
        read = copies + total["documents"] + total["empty_documents"] + near + contaminated
        yield f"dropped: {copies:,} of {read:,} documents ({copies / read:.0%}): duplicates"
    if near:
        yield f"dropped: {near:,} documents: near duplicates"
    if contaminated:
        yield f"dropped: {contaminated:,} documents: with text of a test set"
    if files := manifest["skipped_files"]:
        yield f"left out: {len(files):,} bad file(s), which corpus.json names"
    if records := manifest["skipped_records"]:
        yield f"left out: {sum(records.values()):,} bad record(s); corpus.json has them by file"
    if without := manifest["records_without_text"]:
        yield f"skipped: {without:,} record(s) without text"
