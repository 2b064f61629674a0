"""Probes of a trained model, and their results; registry.PROBES lists the probes by name."""

from collections.abc import Callable
from dataclasses import dataclass

from bert_jax.data.corpus.store import Corpus
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.pretrained.load import LoadedCheckpoint


@dataclass(frozen=True)
class ProbeResult:
    """One result of a probe."""

    name: str
    value: float
    # "%" for a share.
    unit: str = ""
    # The value of a model that has learned nothing.
    guessing: float | None = None
    standard_error: float | None = None


@dataclass(frozen=True)
class Probe:
    """A function that returns the findings of a checkpoint; the corpus is None if there is none."""

    measure: Callable[[LoadedCheckpoint, Tokenizer, Corpus | None], list[ProbeResult]]
    # The parts of the model that the probe needs.
    parts: tuple[str, ...] = ()
    # Whether the questions are held-out text.
    needs_corpus: bool = False
