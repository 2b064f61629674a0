"""Reference runs: finished runs with which the losses of a run are compared.

A reference is a workdir, or demo.json, which has three seeds of the demo's config
(tests/golden/make_expected_curves.py).
"""

import functools
import importlib.resources
from dataclasses import dataclass
from pathlib import Path

from bert_jax import config_loader, strict_json
from bert_jax.config import TrainConfig, flatten
from bert_jax.config.resume import Change, differences
from bert_jax.config_checks import complete
from bert_jax.errors import UsageError
from bert_jax.workdir import location, log_reader
from bert_jax.workdir.run_directory import CONFIG
from bert_jax_lab.reference_curves import curve
from bert_jax_lab.reference_curves.curve import Curve

# Losses on two corpora are comparable if the unigram entropies differ by at most this, in nats.
_ENTROPY = 0.1
# Fields that decide what a run learns: losses of runs with other values are not comparable.
_DECISIVE = ("objective", "output_bias", "model.", "head.", "data.", "phases.")
# Other fields that change the curve: with other values, a reference is only approximate.
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
# A run with other tuned fields may be faster or slower by this factor.
_ROUGH_SHIFT = 2.0


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The curves of finished runs of one config."""

    config: TrainConfig
    # The unigram entropy of the corpus in nats.
    entropy: float
    training: tuple[Curve, ...]
    validation: tuple[Curve, ...]

    @property
    def described(self) -> str:
        """Returns the number of runs and the name of their config."""
        runs = max(len(self.training), len(self.validation))
        return f"{runs} run{'s' if runs != 1 else ''} of {self.config.name}"

    def difference(self, config: TrainConfig, entropy: float) -> str:
        """Returns why the losses of a run are not comparable; "" if they are comparable."""
        for name, there, value in self._differing(config):
            if name.startswith(_DECISIVE) and not name.startswith((*_TUNED, *_NEITHER)):
                return f"{name} is {value}, but {there} in the reference"
        if abs(entropy - self.entropy) > _ENTROPY:
            return f"the unigram entropy is {entropy:.2f}, but {self.entropy:.2f} in the reference"
        return ""

    def shift_for(self, config: TrainConfig) -> float:
        """Returns the factor by which a run may be faster or slower than the reference."""
        names = [name for name, _, _ in self._differing(config)]
        is_rough = any(n.startswith(_TUNED) and not n.startswith(_NEITHER) for n in names)
        return _ROUGH_SHIFT if is_rough else curve.SHIFT

    def _differing(self, config: TrainConfig) -> list[Change]:
        """Returns the fields in which a config differs from the reference."""
        found = differences(flatten(self.config), flatten(complete(config)))
        # The objective first: it decides the heads.
        return sorted(found, key=lambda change: change[0] != "objective")


def read(workdir: Path | str) -> Reference:
    """Returns the reference in a workdir.

    Raises UsageError for a directory without a run, or without a masked-LM loss.
    """
    directory = location.opened(workdir).path
    try:
        stored = strict_json.load_object(directory / CONFIG)
    except OSError as error:
        raise UsageError(f"hooks: expect {workdir} has no run: {error.strerror}") from error
    config = config_loader.config_in(stored, directory)
    rows = log_reader.read_rows(directory)
    training, validation = curve.training(rows, config.total_steps), curve.validation(rows)
    entropy = (stored.get("corpus") or {}).get("unigram_entropy_nats")
    if entropy is None or not (training.steps or validation.steps):
        raise UsageError(f"hooks: expect {workdir}: the log has no masked-LM loss")
    return Reference(
        config=complete(config),
        entropy=float(entropy),
        training=(training,) if training.steps else (),
        validation=(validation,) if validation.steps else (),
    )


@functools.cache
def demo() -> Reference:
    """Returns the reference of the demo's config."""
    file = importlib.resources.files("bert_jax_lab.reference_curves").joinpath("demo.json")
    values = strict_json.parse(file.read_text(encoding="utf-8"))

    def curves(name: str) -> tuple[Curve, ...]:
        return tuple(Curve(**{k: tuple(v) for k, v in run[name].items()}) for run in values["runs"])

    return Reference(
        config=complete(config_loader.load_config(values["config"])),
        entropy=values["unigram_entropy_nats"],
        training=curves("training"),
        validation=curves("validation"),
    )
