"""Measures what a corpus's words say about a sentence task: counts, and vectors of checkpoints.

    python benchmarks/word_vectors.py CORPUS TASK GLUE_FOLDER [--train-rows N] [HF_FOLDER ...]

CORPUS is a prepared one; each HF_FOLDER what `bert-jax export` wrote of an encoder with its
vocabulary. Logistic regression on TASK's rows, three strengths of regularisation each, from
  - the set of a sentence's tokens (what an encoder learns that knows no words beforehand),
  - the sum of its tokens' count vectors: positive pointwise mutual information within five tokens,
    context counts to the power 0.75, 200 singular vectors (Levy et al. 2015), lengths one,
  - both together,
  - the sum of its tokens' word embeddings of each HF_FOLDER, lengths one.
Prints the accuracies on the development set, the neighbours of a few words, and for tokens of each
frequency how long their embeddings are and how long the mean of them is: near one another, all
these embeddings are alike (Gao et al. 2019, "Representation degeneration").
"""

import argparse
from pathlib import Path

import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.utils.extmath import randomized_svd

from bert_jax.data.corpus import store
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.interchange import safetensors_files
from bert_jax.registry import TASKS
from bert_jax.tasks.task_data import Sources, load_task

WINDOW = 5
WORDS = ("good", "funny", "boring", "beautiful")
EMBEDDINGS = "bert.embeddings.word_embeddings.weight"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("corpus", type=Path)
    parser.add_argument("task")
    parser.add_argument("glue")
    parser.add_argument("encoders", type=Path, nargs="*")
    parser.add_argument("--train-rows", type=int)
    arguments = parser.parse_args()
    words = load_tokenizer(arguments.corpus / "tokenizer")
    split = store.open_corpus(arguments.corpus).train
    data = load_task(
        TASKS[arguments.task].spec,
        Sources(data=arguments.glue, train_rows=arguments.train_rows),
        words,
        length=128,
    )
    (dev,) = data.dev.values()
    sides = {"train": data.train.encoded.features, "dev": dev.encoded.features}
    labels = {name: found.labels for name, found in sides.items()}
    tokens = {name: sets_of_tokens(found, words.vocab_size) for name, found in sides.items()}
    frequency = sum(np.bincount(shard, minlength=words.vocab_size) for shard in split.shards)

    score("sets of tokens", tokens, labels, (0.1, 0.3, 1.0))
    counts = count_vectors(split.shards, words.vocab_size)
    summed = {name: sparse.csr_matrix(found @ counts) for name, found in tokens.items()}
    score("count vectors", summed, labels, (0.1, 1.0, 10.0))
    both = {name: sparse.hstack([tokens[name], summed[name]]).tocsr() for name in tokens}
    score("both", both, labels, (0.1, 0.3, 1.0))
    show_neighbours(words, counts)
    for folder in arguments.encoders:
        vectors = safetensors_files.read(folder)[EMBEDDINGS].astype(np.float64)
        vectors = vectors[: words.vocab_size]
        unit = unit_length(vectors)
        summed = {name: sparse.csr_matrix(found @ unit) for name, found in tokens.items()}
        score(str(folder), summed, labels, (0.1, 1.0, 10.0))
        for least in (1, 10, 100, 1000, 10000):
            found = vectors[(frequency >= least) & (frequency < 10 * least)]
            if not len(found):
                continue
            length = np.linalg.norm(found, axis=1).mean()
            common = np.linalg.norm(found.mean(axis=0))
            most = 10 * least - 1
            seen = f"seen {least:,} to {most:,} times"
            print(f"  {seen}: length {length:.2f}, of the mean {common:.2f}")
        show_neighbours(words, unit)


def sets_of_tokens(features, vocab_size: int) -> sparse.csr_matrix:
    """`[rows, vocab]`: 1 where a token is in a row."""
    rows, tokens = [], []
    for row, (ids, length) in enumerate(zip(features.input_ids, features.lengths, strict=True)):
        found = np.unique(ids[1 : length - 1])  # between [CLS] and [SEP]
        rows.append(np.full(len(found), row))
        tokens.append(found)
    where = (np.concatenate(rows), np.concatenate(tokens))
    ones = np.ones(len(where[0]), np.float32)
    return sparse.csr_matrix((ones, where), shape=(len(features.lengths), vocab_size))


def count_vectors(shards, vocab_size: int) -> np.ndarray:
    """`[vocab, 200]` of length one."""
    total = sparse.csr_matrix((vocab_size, vocab_size), dtype=np.float32)
    for shard in shards:
        for start in range(0, len(shard), 6_000_000):
            part = np.asarray(shard[start : start + 6_000_000], np.int64)
            pairs = [part[:-d] * vocab_size + part[d:] for d in range(1, WINDOW + 1)]
            found, counts = np.unique(np.concatenate(pairs), return_counts=True)
            where = (found // vocab_size, found % vocab_size)
            shape = (vocab_size, vocab_size)
            total = total + sparse.csr_matrix((counts.astype(np.float32), where), shape=shape)
    seen = (total + total.T).tocoo()
    sums = np.asarray(seen.tocsr().sum(axis=1)).ravel()
    context = sums**0.75 / np.sum(sums**0.75)
    often = seen.data >= 2
    row, column, count = seen.row[often], seen.col[often], seen.data[often]
    information = np.log(count / (sums[row] * context[column]))
    keep = information > 0
    where = (row[keep], column[keep])
    matrix = sparse.csr_matrix((information[keep], where), shape=seen.shape)
    left, values, _ = randomized_svd(matrix, n_components=200, n_iter=3, random_state=0)
    return unit_length(left * np.sqrt(values))


def unit_length(vectors: np.ndarray) -> np.ndarray:
    return vectors / (np.linalg.norm(vectors, axis=1, keepdims=True) + 1e-8)


def score(name: str, rows: dict, labels: dict, strengths: tuple[float, ...]) -> None:
    found = []
    for strength in strengths:
        model = LogisticRegression(C=strength, max_iter=500).fit(rows["train"], labels["train"])
        found.append(f"{100 * model.score(rows['dev'], labels['dev']):.1f} (C {strength:g})")
    print(f"{name}: {', '.join(found)}", flush=True)


def show_neighbours(words, unit: np.ndarray) -> None:
    for word in WORDS:
        ids = words.encode(word)[1:-1]
        if len(ids) == 1:  # else it has no vector of its own
            nearest = np.argsort(-(unit @ unit[ids[0]]))[1:9]
            print(f"  {word}: {', '.join(words.tokens(nearest.tolist()))}")


if __name__ == "__main__":
    main()
