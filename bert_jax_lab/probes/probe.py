"""Questions to a trained model, and their answers: registry.PROBES has the probes by name."""

from collections.abc import Callable
from dataclasses import dataclass

from bert_jax.data.corpus.store import Corpus
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.pretrained.load import LoadedCheckpoint


@dataclass(frozen=True)
class ProbeResult:
    """One answer of a probe."""

    name: str
    value: float
    # "%" for a share.
    unit: str = ""
    # What a model has that has learned nothing.
    guessing: float | None = None


@dataclass(frozen=True)
class Probe:
    """Findings of a checkpoint; `measure` gets None for a corpus that is not there."""

    measure: Callable[[LoadedCheckpoint, Tokenizer, Corpus | None], list[ProbeResult]]
    # The parts that a model must have for it.
    parts: tuple[str, ...] = ()
    # Its questions are held-out text.
    needs_corpus: bool = False
