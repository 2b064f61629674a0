"""A complete run as one frozen value: model, data, optimizer, phases.

Each option is declared once, in the file of its section (fields.py). `config_checks` checks a
config as a whole before anything starts, and `config_loader` finds and changes configs. Nothing
here imports a heavy library.
"""

import bisect
import dataclasses
import itertools
from typing import Annotated, Any, Literal

from msgspec import Meta

from bert_jax.config.compute import CheckpointConfig, ComputeConfig, EvaluationConfig, MeshConfig
from bert_jax.config.conversion import flatten, from_dict, leaves, replaced, to_dict
from bert_jax.config.data import DataConfig
from bert_jax.config.embedding import EmbeddingConfig, InfoNCE, PairLoss
from bert_jax.config.fields import Count, Kind, Positive, section, setting
from bert_jax.config.model import HeadConfig, Mixing, ModelConfig
from bert_jax.config.optimizer import Optimizer, OptimizerConfig, Schedule
from bert_jax.config.phase import PhaseConfig, growing
from bert_jax.registry import HOOKS, OBJECTIVES, TRACKERS

__all__ = [
    "CheckpointConfig", "ComputeConfig", "DataConfig", "EmbeddingConfig", "EvaluationConfig",
    "HeadConfig", "HookConfig", "InfoNCE", "MeshConfig", "Mixing", "ModelConfig", "Optimizer",
    "OptimizerConfig", "PairLoss", "PhaseConfig", "Schedule", "TrainConfig", "flatten",
    "from_dict", "growing", "leaves", "replaced", "to_dict",
]  # fmt: skip


@section
class HookConfig(Kind, table=HOOKS):
    """The base of the options of hooks (training/hooks.py)."""

    free = True

    @property
    def figures(self) -> tuple[str, ...]:
        """The metrics that the hook adds to an evaluation, the main one first."""
        return ()


@section
class TrainConfig:
    """All settings of a run except the corpus."""

    name: str = setting("unnamed", "Name of the run in messages.", free=True)
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] = setting(
        0, "Seed of the initial weights, the order of examples, the masks and dropout."
    )
    objective: str = setting(
        "mlm+nsp",
        "What the model learns: `mlm+nsp` masked tokens and next sentences (BERT), `mlm` masked "
        "tokens only (RoBERTa), `rtd` replaced-token detection (ELECTRA), `contrastive` text "
        "embeddings from pairs.",
        choices=OBJECTIVES,
    )
    model: ModelConfig = ModelConfig()
    head: HeadConfig = HeadConfig()
    compute: ComputeConfig = ComputeConfig()
    data: DataConfig = DataConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()
    optimizer: Optimizer = setting(OptimizerConfig(), "The optimizer and its options.")
    phases: tuple[PhaseConfig, ...] = (PhaseConfig(),)
    mesh: MeshConfig = MeshConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log_every_steps: Count = setting(100, "Steps between records of `metrics.jsonl`.", free=True)
    trackers: tuple[str, ...] = setting(
        (),
        "Services that also receive the metrics. Each start of the command is a new run in the "
        "service, with the earlier records. If a service fails, training continues with a warning.",
        choices=TRACKERS,
        free=True,
    )
    hooks: tuple[HookConfig, ...] = setting((), "Hooks observe the run and may stop it.", free=True)
    deadline_seconds: Positive = setting(
        900.0,
        "Longest time without progress, in seconds. After it a process reports where it hangs and "
        "ends with exit code 200. A compilation may take four times as long.",
        free=True,
    )
    output_bias: Literal["zeros", "log_frequency"] = setting(
        "zeros",
        "Initial output bias of the masked-LM head: `zeros`, or `log_frequency`, the logarithm of "
        "the frequency of each token in the corpus.",
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
        """The phases without overrides and packing, as a trained model is evaluated."""
        rate = self.data.masked_lm_prob
        return tuple(p.unpacked(rate).without_overrides() for p in self.phases)

    def phase_of(self, update: int) -> int:
        """Returns the number of the phase in which an update is made, counted from 0."""
        return bisect.bisect_right(self.phase_ends, update)

    def in_phase(self, number: int) -> "TrainConfig":
        """Returns the config with the overrides of the phases up to this one."""
        overrides: dict[str, Any] = {}
        for phase in self.phases[: number + 1]:
            overrides |= phase.overrides
        return replaced(self, overrides)

    def at_step(self, step: int) -> "TrainConfig":
        """Returns the config with the model of a checkpoint: the model of the phase that made its
        last update.
        """
        model = self.in_phase(self.phase_of(max(step - 1, 0))).model
        return dataclasses.replace(self, model=model)

    def changes_of(self, number: int) -> dict[str, tuple[Any, Any]]:
        """Returns the old and the new value of each field, other than `steps`, that differs between
        a phase and the phase before it, by path. A missing value is None.
        """
        if not number:
            return {}
        old, new = self._described(number - 1), self._described(number)
        return {p: (old.get(p), value) for p, value in new.items() if old.get(p) != value}

    def _described(self, number: int) -> dict[str, Any]:
        """Returns all fields that may differ between phases, by path."""
        phase = self.phases[number].without_overrides()
        rate = phase.mask_rate(self.data.masked_lm_prob)
        phase = dataclasses.replace(phase, steps=1, masked_lm_prob=rate)
        return flatten(phase) | flatten(self.in_phase(number))

    def schedule_span(self, number: int) -> range:
        """Returns the updates of the schedule that a phase belongs to.

        A phase that overrides the schedule, its rate or its warm-up starts a schedule.
        """
        if not self.phases:
            return range(0)
        begins = [0, *(i for i, p in enumerate(self.phases) if i and p.starts_schedule),
                  len(self.phases)]  # fmt: skip
        edges = (0, *self.phase_ends)
        last = bisect.bisect_right(begins, number)
        return range(edges[begins[last - 1]], edges[begins[last]])
