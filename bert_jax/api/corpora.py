"""Corpora to look into: documents in memory, batches, and batches as text."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from bert_jax.config import TrainConfig
from bert_jax.config_checks import complete, validate
from bert_jax.data.corpus.encode import split_of
from bert_jax.data.corpus.several import CorpusPlace, open_corpora
from bert_jax.data.corpus.store import Corpus, token_counts
from bert_jax.data.language.codes import DEFAULT, canonical
from bert_jax.data.pretraining.batch import Batch
from bert_jax.data.pretraining.pipeline import Pipeline
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.data.tokenizer.words import begins_word, is_by_piece
from bert_jax.errors import UsageError, brief
from bert_jax.training import preflight
from bert_jax.training.pretrain import pipeline_of


def corpus_of(texts: Sequence[str], tokenizer: Tokenizer, *, language: str = DEFAULT) -> Corpus:
    """Returns documents in memory as a corpus, all of it to train on.

    A text is a document; newlines separate its paragraphs, which are cut into sentences by the
    rules of `language`. Raises UsageError if nothing is in them, and for an unknown language.
    """
    if isinstance(texts, str):
        raise UsageError("the texts are one string; make it a list of documents")
    if isinstance(texts, bytes | Mapping) or not isinstance(texts, Iterable):
        raise UsageError(f"expected a list of texts, got {brief(texts)}")
    texts = list(texts)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise UsageError(f"text {number}: expected a text, got {brief(text)}")
    train = split_of(texts, tokenizer, name="train", language=canonical(language))
    if not len(train.shards[0]):
        raise UsageError("the texts have no words")
    by_piece = is_by_piece(tokenizer, token_counts(train, tokenizer.vocab_size))
    return Corpus(
        directory=Path("memory"),
        manifest={},
        fingerprint="",
        tokenizer_hash=tokenizer.hash,
        vocab_size=tokenizer.vocab_size,
        special=tokenizer.special,
        begins_word=begins_word(tokenizer, by_piece=by_piece),
        train=train,
        validation=split_of([], tokenizer, name="validation"),
    )


def batches(
    corpus: Corpus | CorpusPlace,
    config: TrainConfig,
    *,
    start: int = 0,
    stop: int | None = None,
) -> Iterator[Batch]:
    """Yields the global batches of the steps `[start, stop)` of a run, as NumPy arrays by name.

    They are those that `pretrain` trains on, whatever was asked for before: a batch is a function
    of corpus, config and step. Several corpora are given by the names of the sources. `stop` is the
    end of the run by default. Raises UsageError if the config is impossible or does not fit the
    corpus, or the run has no such steps.
    """
    config = validate(complete(config))
    corpus = corpus if isinstance(corpus, Corpus) else open_corpora(corpus)
    stop = config.total_steps if stop is None else stop
    if not 0 <= start <= stop <= config.total_steps:
        raise UsageError(f"steps {start} to {stop}: the run has {config.total_steps}")
    preflight.require_fitting(config, corpus)
    pipeline = pipeline_of(config, corpus)
    return (whole_batch(pipeline, config, step) for step in range(start, stop))


def whole_batch(pipeline: Pipeline, config: TrainConfig, step: int) -> Batch:
    """Returns the global batch of `step`, which counts from 0 over all phases."""
    phase = config.phases[config.phase_of(step)]
    return pipeline.batch_at(step, range(phase.global_batch_size))


def show_batch(batch: Mapping[str, np.ndarray], tokenizer: Tokenizer, *, rows: int = 3) -> str:
    """Returns the first rows of a batch as text, a line each, without padding.

    A masked place shows what the model reads there and what it is to say: `[MASK]{horse}`. Behind a
    pair stands whether its second text follows the first. `|` separates sequences that share a row.
    """
    lines = []
    for row in range(min(rows, len(batch["input_ids"]))):
        tokens = tokenizer.tokens(batch["input_ids"][row].tolist())
        if "mlm_targets" in batch:
            targets = tokenizer.tokens(batch["mlm_targets"][row].tolist())
            for place, target, weight in zip(
                batch["mlm_positions"][row], targets, batch["mlm_weights"][row], strict=True
            ):
                if weight > 0:
                    tokens[place] += "{" + target + "}"
        sequences = []
        for number in range(1, int(batch["sequence_ids"][row].max()) + 1):
            text = " ".join(
                token for token, n in zip(tokens, batch["sequence_ids"][row], strict=True)
                if n == number
            )  # fmt: skip
            if "nsp_labels" in batch and batch["nsp_weights"][row, number - 1] > 0:
                is_random = batch["nsp_labels"][row, number - 1]
                text += " (is not next)" if is_random else " (is next)"
            sequences.append(text)
        lines.append(" | ".join(sequences))
    return "\n".join(lines)
