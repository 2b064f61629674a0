"""Says whether two runs are of one kind: whether their curves should be alike.

Runs of one kind learn the same from the same rows with the same model. They may differ in what is
easily set wrong (rates, decay, dropout, initial values), so that a curve shows it, and in what
changes no number.
"""

from typing import Any

from bert_jax.config import OptimizerConfig, TrainConfig, flatten
from bert_jax.config.fields import fields_of, is_free
from bert_jax.config.model import TRAINING_FIELDS
from bert_jax.config.resume import is_within

# Options of the recipe, which are easily set wrong.
_JUDGED = (
    "dropout_hash",
    *(f"model.{name}" for name in TRAINING_FIELDS),
    *(f"optimizer.{name}" for name in fields_of(OptimizerConfig) if name != "schedule"),
    "optimizer.schedule.min_lr_ratio",
    "optimizer.schedule.power",
    "optimizer.schedule.decay_steps",
    "optimizer.momentum",
    "optimizer.joined_rms",
)
# Options that change no number beyond rounding, but for the bits of a resumed run.
_NO_NUMBERS = (
    "seed",
    "compute.dtype",
    "optimizer.gradient_accumulation_steps",
    "optimizer.spike_factor",
)
# Values of these are near when they differ by no more, of all others when one is not over twice the
# other.
_NEAR_SHARE = ("_prob", ".beta1", ".beta2"), 0.1
# Unigram entropies of corpora on which losses compare differ by no more, in nats.
_ENTROPY = 0.1

Difference = tuple[str, Any, Any]


def differences(
    config: TrainConfig, other: TrainConfig
) -> tuple[list[Difference], list[Difference]]:
    """Returns in which fields two configs differ: those that make them runs of two kinds, and those
    that are judged. Each is the field's name, its value in `config`, and its value in `other`.
    """
    mine, theirs = flatten(config), flatten(other)
    fields = dict.fromkeys((*mine, *theirs))
    apart: list[Difference] = []
    judged: list[Difference] = []
    for name in fields:
        values = mine.get(name), theirs.get(name)
        changes_numbers = name not in _NO_NUMBERS and not is_free(name, config, other)
        if values[0] != values[1] and changes_numbers:
            (judged if is_within(name, _JUDGED) else apart).append((name, *values))
    return apart, judged


def is_near(difference: Difference) -> bool:
    """Returns whether the two values of a judged field are both usual ones where one is."""
    name, mine, theirs = difference
    if not isinstance(mine, int | float) or not isinstance(theirs, int | float):
        return False
    shares, least = _NEAR_SHARE
    if name.endswith(shares):
        return abs(mine - theirs) <= least
    return 0 < max(mine, theirs) <= 2 * min(mine, theirs)


def is_same_text(entropy: float, other: float) -> bool:
    """Returns whether losses on two corpora compare, given their unigram entropies in nats."""
    return abs(entropy - other) <= _ENTROPY
