"""Turn text into a tokenised corpus.

Reads the sources, trains or loads a tokenizer, cuts documents into sentences and writes token ids
with a held-out split. An interrupted run goes on where it stopped; the result does not depend on
the number of workers.

to train on from a model, take its tokenizer:
  bert-jax prepare --tokenizer DIR --source texts/ --output corpus
other examples:
  bert-jax prepare --source texts/ --output corpus --vocab-size 8192
  bert-jax prepare --source rows.csv --text-field content --output corpus
  zcat dump.jsonl.gz | bert-jax prepare --source stdin:.jsonl --output corpus
  bert-jax prepare --append --source new.txt --output corpus
by many machines, with Apache Beam:
  bert-jax prepare --runner DataflowRunner --source gs://BUCKET/crawl --output gs://BUCKET/corpus \
      -- --project NAME --region NAME --temp_location gs://BUCKET/tmp
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from bert_jax.cli.options import Address, Positional, Verb, options
from bert_jax.data.language.sentences import LONGEST_SENTENCE
from bert_jax.errors import UsageError

INTERRUPTED = "the same command goes on with the parts that are encoded, if any are"


@options
class PrepareOptions(Verb):
    source: tuple[str, ...]
    """SRC: a file, folder or glob of .txt (see --document and --paragraph), .jsonl, .csv, .tsv,
    .parquet or .arrow (see --text-field), .warc or .wet, .fasta, .fa, .faa or .fna, also as .gz,
    .bz2, .xz or .zst; the same at an address, such as gs://, s3:// or https://
    ([addresses](data.md#addresses)); hf:NAME is a data set of the hub; - is text
    on standard input, stdin:.jsonl another kind there; `tfds:NAME[/CONFIG][:SPLIT]`; or docs: (the
    Python documentation found on this machine) ([sources](data.md#sources)). Repeat for several"""
    output: Address
    """DIR: the corpus directory to write, go on writing, or find finished; with --runner it may be
    at an address"""
    append: bool = False
    """add the sources to the corpus that is in --output, but for what it has already; its files and
    its options stay ([a corpus that grows](data.md#a-corpus-that-grows))"""
    text_field: str | None = None
    """NAME: the field or column of a record that holds its text; of several, as
    text,content,doc.text, the first that a record has; a dot goes inside of objects and structs
    ([fields](data.md#fields)) (default: text)"""
    document: Literal["blank", "line", "file"] | None = None
    """a document of plain text ends at a blank line, with each line, or with the file
    ([layouts](data.md#layouts)) (default: blank)"""
    paragraph: Literal["line", "blank"] | None = None
    """a paragraph is a line, or the lines between two blank ones, joined: for wrapped text
    (default: line)"""
    encoding: str | None = None
    """NAME: of text without a byte order mark, such as cp1252 (default: UTF-8)"""
    quoting: Literal["double", "none"] | None = None
    """cells of tables that hold a delimiter are in double quotes, or no cell is and quotes are
    letters (default: none for .tsv files, double for .csv files)"""
    skip_bad: Annotated[Literal["record", "file"] | None, {"nargs": "?", "const": "file"}] = None
    """leave out the records, or the files (where neither is named), that cannot be read, and say
    how many (default: stop, and list all files)"""
    skip_bad_limit: float = 0.01
    """X: largest share of records that `--skip-bad record` leaves out"""
    tokenizer: str | None = None
    """KIND|PATH: train 'wordpiece', 'sentencepiece', 'bpe' (byte-level, as RoBERTa's) or
    'characters' ([one token per character](characters.md): DNA, proteins, SMILES), or load a
    vocab.txt, tokenizer.json, vocab.json with merges.txt, .model file or tokenizer directory
    (default: wordpiece)"""
    vocab_size: int | None = None
    """N: sub-words to train, or the most characters (default: 30522)"""
    lowercase: bool | None = None
    """lower-case the text (default: yes when training wordpiece or sentencepiece, no for bpe and
    characters; as the vocabulary is when loading)"""
    strip_accents: Literal["auto", "yes", "no"] | None = None
    """strip accents and other [marks](data.md#marks) from letters; auto does so when training
    wordpiece that lower-cases, unless more than 1 % of the words would lose one; a vocabulary that
    is loaded keeps its own way (default: auto)"""
    language: str | None = None
    """CODE: the language by whose rules [sentences are cut](data.md#sentences), such as de or ja
    (default: en, with a note where the text looks like another one)"""
    validation_fraction: float | None = None
    """X: share of documents held out (default: 0.01)"""
    validation_source: tuple[str, ...] = ()
    """SRC: hold out the text of this source, as --source, and draw nothing; what it shares with the
    training text is dropped there ([a held-out side of your
    own](data.md#a-held-out-side-of-your-own)). Repeat for several"""
    near_duplicates: float | None = None
    """X: drop a document, too, that has this share of its runs of five words in common with one
    that comes before it, such as 0.8 ([near duplicates](data.md#near-duplicates)) (default: only
    equal documents are dropped)"""
    decontaminate: tuple[str, ...] = ()
    """SRC: drop documents that have 13 words in a row of this test set, read as --source, each line
    of plain text a record ([test sets](data.md#test-sets-in-the-text)). Repeat for several"""
    show_dropped: bool = False
    """show how the first documents begin that these two drop"""
    workers: int | None = None
    """N: processes (default: one a core)"""
    runner: str | None = None
    """NAME: have it made by many machines: a [runner of Apache Beam](cluster.md), such as
    DataflowRunner, FlinkRunner, PortableRunner or DirectRunner (default: by this machine)"""
    runner_options: Positional[tuple[str, ...]] = ()
    """OPTIONS: those of the runner, after --"""
    seed: int | None = None
    """N: of the split and of the sample the tokenizer is trained on (default: 0)"""


def run(options: PrepareOptions) -> None:
    from bert_jax.data.corpus.append import append
    from bert_jax.data.corpus.prepare import prepare

    for source in (*options.source, *options.validation_source, *options.decontaminate):
        _refuse_name(source)
    # What was not typed is as usual, or, with --append, as it is in the corpus.
    no_options = ("extend", "append", "source", "output", "runner", "runner_options")
    given = {n: v for n, v in vars(options).items() if n not in no_options and v is not None}
    given["validation_sources"] = given.pop("validation_source")
    if options.strip_accents is not None:
        given["strip_accents"] = {"auto": None, "yes": True, "no": False}[options.strip_accents]
    if options.runner is not None:
        manifest = _by_runner(options.runner, options, given)
    elif options.runner_options:
        raise UsageError("what is after -- is for a `runner`, of which none is named")
    elif isinstance(options.output, str):
        raise UsageError(
            f"{options.output} is an address, and this is written to a local directory; copy it "
            "there afterwards, with gcloud storage cp --recursive, or name a `runner`, which can "
            "write there"
        )
    else:
        made = append if options.append else prepare
        manifest = made(options.source, options.output, **given).manifest
    print_corpus(options.output, manifest)


def print_corpus(place: Path | str, manifest: dict[str, Any]) -> None:
    """Prints the counts and the tokenizer of a corpus, and what it leaves out."""
    from bert_jax.cli.output import table, tell

    shares, tokenizer = manifest.get("unknown_share", {}), manifest["tokenizer"]
    what = "tokens" if tokenizer["kind"] == "characters" else "sub-words"
    # Where no spaces are between words, white space separates none.
    by_characters = manifest.get("characters")
    last = "characters" if by_characters else "words"
    rows = []
    for split in ("train", "validation"):
        counts = manifest["counts"][split]
        size = by_characters[split] if by_characters else counts["words"]
        numbers = [*(counts[name] for name in _COUNTS), size]
        share = f"{100 * shares.get(split, 0):.2f} %"
        rows.append((split, *(f"{number:,}" for number in numbers), share))
    table(f"corpus {place}", ("split", *_COUNTS, last, "[UNK]"), rows)
    tell(
        f"tokenizer: {tokenizer['kind']}, {tokenizer['vocab_size']:,} {what}; "
        f"unigram entropy {manifest['unigram_entropy_nats']:.3f} nats; "
        f"fingerprint {manifest['fingerprint'][:16]}"
    )
    is_trained = manifest["options"]["tokenizer"] != "given"
    for line in _lost(manifest.get("lost", {}), is_trained=is_trained):
        tell(line)
    for line in _remarks(manifest):
        tell(line)


def _by_runner(runner: str, options: PrepareOptions, given: dict[str, Any]) -> dict[str, Any]:
    """Returns the manifest of the corpus that a runner makes."""
    from bert_jax.data.cluster.run import prepare_on

    if options.append:
        raise UsageError("`append` is done by one machine: leave it or `runner` out")
    if options.extend:
        raise UsageError("`extend` is not executed by other machines: leave it or `runner` out")
    output = str(options.output)
    return prepare_on(runner, options.runner_options, options.source, output, **given)


def _remarks(manifest: dict[str, Any]) -> Iterator[str]:
    """Yields lines about the text that the corpus does not contain."""
    for added in manifest.get("appended", ())[-1:]:
        train, held_out = added["documents"].values()
        yield (
            f"its last addition: {train + held_out:,} documents, {held_out:,} of them held out, "
            f"from {', '.join(added['sources'])}"
        )
    total = manifest["counts"]["total"]
    copies = total["duplicate_documents"]
    others = {
        what: sum(manifest[name].values())
        for name, what in (
            ("near_duplicate_documents", "near duplicates"),
            ("contaminated_documents", "with text of a test set"),
        )
        if name in manifest
    }
    if copies:
        seen = copies + total["documents"] + total["empty_documents"] + sum(others.values())
        yield f"dropped: {copies:,} of {seen:,} documents ({copies / seen:.0%}): duplicates"
    for what, count in others.items():
        yield f"dropped: {count:,} documents: {what}"
    if skipped := manifest.get("skipped_files"):
        yield f"left out: {len(skipped):,} bad file(s), which corpus.json names"
    if records := manifest.get("skipped_records"):
        yield f"left out: {sum(records.values()):,} bad record(s); corpus.json has them by file"
    if without := manifest.get("records_without_text"):
        yield f"skipped: {without:,} record(s) without text"


def _refuse_name(source: str) -> None:
    """Raises UsageError, with what to write, for the bare name of a data set of the hub."""
    from bert_jax.data.sources.files import kind_of

    if Path(source).exists() or kind_of(source) is not None:
        return
    is_name = re.fullmatch(r"[\w.-]+/[\w.-]+", source) and not Path(source).parent.exists()
    if is_name or source.startswith("datasets:"):
        name = source.removeprefix("datasets:").strip("/")
        raise UsageError(f"{source}: there is no such folder; of the hub, write hf:{name}")


def _lost(lost: dict[str, int], *, is_trained: bool) -> Iterator[str]:
    """Yields a line for each thing that the text lost."""
    if count := lost.get("unknown_characters"):
        yield f"under [UNK]: {count:,} characters, {count / lost['of_characters']:.2%} of the text"
    if count := lost.get("marks"):
        remedy = " (--strip-accents no keeps them)" if is_trained else ", as the vocabulary does"
        yield f"stripped: {count:,} marks of letters{remedy}"
    if count := lost.get("cut_sentences"):
        yield f"cut: {count:,} sentences of more than {LONGEST_SENTENCE:,} characters"


_COUNTS = ("documents", "sentences", "tokens")
