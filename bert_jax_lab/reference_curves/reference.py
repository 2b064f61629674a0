"""The reference of the demo: the recorded losses of three seeds, and the range that they span.

`tests/golden/make_expected_curves.py` writes demo.json.
"""

import functools
import importlib.resources
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_jax import config_loader, strict_json
from bert_jax.config import TrainConfig, flatten
from bert_jax.config.resume import differences
from bert_jax.config_checks import complete

# The steps at which seeds leave the plateau of the unigram entropy differ by a fifth or more: a
# range contains the recorded losses from step / SHIFT to step * SHIFT.
SHIFT = 1.25
# A run with other tuned fields may be faster or slower by this factor.
_ROUGH_SHIFT = 2.0
# In addition, seeds differ by this many nats, because they draw the same documents differently.
MARGIN = 0.15
# Losses on two corpora are comparable if the unigram entropies differ by at most this, in nats.
_ENTROPY = 0.1
# Fields that decide what a run learns: losses of runs with other values are not comparable.
_DECISIVE = ("objective", "output_bias", "model.", "head.", "data.", "phases.")
# Other fields that change the curve: with other values, the reference is only approximate.
_TUNED = (
    "optimizer.",
    "model.hidden_dropout",
    "model.attention_probs_dropout_prob",
    "model.initializer_range",
    "model.scale_output_init",
)
_NEITHER = (
    "model.classifier_pooling",
    "data.num_workers",
    "data.prefetch",
    "data.verify",
    "optimizer.gradient_accumulation_steps",
    "optimizer.spike_factor",
    "optimizer.max_skipped_updates",
)


@dataclass(frozen=True)
class Curve:
    """Losses in nats at increasing steps."""

    steps: tuple[int, ...]
    losses: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The curves of finished runs, and the factor by which a run may be faster or slower."""

    described: str
    training: tuple[Curve, ...]
    validation: tuple[Curve, ...]
    shift: float = SHIFT

    def band(
        self, curves: Sequence[Curve], step: int, *, above: float = MARGIN
    ) -> tuple[float, float] | None:
        """Returns the lowest and the highest expected loss at a step, which may be `above` nats
        higher than in the curves; None for a step outside the curves.
        """
        ends = step / self.shift, step * self.shift
        values: list[float] = []
        for curve in curves:
            # A larger shift needs points that are earlier by the same factor.
            if curve.steps[0] <= step * SHIFT / self.shift and step <= curve.steps[-1]:
                points = zip(curve.steps, curve.losses, strict=True)
                values += np.interp(ends, curve.steps, curve.losses).tolist()
                values += [loss for at, loss in points if ends[0] <= at <= ends[1]]
        return (min(values) - MARGIN, max(values) + above) if values else None


def window(total_steps: int) -> int:
    """Returns the number of steps over which a training loss is averaged: a fiftieth of the run."""
    return max(20, total_steps // 50)


@functools.cache
def _recorded() -> tuple[TrainConfig, dict[str, Any]]:
    file = importlib.resources.files("bert_jax_lab.reference_curves").joinpath("demo.json")
    values = strict_json.parse(file.read_text(encoding="utf-8"))
    return complete(config_loader.load_config(values["config"])), values


def demo(config: TrainConfig, entropy: float) -> Reference | None:
    """Returns the reference of the demo for a run of a config, on a corpus with a unigram entropy
    in nats; None if the losses are not comparable.
    """
    demo_config, values = _recorded()
    found = differences(flatten(demo_config), flatten(complete(config)))
    names = [name for name, _, _ in found if not name.startswith(_NEITHER)]
    tuned = [name for name in names if name.startswith(_TUNED)]
    is_other = any(name.startswith(_DECISIVE) and name not in tuned for name in names)
    if is_other or abs(entropy - values["unigram_entropy_nats"]) > _ENTROPY:
        return None

    def curves(name: str) -> tuple[Curve, ...]:
        return tuple(Curve(**{k: tuple(v) for k, v in run[name].items()}) for run in values["runs"])

    return Reference(
        described=f"{len(values['runs'])} runs of {values['config']}",
        training=curves("training"),
        validation=curves("validation"),
        shift=_ROUGH_SHIFT if tuned else SHIFT,
    )
