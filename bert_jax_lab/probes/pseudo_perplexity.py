"""Pseudo-perplexity: the probability of each token of a text if the token is masked.

The pseudo-log-likelihood of a text is the sum of the log probabilities of its tokens, each
predicted from all others (Salazar et al. 2020, "Masked Language Model Scoring"). The
pseudo-perplexity is exp of minus its mean over all tokens of all texts. The later tokens of a word
are masked with each token, so that a model does not infer a rare word from its ending (Kauf &
Ivanova 2023, "A Better Way to Do Masked Language Model Scoring", PLL-word-l2r). `as_babylm`
masks each token without them, as the first of the two papers does, and counts all rows of the
embedding table as possible tokens: the numbers equal those from BabyLM's scorer.

Dims: B copies of texts, each with one token to predict; L length of the longest copy.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bert_jax.data.corpus.store import Corpus
from bert_jax.data.tasks.encode_rows import RowArrays, arrays_of
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.data.tokenizer.words import begins_word
from bert_jax.errors import UsageError
from bert_jax.inference.forward import Forward, in_float32
from bert_jax.pretrained.load import LoadedCheckpoint, require_parts
from bert_jax_lab.probes.held_out import readable_sentences
from bert_jax_lab.probes.probe import Probe, ProbeResult

# Copies per batch at most, and logits per batch: a copy has one for each token of the vocabulary.
_BATCH, _LOGITS = 256, 2**23
# The number of held-out sentences, one per document.
_SENTENCES = 64


@dataclass(frozen=True)
class PseudoLikelihood:
    """A text with the sum of the log probabilities of its tokens, in nats."""

    text: str
    tokens: int
    log_likelihood: float


class PseudoPerplexity:
    """Scores texts with a checkpoint, in float32; compiles once per length."""

    def __init__(self, source: LoadedCheckpoint, tokenizer: Tokenizer, *, as_babylm: bool = False):
        """Raises UsageError if there is no masked-LM head."""
        require_parts(source, "mlm")
        self._as_babylm = as_babylm
        self._choices = source.config.model.vocab_size if as_babylm else tokenizer.vocab_size
        self._source, self._tokenizer = source, tokenizer
        self._begins = begins_word(tokenizer)
        config = in_float32(source.config)
        size = max(1, min(_BATCH, _LOGITS // config.model.vocab_size))
        self._forward = Forward(config, "mlm_logits", batch_size=size, mesh=source.mesh)

    def score(self, texts: Sequence[str]) -> list[PseudoLikelihood]:
        """Returns the scores of texts, in their order.

        Raises UsageError if no texts are given, or if a text has no tokens or more tokens than the
        model has positions.
        """
        encoded = [self._tokenizer.encode(text) for text in texts]
        limit = self._source.config.model.max_position_embeddings
        if not encoded:
            raise UsageError("no texts are given")
        for text, ids in zip(texts, encoded, strict=True):
            if not 2 < len(ids) <= limit:
                raise UsageError(
                    f"{text[:60]!r} has {len(ids)} tokens with [CLS] and [SEP]; the model accepts "
                    f"3 to {limit}"
                )
        # The text of each copy, and the position to predict. Texts of similar length share a batch,
        # which is as long as its longest row.
        order = sorted(range(len(encoded)), key=lambda number: len(encoded[number]))
        copies = [(n, place) for n in order for place in range(1, len(encoded[n]) - 1)]
        size = self._forward.size(len(copies))
        sums = np.zeros(len(encoded))
        for start in range(0, len(copies), size):
            part = copies[start : start + size]
            found = self._log_probabilities(encoded, part, size)
            np.add.at(sums, [number for number, _ in part], found)
        return [
            PseudoLikelihood(text, len(ids) - 2, float(total))
            for text, ids, total in zip(texts, encoded, sums, strict=True)
        ]

    def __call__(self, texts: Sequence[str]) -> float:
        """Returns the pseudo-perplexity of texts, each token counting once. Errors: `score`."""
        scores = self.score(texts)
        tokens = sum(score.tokens for score in scores)
        nats = -sum(score.log_likelihood for score in scores) / tokens
        # exp overflows float64 at 709, as in `Objective.summarise`.
        return math.exp(min(nats, 700.0))

    def _log_probabilities(
        self, encoded: list[list[int]], copies: list[tuple[int, int]], size: int
    ) -> np.ndarray:
        """Returns the log probability of each copy's masked token, float64 `[copies]`."""
        longest = max(len(encoded[number]) for number, _ in copies)
        length = min(-(-longest // 8) * 8, self._source.config.model.max_position_embeddings)
        rows = RowArrays(len(copies), length, self._tokenizer)
        for row, (number, place) in enumerate(copies):
            ids = encoded[number]
            end = self._end_of_word(ids, place)
            masks = [self._tokenizer.special.mask] * (end - place)
            rows.put(row, [*ids[:place], *masks, *ids[end:]], [])
        # Copies of the first row fill the batch.
        chosen = np.concatenate([np.arange(len(copies)), np.zeros(size - len(copies), int)])
        batch = arrays_of(rows.features(), chosen, length=length)
        places = np.array([place for _, place in copies], np.int32)
        batch["mlm_positions"] = places[chosen, None]
        targets = [encoded[number][place] for number, place in copies]
        logits = self._forward.batch(self._source.params, batch)[: len(copies), 0, : self._choices]
        logits = logits - logits.max(axis=-1, keepdims=True)
        chosen = logits[np.arange(len(copies)), targets].astype(np.float64)
        return chosen - np.log(np.exp(logits).sum(axis=-1, dtype=np.float64))

    def _end_of_word(self, ids: list[int], place: int) -> int:
        """Returns the index after the last token that is masked together with the token at
        `place`.
        """
        end = place + 1
        while not self._as_babylm and end < len(ids) - 1 and not self._begins[ids[end]]:
            end += 1
        return end


def _measure(
    source: LoadedCheckpoint, tokenizer: Tokenizer, corpus: Corpus | None
) -> list[ProbeResult]:
    """Returns the pseudo-perplexity of held-out sentences: the first readable one of each
    document.
    """
    assert corpus is not None  # by `needs_corpus`
    perplexity = PseudoPerplexity(source, tokenizer)
    first = (sentences[0] for sentences in readable_sentences(corpus, _SENTENCES) if sentences)
    texts = [tokenizer.decode(ids) for ids in first]
    return [ProbeResult("pseudo_perplexity", perplexity(texts), "", float(tokenizer.vocab_size))]


PROBE = Probe(_measure, parts=("mlm",), needs_corpus=True)
