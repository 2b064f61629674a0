"""The expectation of one run: what is expected of its losses before it begins."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bert_jax.config import TrainConfig
from bert_jax_lab.reference_curves import comparable_runs, curve, recorded_runs
from bert_jax_lab.reference_curves.curve import SHIFT, Point, band, forecast
from bert_jax_lab.reference_curves.recorded_runs import RecordedRuns

# Points of a band that is drawn.
_DRAWN = 60
# Half the rate takes up to twice the updates.
_SHIFT_OF_A_CHOICE = 2.0


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """All that is known of a run beforehand: its length, its text, and runs of its kind."""

    total_steps: int
    warmup_steps: int
    # The unigram entropy of the corpus in nats.
    entropy: float
    recorded_runs: RecordedRuns | None = None
    # In which fields that may be set wrong the run differs from them.
    judged: Sequence[comparable_runs.Difference] = ()
    # Share of the corpus's tokens that its vocabulary does not have.
    unknown_share: float = 0.0
    # What the run began from was trained: nothing is known of the curve but its own past.
    is_continued: bool = False
    # Where the rate of masks changes, the loss of training does not compare with the held-out one.
    has_own_mask_rates: bool = False
    # Of several corpora, those of training have other shares than the held-out rows, whose entropy
    # is known.
    is_mixture: bool = False

    @property
    def shift(self) -> float:
        """Returns how many times as fast or as slow as runs of its kind a healthy run may be.

        A rate, or a dropout, not far from theirs is a choice; one far from theirs is compared as
        if it were theirs, so that what is set wrong is seen.
        """
        is_choice = self.judged and all(comparable_runs.is_near(each) for each in self.judged)
        return _SHIFT_OF_A_CHOICE if is_choice else SHIFT


def expectation_of(
    config: TrainConfig,
    entropy: float,
    groups: Iterable[RecordedRuns],
    *,
    is_continued: bool,
    unknown_share: float = 0.0,
    is_mixture: bool = False,
) -> Expectation:
    """Returns what is expected of a run of a config on a corpus, given runs that may be of its
    kind. `is_continued` says that its parameters were trained before.
    """
    found, judged = recorded_runs.of_kind(config, entropy, groups)
    return Expectation(
        total_steps=config.total_steps,
        warmup_steps=config.optimizer.warmup_steps,
        entropy=entropy,
        recorded_runs=found,
        judged=judged,
        unknown_share=unknown_share,
        is_continued=is_continued,
        is_mixture=is_mixture,
        has_own_mask_rates=any(
            phase.mask_rate(config.data.masked_lm_prob) != config.data.masked_lm_prob
            for phase in config.phases
        ),
    )


def expected_points(
    expectation: Expectation, rows: Sequence[Mapping[str, Any]]
) -> tuple[str, list[Point]]:
    """Returns whose held-out losses are expected of a run, and `(step, low, high)` of them.

    Those of runs of its kind; without any, where the run itself was on its way to: the law of its
    own past, from the latter half of what it has logged on.
    """
    total = expectation.total_steps
    steps = sorted({round(total * i / _DRAWN) for i in range(1, _DRAWN + 1)})
    if expectation.recorded_runs is not None and not expectation.is_continued:
        found = band(expectation.recorded_runs.held_out, steps, shift=expectation.shift)
        if found:
            return expectation.recorded_runs.described, found
    held_out = [row for row in rows if row.get("split") == "validation"]
    last = held_out[-1].get("sequence_length") if held_out else None
    own = curve.held_out([row for row in held_out if row.get("sequence_length") == last])
    past = curve.Curve(
        own.steps[: (len(own.steps) + 1) // 2], own.losses[: (len(own.steps) + 1) // 2]
    )
    ahead = [step for step in steps if past.steps and step > past.steps[-1]]
    return "its own past", forecast(past, ahead)
