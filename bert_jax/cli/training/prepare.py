"""The verb `prepare`: options, call, and what is said at the end."""

import argparse
import shutil
import textwrap
from collections.abc import Iterator
from typing import Any

from bert_jax.cli.options import local
from bert_jax.data.language.sentences import LONGEST_SENTENCE
from bert_jax.errors import UsageError

SUMMARY = "turn text into a tokenised corpus"
DETAILS = (
    "Reads the sources, trains or loads a tokenizer, cuts documents into sentences and writes "
    "token ids with a held-out split. An interrupted run goes on where it stopped; the result "
    "does not depend on the number of workers."
)
INTERRUPTED = "the parts that are encoded are kept, and the same command goes on with them"
# To go on from a model comes first: with another vocabulary its vectors mean other words.
_EXAMPLES = """\
to train on from a model, take its tokenizer:
  bert-jax prepare --tokenizer DIR --source texts/ --output corpus
other examples:
  bert-jax prepare --source texts/ --output corpus --vocab-size 8192
  bert-jax prepare --source rows.csv --text-field content --output corpus
  zcat dump.jsonl.gz | bert-jax prepare --source stdin:.jsonl --output corpus
"""


def add_options(parser: Any) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    width = shutil.get_terminal_size().columns - 2
    parser.description = textwrap.fill(parser.description, width)
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "--source",
        action="append",
        required=True,
        metavar="SRC",
        help="a file, folder or glob of .txt (one paragraph a line, a blank line between "
        "documents), .jsonl, .csv, .tsv or .parquet (see --text-field), also as .gz, .bz2, .xz or "
        ".zst; - is text on standard input, stdin:.jsonl another kind there; "
        "tfds:NAME[/CONFIG][:SPLIT]; or docs: (the Python documentation found on this machine). "
        "Repeat for several",
    )
    parser.add_argument("--output", type=local, required=True, metavar="DIR")
    parser.add_argument(
        "--text-field",
        default="text",
        metavar="NAME",
        help="the field or column of a record that holds its text (default: %(default)s)",
    )
    parser.add_argument(
        "--encoding",
        metavar="NAME",
        help="of text without a byte order mark, such as cp1252 (default: UTF-8)",
    )
    parser.add_argument(
        "--skip-bad",
        action="store_true",
        help="leave out the files that cannot be read, and say how many (default: stop, and list "
        "them all)",
    )
    parser.add_argument(
        "--tokenizer",
        default="wordpiece",
        metavar="KIND|PATH",
        help="train 'wordpiece' (default), 'sentencepiece' or 'bpe' (byte-level, as RoBERTa's), or "
        "load a vocab.txt, tokenizer.json, vocab.json with merges.txt, .model file or tokenizer "
        "directory",
    )
    parser.add_argument(
        "--vocab-size",
        type=int,
        default=30522,
        metavar="N",
        help="sub-words to train (default: %(default)s)",
    )
    parser.add_argument(
        "--lowercase",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="lower-case the text (default: yes when training, but for bpe; as the vocabulary is "
        "when loading)",
    )
    parser.add_argument(
        "--strip-accents",
        choices=tuple(_STRIP_ACCENTS),
        default="auto",
        help="strip accents and other marks from letters; auto does so when training wordpiece "
        "that lower-cases, unless more than 1 %% of the words would lose one; a vocabulary that is "
        "loaded keeps its own way (default: %(default)s)",
    )
    parser.add_argument(
        "--language",
        metavar="CODE",
        help="the language by whose rules sentences are cut, such as de or ja (default: en, with "
        "a note where the text looks like another one)",
    )
    parser.add_argument(
        "--validation-fraction",
        type=float,
        default=0.01,
        metavar="X",
        help="share of documents held out (default: %(default)s)",
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: one a core)")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of the split and of the sample the tokenizer is trained on (default: %(default)s)",
    )


def run(arguments: Any) -> None:
    from bert_jax.cli.output import table
    from bert_jax.data.corpus.prepare import prepare

    corpus = prepare(
        arguments.source,
        arguments.output,
        tokenizer=arguments.tokenizer,
        vocab_size=arguments.vocab_size,
        lowercase=arguments.lowercase,
        workers=arguments.workers,
        validation_fraction=arguments.validation_fraction,
        seed=arguments.seed,
        text_field=arguments.text_field,
        encoding=arguments.encoding,
        skip_bad=arguments.skip_bad,
        language=arguments.language,
        strip_accents=_STRIP_ACCENTS[arguments.strip_accents],
    )
    manifest = corpus.manifest
    shares = manifest.get("unknown_share", {})
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
    table(f"corpus {corpus.directory}", ("split", *_COUNTS, last, "[UNK]"), rows)
    print(
        f"tokenizer: {manifest['tokenizer']['kind']}, {corpus.vocab_size:,} sub-words; "
        f"unigram entropy {manifest['unigram_entropy_nats']:.3f} nats; "
        f"fingerprint {corpus.fingerprint[:16]}"
    )
    for line in _lost(manifest.get("lost", {})):
        print(line)
    if text := _padding(corpus):
        print(text)
    if skipped := manifest.get("skipped_files"):
        print(f"left out: {len(skipped):,} bad file(s), which corpus.json names")


def _lost(lost: dict[str, int]) -> Iterator[str]:
    """Yields a line for each thing that the text lost."""
    if count := lost.get("unknown_characters"):
        yield f"under [UNK]: {count:,} characters, {count / lost['of_characters']:.2%} of the text"
    if count := lost.get("marks"):
        yield f"stripped: {count:,} marks of letters (--strip-accents no keeps them)"
    if count := lost.get("cut_sentences"):
        yield f"cut: {count:,} sentences of more than {LONGEST_SENTENCE:,} characters"


def _padding(corpus: Any) -> str:
    """Returns a line about the padding in rows of BERT's lengths, empty where there are none."""
    from bert_jax.config import DataConfig, PhaseConfig
    from bert_jax.data.pretraining.padding import padding

    found = []
    for length in _LENGTHS:
        phase = PhaseConfig(sequence_length=length, steps=1, global_batch_size=1)
        try:
            rows = padding(
                corpus.train, options=DataConfig(), phase=phase, seed=0, most_documents=_DOCUMENTS
            )
        except UsageError:  # one document has no pairs
            return ""
        found.append(f"{rows.alone:.0%} in rows of {length} ({rows.packed:.0%} packed)")
    return f"padding of sentence pairs: {', '.join(found)}; 'bert-jax show rows' has more"


_COUNTS = ("documents", "sentences", "tokens")
_STRIP_ACCENTS = {"auto": None, "yes": True, "no": False}
# BERT's, and the documents that are looked at for them.
_LENGTHS, _DOCUMENTS = (128, 512), 20_000
