"""Watches the losses of a run while it trains, and warns early if they are not healthy.

The losses are compared with a reference, if any. Without a reference, the loss of a healthy run
falls to the unigram entropy of its corpus and below it. A warning does not change or end the run.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bert_jax_lab.reference_curves.reference import MARGIN, Curve, Reference, window

# Losses are checked at every hundredth of the run. A warning needs this many consecutive checks
# with the same reason.
_LOOKS = 3
# The first check, in units of the window: earlier losses are those of an untrained model.
_FIRST_LOOK = 2.5
# Nats above the band for a training loss: noise of the rows does not last for three checks.
_ABOVE = 0.05
# A healthy run is at most this many nats above the unigram entropy after a tenth of its steps, and
# after the warm-up and _LEAST_STEPS; ...
_ABOVE_ENTROPY = 0.5
_LEAST_STEPS = 300
# ... after this share of its steps, it is more than _STANDS nats below the entropy, or below its
# own loss _STANDS_FOR checks earlier.
_STANDS_AT, _STANDS, _STANDS_FOR = 0.3, 0.1, 20

_SLOW = (
    "Check optimizer.learning_rate, optimizer.warmup_steps and the text; 'bert-jax doctor' checks "
    "all three"
)
_STUCK = (
    "Check optimizer.learning_rate (a larger model needs a lower one), model.initializer_range "
    "(about 1 / sqrt(hidden_size)) and the number of steps: BERT's recipe stays there for a while"
)
_TOO_GOOD = "Check whether masked words are visible, and whether text is repeated many times"

# Called with the step, a reason of one word, and a sentence.
Warn = Callable[[int, str, str], None]


class Watch:
    """Receives every step and every evaluation of a run; warns once per reason."""

    def __init__(
        self,
        warn: Warn,
        *,
        total_steps: int,
        warmup_steps: int,
        entropy: float | None,
        reference: Reference | None = None,
    ):
        """`entropy` is the unigram entropy of the corpus in nats; None for several corpora."""
        self._warn, self._reference = warn, reference
        self._total_steps, self._entropy = total_steps, entropy
        self._first = max(total_steps / 10, warmup_steps, _LEAST_STEPS)
        self._every = max(1, total_steps // 100)
        self._losses: deque[float] = deque(maxlen=window(total_steps))
        # The mean losses of the last checks.
        self._means: deque[float] = deque(maxlen=_STANDS_FOR + 1)
        # The number of consecutive checks for which each reason held, and reasons of past warnings.
        self._held: dict[str, int] = {}
        self._warned: set[str] = set()

    def see(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Processes the metrics of a step."""
        loss = metrics.get("mlm_loss")
        if loss is None or not math.isfinite(loss):
            return
        self._losses.append(loss)
        size = self._losses.maxlen or 0
        is_look = step % self._every == 0 and step >= _FIRST_LOOK * size
        if not is_look or len(self._losses) < size:
            return
        mean = sum(self._losses) / size
        if self._reference is not None:
            self._compare("training", step, mean, self._reference.training, _ABOVE, looks=_LOOKS)
        elif self._entropy is not None:
            self._compare_with_entropy(step, mean, self._entropy)

    def evaluated(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Processes the metrics of an evaluation."""
        loss = metrics.get("mlm_loss")
        if loss is None or not math.isfinite(loss):
            return
        if self._reference is not None:
            self._compare("validation", step, loss, self._reference.validation, MARGIN, looks=1)

    def _compare_with_entropy(self, step: int, loss: float, entropy: float) -> None:
        self._means.append(loss)
        stands = (
            len(self._means) > _STANDS_FOR
            and -_STANDS <= loss - entropy <= _ABOVE_ENTROPY
            and self._means[0] - loss <= _STANDS
        )
        # The first of the consecutive checks.
        since = _STANDS_AT * self._total_steps - (_LOOKS - 1) * self._every
        of_entropy = f"{entropy:.2f}, the unigram entropy of the corpus"
        self._judge(
            "plateau",
            step,
            step >= max(self._first, since) and stands,
            f"the loss stays at {loss:.2f}; a model that only counts words has {of_entropy}. "
            f"{_STUCK}",
        )
        self._judge(
            "entropy",
            step,
            step >= self._first and loss > entropy + _ABOVE_ENTROPY,
            f"the loss is {loss:.2f}; a model that only counts words has {of_entropy}. {_SLOW}",
        )

    def _compare(
        self, which: str, step: int, loss: float, curves: Sequence[Curve], above: float, *,
        looks: int,
    ) -> None:  # fmt: skip
        assert self._reference is not None
        if (expected := self._reference.band(curves, step, above=above)) is None:
            return
        low, high = expected
        found = (
            f"the {which} loss is {loss:.2f}; {self._reference.described} had {low:.2f} to "
            f"{high:.2f} at this step"
        )
        self._judge("above", step, loss > high, f"{found}. {_SLOW}", looks=looks)
        self._judge("below", step, loss < low, f"{found}. {_TOO_GOOD}", looks=looks)

    def _judge(
        self, reason: str, step: int, holds: bool, message: str, *, looks: int = _LOOKS
    ) -> None:
        """Warns of a reason that held in `looks` consecutive checks."""
        self._held[reason] = self._held.get(reason, 0) + 1 if holds else 0
        if self._held[reason] >= looks and reason not in self._warned:
            self._warned.add(reason)
            self._warn(step, reason, message)
