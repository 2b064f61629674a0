"""Compares runs whose vocabularies differ, by the held-out words that all of them have whole.

    python benchmarks/vocabulary_loss.py CORPUS WORKDIR WORKDIR ...

A loss per sub-word says nothing across vocabularies. Here all models read the same words, with the
same ones masked, which are one sub-word in each vocabulary. CORPUS is one of those that the runs
trained on: its held-out text is read, in rows of 32 words, 8 of them masked. Prints the mean loss
of each run in nats, how far it is from that of the first, and the standard error of that over rows.
"""

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bert_jax.data.corpus.store import open_corpus
from bert_jax.data.tokenizer.tokenizer import Tokenizer, load_tokenizer
from bert_jax.inference.fill_mask import forward_of, probabilities_of
from bert_jax.pretrained.load import load_checkpoint

_ROWS, _WORDS, _MASKED, _LONGEST = 1000, 32, 8, 62


def _words_of(corpus: Path) -> list[str]:
    """Returns the words of the held-out text, in order, as the tokenizer has normalised them."""
    tokenizer, split = load_tokenizer(corpus / "tokenizer"), open_corpus(corpus).validation
    words: list[str] = []
    for piece in tokenizer.tokens(np.concatenate(split.shards).tolist()):
        if piece.startswith("##") and words:
            words[-1] += piece.removeprefix("##")
        else:
            words.append(piece)
    return words


def _rows(words: list[str], tokenizers: list[Tokenizer]) -> Iterator[list[list[int]]]:
    """Yields the ids of the same words by each tokenizer, not masked, and where the masks are."""
    draw = np.random.default_rng(0)
    distinct = list(dict.fromkeys(words))
    pieces = [
        dict(zip(distinct, each.encode_sentences(distinct), strict=True)) for each in tokenizers
    ]
    for begin in range(0, len(words) - _WORDS, _WORDS):
        row = words[begin : begin + _WORDS]
        whole = [n for n, word in enumerate(row) if all(len(each[word]) == 1 for each in pieces)]
        if len(whole) < _MASKED:
            continue
        masked = set(draw.choice(whole, _MASKED, replace=False).tolist())
        ids = [[each[word] for word in row] for each in pieces]
        if all(len(list(itertools.chain(*each))) <= _LONGEST for each in ids):
            yield ids, masked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("workdirs", nargs="+")
    options = parser.parse_args()
    runs = [load_checkpoint(path) for path in options.workdirs]
    tokenizers = [load_tokenizer(run.tokenizer) for run in runs]
    forwards = [forward_of(run) for run in runs]
    found = []
    for ids, masked in itertools.islice(_rows(_words_of(options.corpus), tokenizers), _ROWS):
        losses = []
        for run, tokenizer, forward, words in zip(runs, tokenizers, forwards, ids, strict=True):
            mask = [tokenizer.special.mask]
            row = [mask if n in masked else word for n, word in enumerate(words)]
            answers = [words[n][0] for n in sorted(masked)]
            probabilities = probabilities_of(
                run, tokenizer, list(itertools.chain(*row)), forward=forward
            )
            losses.append(-np.log(probabilities[np.arange(_MASKED), answers]).mean())
        found.append(losses)
    losses = np.array(found)
    apart = losses - losses[:, :1]
    errors = apart.std(0) / len(losses) ** 0.5
    print(f"{len(losses)} rows")
    print("| run | nats | beside the first | standard error |\n|---|---|---|---|")
    for path, *figures in zip(options.workdirs, losses.mean(0), apart.mean(0), errors, strict=True):
        print("| {} | {:.3f} | {:+.3f} | {:.3f} |".format(path, *figures))


if __name__ == "__main__":
    main()
