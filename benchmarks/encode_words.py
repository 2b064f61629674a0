"""Encoding a text by words that were there before, against the tokenizer's own call.

    python benchmarks/encode_words.py TEXT... [--tokenizer VOCABULARY] [--rounds 3]

The sentences of each text, which may be packed, in one thread, in turns: `encode_sentences`, which
is `tokenizers`' `encode_batch_fast`, and `encode_running_text`, a new one in each round, which
begins with no words. Both give arrays, which are compared. Prints the medians of the processor
seconds. The vocabulary is by default that of $BERT_JAX_SHARED (else ../shared).
"""

import argparse
import os
import statistics
import time
from pathlib import Path

import numpy as np

from bert_jax.data.language.sentences import split_sentences
from bert_jax.data.sources.read import read_documents
from bert_jax.data.tokenizer.chunk_cache import flat
from bert_jax.data.tokenizer.tokenizer import load_tokenizer

_AT_ONCE = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="+", metavar="TEXT")
    shared = Path(os.environ.get("BERT_JAX_SHARED", "../shared"), "data")
    parser.add_argument("--tokenizer", default=shared / "vocab/bert-base-uncased-vocab.txt")
    parser.add_argument("--megabytes", type=float, default=25.0, help="of each text, at most")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    print("| text | MB | tokenizers, s | by words, s | times as fast |\n|---|---|---|---|---|")
    for text in options.texts:
        sentences, size = [], 0
        for document in read_documents([text]):
            for paragraph in document:
                sentences += split_sentences(paragraph)
                size += len(paragraph.encode())
            if size > options.megabytes * 1e6:
                break
        calls = [sentences[i : i + _AT_ONCE] for i in range(0, len(sentences), _AT_ONCE)]
        seconds: list[list[float]] = [[], []]
        for _ in range(options.rounds):
            tokenizer = load_tokenizer(options.tokenizer)
            theirs, ours = [], []
            began = time.process_time()
            for call in calls:
                theirs.append(flat(tokenizer.encode_sentences(call))[0])
            between = time.process_time()
            for call in calls:
                ours.append(tokenizer.encode_running_text(call)[0])
            seconds[0].append(between - began)
            seconds[1].append(time.process_time() - between)
            assert np.array_equal(np.concatenate(ours), np.concatenate(theirs))
        plain, words = map(statistics.median, seconds)
        print(
            f"| {Path(text).name} | {size / 1e6:.1f} | {plain:.1f} | {words:.1f} | "
            f"{plain / words:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
