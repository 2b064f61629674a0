"""The verb `prepare`: options, call, and what is said at the end."""

import argparse
from typing import Any

from bert_jax.commands.local import local

PREPARE = (
    "Reads the sources, trains or loads a tokenizer, cuts documents into sentences and writes "
    "token ids with a held-out split. An interrupted run goes on where it stopped; the result "
    "does not depend on the number of workers."
)


def add_prepare_options(parser: Any) -> None:
    parser.add_argument(
        "--source",
        action="append",
        required=True,
        metavar="SRC",
        help="a file, folder or glob of .txt/.txt.gz (one paragraph a line, a blank line between "
        "documents) or .jsonl/.jsonl.gz (field 'text'); tfds:NAME[/CONFIG][:SPLIT]; or docs: (the "
        "Python documentation found on this machine). Repeat for several",
    )
    parser.add_argument("--output", type=local, required=True, metavar="DIR")
    parser.add_argument(
        "--tokenizer",
        default="wordpiece",
        metavar="KIND|PATH",
        help="train 'wordpiece' (default) or 'sentencepiece', or load a vocab.txt, tokenizer.json, "
        ".model file or tokenizer directory",
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
        help="lower-case the text and strip accents (default: yes when training; as the vocabulary "
        "is when loading)",
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
        help="of the split and of the sample the tokenizer is trained on",
    )


def run_prepare(arguments: Any) -> None:
    from bert_jax.commands.tables import table
    from bert_jax.data.prepare import prepare

    corpus = prepare(
        arguments.source,
        arguments.output,
        tokenizer=arguments.tokenizer,
        vocab_size=arguments.vocab_size,
        lowercase=arguments.lowercase,
        workers=arguments.workers,
        validation_fraction=arguments.validation_fraction,
        seed=arguments.seed,
    )
    manifest = corpus.manifest
    rows = [
        (split, *(f"{manifest['counts'][split][name]:,}" for name in _COUNTS))
        for split in ("train", "validation")
    ]
    table(f"corpus {corpus.directory}", ("split", *_COUNTS), rows)
    print(
        f"tokenizer: {manifest['tokenizer']['kind']}, {corpus.vocab_size:,} sub-words; "
        f"unigram entropy {manifest['unigram_entropy_nats']:.3f} nats; "
        f"fingerprint {corpus.fingerprint[:16]}"
    )


_COUNTS = ("documents", "sentences", "tokens", "words")
