"""A complete run as one frozen value: the model, the data, the optimiser, the phases.

Each field is declared once, in the file of its section, with all that is known about it
(`fields.py`). A config is checked as a whole before anything starts (`config_checks.py`), and
stored as JSON beside the run. How a config is named and changed is in `config_loader.py`. Nothing
here imports a heavy library.
"""

import bisect
import dataclasses
import functools
import itertools
import typing
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from bert_jax.config import entries
from bert_jax.config.compute import CheckpointConfig, ComputeConfig, EvaluationConfig, MeshConfig
from bert_jax.config.conversion import changed, convert, flatten, to_dict
from bert_jax.config.data import DataConfig
from bert_jax.config.fields import (
    FREE,
    PHASE,
    PRETRAINING,
    RECIPE,
    TASKS,
    Rule,
    Setting,
    WithOptions,
    all_settings,
    numbered,
    section,
    setting,
    settings_of,
)
from bert_jax.config.model import HeadConfig, ModelConfig
from bert_jax.config.optimizer import SCHEDULE, OptimizerConfig
from bert_jax.config.phase import PhaseConfig, growing
from bert_jax.registry import OBJECTIVES, TRACKERS

__all__ = [
    "CheckpointConfig", "ComputeConfig", "DataConfig", "EvaluationConfig", "HeadConfig",
    "MeshConfig", "ModelConfig", "OptimizerConfig", "PhaseConfig", "TrainConfig", "flatten",
    "from_dict", "growing", "setting_of", "settings", "to_dict",
]  # fmt: skip


# fmt: off
@section
class TrainConfig(WithOptions):
    """Everything a run depends on besides the corpus."""

    name: str = setting(
        "unnamed", FREE._replace(finetune=TASKS), "Name of the run in messages."
    )
    seed: int = setting(
        0, Rule("refused", "free", "use `seed` and `seeds`"),
        "Decides initial weights, the order of examples, masks and dropout.",
        most=2**32 - 1,
    )
    dropout_hash: str = setting(
        "lowbias32", RECIPE,
        "How dropout chooses what it drops: `lowbias32`, or `shift_add`, which needs no integer "
        "multiplication for each element: faster on TPU v2 and v3, and other elements are dropped.",
        choices=("lowbias32", "shift_add"),
    )
    objective: str = setting(
        "mlm+nsp", Rule("refused", "equal", PRETRAINING),
        "What the model learns: [see below](#another-objective).",
        choices=OBJECTIVES, called=("loss",),
    )
    model: ModelConfig = field(default_factory=ModelConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    phases: tuple[PhaseConfig, ...] = (PhaseConfig(),)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log_every_steps: int = setting(
        100, FREE, "Steps between rows of `metrics.jsonl`.",
        least=1, called=("logging_steps", "log_steps", "log_every", "log_interval"),
    )
    trackers: tuple[str, ...] = setting(
        (), FREE,
        "Services that also receive the rows: [below](#trackers). Each start of a run is a run "
        "there, which begins with the rows so far; one that fails is named and left alone.",
        choices=TRACKERS,
    )
    hooks: tuple[str, ...] = setting(
        (), FREE,
        "What else happens between the steps: [see below](#hooks).",
    )
    deadline_seconds: float = setting(
        900.0, FREE,
        "Longest that a process may go without progress; then it says where it hangs and ends with "
        "exit code 200. A compilation may take four times as long.",
        above=0,
    )
    output_bias: str = setting(
        "zeros", Rule("refused", "equal"),
        "The masked-LM output bias that a new run begins with: `zeros`, or `log_frequency` "
        "([the loss of masked words](lineage.md#the-loss-of-masked-words)).",
        choices=("zeros", "log_frequency"),
    )

    @property
    def total_steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    @property
    def phase_ends(self) -> tuple[int, ...]:
        """The last step of each phase."""
        return tuple(itertools.accumulate(phase.steps for phase in self.phases))

    @property
    def scored_phases(self) -> tuple[PhaseConfig, ...]:
        """The phases as a model that was trained in them is scored: none changes it, which is as
        its step left it, and no rows are packed.
        """
        rate = self.data.masked_lm_prob
        return tuple(dataclasses.replace(p.unpacked(rate), changes={}) for p in self.phases)

    def phase_of(self, update: int) -> int:
        """Returns the number of the phase in which an update is made, counted from 0."""
        return bisect.bisect_right(self.phase_ends, update)

    def in_phase(self, number: int) -> "TrainConfig":
        """Returns the config with what the phases up to this one change in it.

        Raises UsageError for a change of what is no field.
        """
        config = self
        for i, phase in enumerate(self.phases[: number + 1]):
            if phase.changes:
                config = changed(config, phase.changes, f"phases.{i}")
        return config

    def at_step(self, step: int) -> "TrainConfig":
        """Returns the config with the model that a checkpoint of a step is: that of the phase
        which made its last update.
        """
        model = self.in_phase(self.phase_of(max(step - 1, 0))).model
        return dataclasses.replace(self, model=model)

    def changes_of(self, number: int) -> dict[str, tuple[Any, Any]]:
        """Returns what differs between a phase and the one before it, steps apart: the old and the
        new value by path. The old one of an option that was not there is None.
        """
        if not number:
            return {}
        old, new = self._described(number - 1), self._described(number)
        return {p: (old.get(p), value) for p, value in new.items() if old.get(p) != value}

    def _described(self, number: int) -> dict[str, Any]:
        """Returns all fields that may differ between phases, by path."""
        phase, config = self.phases[number], self.in_phase(number)
        own = {name: getattr(phase, name) for name in settings_of(PhaseConfig) if name != "steps"}
        sections = {name: to_dict(getattr(config, name)) for name in PhaseConfig.sections}
        own["masked_lm_prob"] = phase.mask_rate(self.data.masked_lm_prob)
        return own | flatten(sections)

    def schedule_span(self, number: int) -> range:
        """Returns the updates of the schedule that a phase is part of.

        It begins anew with each phase that changes a field or an option of the schedule.
        """
        if not self.phases:
            return range(0)
        begins = [0, *(i for i, p in enumerate(self.phases) if i and _begins_schedule(p)),
                  len(self.phases)]  # fmt: skip
        edges = (0, *self.phase_ends)
        last = bisect.bisect_right(begins, number)
        return range(edges[begins[last - 1]], edges[begins[last]])
# fmt: on


def _begins_schedule(phase: PhaseConfig) -> bool:
    paths = (path.partition(".") for path in phase.changes)
    return any(
        name in SCHEDULE
        or (
            name not in settings_of(OptimizerConfig)
            and entries.owners(OptimizerConfig, name)[1] == "schedule"
        )
        for section, _, name in paths
        if section == "optimizer"
    )


@functools.cache
def settings() -> Mapping[str, Setting]:
    """Returns what each field says about itself, by its path: `phases.N.steps` is that of all."""
    return dict(all_settings(TrainConfig))


def setting_of(path: str) -> Setting | None:
    """Returns what the field at a path says, or at a path inside its value, or an option of an
    entry; none for no field. What a phase changes may change as the phase may.
    """
    _, phase, inner = numbered(path).partition("phases.N.")
    if phase and inner.partition(".")[0] in PhaseConfig.sections:
        found = setting_of(inner)
        return found and dataclasses.replace(found, rule=PHASE)
    names = (numbered(path), numbered(path).removesuffix(".N"))
    if (found := next((name for name in names if name in settings()), None)) is not None:
        return settings()[found]
    options = option_paths()
    return next((options[name][0] for name in names if name in options), None)


def option_paths() -> Mapping[str, tuple[Setting, str, list[str]]]:
    """Returns the options of all entries by path, with what they say about themselves, the field
    that chooses and the entries that have them. All entries are imported for it.
    """
    found: dict[str, tuple[Setting, str, list[str]]] = {}
    for prefix in ("", *typing.get_type_hints(TrainConfig)):
        if (cls := section_at(prefix)) is not None:
            for field, value, name, described in entries.all_options(cls):
                path = f"{prefix}.{name}" if prefix else name
                found.setdefault(path, (described, field, []))[2].append(value)
    return found


def section_at(prefix: str) -> type[WithOptions] | None:
    """Returns the class of the section that begins with a path, if its entries may have options;
    the config itself for none.
    """
    hints = typing.get_type_hints(TrainConfig)
    cls = hints.get(prefix) if prefix else TrainConfig
    return cls if isinstance(cls, type) and issubclass(cls, WithOptions) else None


def from_dict(values: dict[str, Any], cls: Any = TrainConfig, path: str = "") -> Any:
    """Builds `cls` from JSON values. Unknown keys and wrong types are `UsageError`s."""
    return convert(values, cls, path)
