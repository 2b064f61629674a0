"""A complete run as one frozen value: the model, the data, the optimiser, the phases.

Each field is declared once, in the file of its section, with all that is known about it
(`fields.py`). A config is checked as a whole before anything starts (`config_checks.py`), and
stored as JSON beside the run. How a config is named and changed is in `config_loader.py`. Nothing
here imports a heavy library.
"""

import functools
import itertools
import typing
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from bert_jax.config import entries
from bert_jax.config.compute import CheckpointConfig, ComputeConfig, EvaluationConfig, MeshConfig
from bert_jax.config.conversion import convert, flatten, to_dict
from bert_jax.config.data import DataConfig, PhaseConfig
from bert_jax.config.fields import (
    FREE,
    PRETRAINING,
    TASKS,
    Rule,
    Setting,
    WithOptions,
    all_settings,
    numbered,
    section,
    setting,
)
from bert_jax.config.model import HeadConfig, ModelConfig
from bert_jax.config.optimizer import OptimizerConfig
from bert_jax.registry import OBJECTIVES, TRACKERS

__all__ = [
    "CheckpointConfig", "ComputeConfig", "DataConfig", "EvaluationConfig", "HeadConfig",
    "MeshConfig", "ModelConfig", "OptimizerConfig", "PhaseConfig", "TrainConfig", "flatten",
    "from_dict", "setting_of", "settings", "to_dict",
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
        "Services that receive the rows, too. Each start of a run is a run "
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
# fmt: on


@functools.cache
def settings() -> Mapping[str, Setting]:
    """Returns what each field says about itself, by its path: `phases.N.steps` is that of all."""
    return dict(all_settings(TrainConfig))


def setting_of(path: str) -> Setting | None:
    """Returns what the field at a path says, or at a path inside its value, or an option of an
    entry; none for no field.
    """
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
