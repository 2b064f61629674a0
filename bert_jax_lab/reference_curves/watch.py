"""Watches a run's losses while it trains, and says early that they are not those of a healthy run.

Runs of its kind say most. Without any, there is what every healthy run does: it comes down to the
unigram entropy of its corpus and leaves it, it does not know the hidden words at once, its held-out
loss goes on falling as it fell before, and it is not much better on what it is trained on. Nothing
here ends a run, or changes it.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bert_jax_lab.reference_curves.curve import MARGIN, Curve, band, forecast, window
from bert_jax_lab.reference_curves.expectation import Expectation

# Looks in a row, each a hundredth of the run after the last, until there is a warning; and held-out
# losses.
_LOOKS, _EVALUATIONS = 3, 2
# Losses are those of an untrained model for the length of some windows.
_FIRST_LOOK = 2.5
# The mean of a window has the noise of its rows, which does not last for three looks: so many nats
# are enough.
_ABOVE = 0.05
# What every healthy run does, in nats: it is no further above the unigram entropy when a tenth of
# the run and the warm-up are over; ...
_ABOVE_ENTROPY = 0.5
_LEAST_STEPS = 300
# ... when this share of the run is over, it does not stand at the entropy: no further below it than
# so many nats, and no further below where it was a fifth of the run before;
_STANDS_AT, _STANDS, _STANDS_FOR = 0.3, 0.1, 20
# ... its loss is not below this share of the entropy within a tenth of the run, where text has any;
_KNOWN_AT_ONCE, _LEAST_ENTROPY = 0.4, 2.0
# ... the loss of training is no further below the held-out one.
_GAP = 0.7

# Of the tokens: more of them unknown, and the vocabulary is another text's.
MOST_UNKNOWN = 0.01
UNKNOWN = "its vocabulary is not for this text, and the run learns to guess [UNK]"

_SLOW = (
    "Look at optimizer.learning_rate, optimizer.warmup_steps and the text; 'bert-jax doctor' looks "
    "at all three"
)
_STUCK = (
    "Look at optimizer.learning_rate (a larger model wants a lower one), at "
    "model.initializer_range (about 1 / sqrt(hidden_size)) and at the steps: BERT's own recipe "
    "stays there for a while"
)
_TOO_GOOD = "Are words visible that should be hidden, or is text repeated many times?"


class Watch:
    """Sees every step and every evaluation of one process; all processes see the same."""

    def __init__(self, expectation: Expectation, tell: Callable[[int, str, str], None]):
        """`tell` gets the step, a reason of one word, and a sentence; each reason once."""
        self._expectation, self._tell = expectation, tell
        self._size = window(expectation.total_steps)
        self._every = max(1, expectation.total_steps // 100)
        self._losses: deque[float] = deque(maxlen=self._size)
        # The means of the last looks: of a fifth of the run.
        self._means: deque[float] = deque(maxlen=_STANDS_FOR + 1)
        # The held-out curve of rows of one length.
        self._past, self._length = Curve((), ()), None
        # Looks in a row at which a reason held, and the reasons already given.
        self._held: dict[str, int] = {}
        self._warned: set[str] = set()

    def begin(self, step: int) -> None:
        """Tells, before any step, what only the text says."""
        share = self._expectation.unknown_share
        self._judge(
            "vocabulary",
            step,
            share > MOST_UNKNOWN,
            f"{share:.1%} of the corpus's tokens are [UNK]: {UNKNOWN}. Prepare the text with a "
            "vocabulary of its own",
            looks=1,
        )

    def see(self, step: int, values: Mapping[str, Any]) -> None:
        """Takes in the figures of a step."""
        loss = values.get("mlm_loss")
        if loss is None or not math.isfinite(loss):
            return
        self._losses.append(loss)
        if step % self._every or len(self._losses) < self._size:
            return
        if step < _FIRST_LOOK * self._size:
            return
        self._look(step, sum(self._losses) / self._size)

    def recall(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Takes in what an earlier process has logged of the run, and tells nothing of it."""
        for row in rows:
            if row.get("split") == "validation":
                self._judge_past(row["step"], row.get("mlm_loss"), row.get("sequence_length"))

    def evaluated(self, step: int, values: Mapping[str, Any], *, length: int | None = None) -> None:
        """Takes in held-out figures, of rows of some length."""
        loss, expectation = values.get("mlm_loss"), self._expectation
        high = self._judge_past(step, loss, length)
        if loss is None or not math.isfinite(loss):
            return
        if expectation.recorded_runs is not None and not expectation.is_continued:
            self._compare(
                "held-out", step, loss, expectation.recorded_runs.held_out, MARGIN, looks=1
            )
        self._judge(
            "rising",
            step,
            loss > high,
            f"the held-out loss is {loss:.3f}; as it went on before, it would be at most "
            f"{high:.3f}. Go back to an earlier step ('bert-jax checkpoints rollback') with a "
            "lower optimizer.learning_rate, or with more text",
            looks=_EVALUATIONS,
        )
        if expectation.has_own_mask_rates or expectation.is_mixture:
            return
        if len(self._losses) < self._size:
            return
        mean = sum(self._losses) / self._size
        self._judge(
            "gap",
            step,
            loss - mean > _GAP,
            f"the held-out loss is {loss:.3f}, that of training {mean:.3f}: the run learns its own "
            "text by heart. Take more text, or fewer steps. Is much of it repeated, or is the "
            "held-out text of another kind?",
            looks=_EVALUATIONS,
        )

    def _judge_past(self, step: int, loss: float | None, length: int | None) -> float:
        """Returns the most that the held-out curve so far lets expect of a loss, which joins that
        curve unless it is above; rows of another length begin another curve.
        """
        # What a run begins with is no point of a law of its steps.
        if loss is None or not math.isfinite(loss) or step == 0:
            return math.inf
        if length != self._length:
            self._past, self._length = Curve((), ()), length
        found = forecast(self._past, [step])
        high = found[0][2] if found else math.inf
        if loss <= high:
            self._past = Curve((*self._past.steps, step), (*self._past.losses, loss))
        return high

    def _look(self, step: int, loss: float) -> None:
        expectation = self._expectation
        if expectation.is_continued:
            return
        if expectation.recorded_runs is not None and expectation.recorded_runs.training:
            self._compare(
                "training", step, loss, expectation.recorded_runs.training, _ABOVE, looks=_LOOKS
            )
            return
        if expectation.is_mixture:
            return
        tenth = expectation.total_steps / 10
        first = max(tenth, expectation.warmup_steps, _LEAST_STEPS)
        self._means.append(loss)
        stands = (
            len(self._means) > _STANDS_FOR
            and -_STANDS <= loss - expectation.entropy <= _ABOVE_ENTROPY
            and self._means[0] - loss <= _STANDS
        )
        # The first of the looks in a row.
        since = _STANDS_AT * expectation.total_steps - (_LOOKS - 1) * self._every
        self._judge(
            "plateau",
            step,
            step >= max(first, since) and stands,
            f"the loss stands at {loss:.2f}, and a model that only counts words would have "
            f"{expectation.entropy:.2f}, the unigram entropy of the corpus. {_STUCK}",
        )
        self._judge(
            "entropy",
            step,
            step >= first and loss > expectation.entropy + _ABOVE_ENTROPY,
            f"the loss is {loss:.2f}; a model that only counts words would have "
            f"{expectation.entropy:.2f}, the unigram entropy of the corpus. {_SLOW}",
        )
        self._judge(
            "known",
            step,
            step <= tenth
            and expectation.entropy > _LEAST_ENTROPY
            and loss < _KNOWN_AT_ONCE * expectation.entropy,
            f"the loss is {loss:.2f} already, where counting words has {expectation.entropy:.2f}. "
            f"{_TOO_GOOD}",
        )

    def _compare(
        self,
        which: str,
        step: int,
        loss: float,
        curves: Sequence[Curve],
        above: float,
        *,
        looks: int,
    ) -> None:
        for _, low, high in band(curves, [step], shift=self._expectation.shift, above=above):
            recorded_runs, judged = self._expectation.recorded_runs, self._expectation.judged
            assert recorded_runs is not None
            found = (
                f"the {which} loss is {loss:.2f}, and {recorded_runs.described} had {low:.2f} to "
                f"{high:.2f} there"
            )
            if judged:
                shown = [f"{name} is {mine}, not {theirs}" for name, mine, theirs in judged[:3]]
                found += f"; here {', '.join(shown)}"
            self._judge("above", step, loss > high, f"{found}. {_SLOW}", looks=looks)
            self._judge("below", step, loss < low, f"{found}. {_TOO_GOOD}", looks=looks)

    def _judge(
        self, reason: str, step: int, holds: bool, message: str, *, looks: int = _LOOKS
    ) -> None:
        """Tells a reason that has held at `looks` looks in a row."""
        self._held[reason] = self._held.get(reason, 0) + 1 if holds else 0
        if self._held[reason] >= looks and reason not in self._warned:
            self._warned.add(reason)
            self._tell(step, reason, message)
