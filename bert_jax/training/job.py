"""`TrainingJob`: what the loop needs from pre-training or fine-tuning. `Run`: what hooks see."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import jax
from jax.sharding import Mesh

from bert_jax.config import TrainConfig
from bert_jax.objectives.objective import Objective
from bert_jax.progress import Progress
from bert_jax.update.state import TrainState
from bert_jax.workdir.metrics_log import MetricsLogger

# A line of metrics.jsonl.
Row = dict[str, Any]
# Split -> metric -> value.
Scores = dict[str, dict[str, Any]]


class Evaluation(Protocol):
    """The validation data of one phase and the compiled step that scores it."""

    # Columns of each row of the log in addition to the scores.
    columns: dict[str, Any]
    # Whether `run` may have to compile, which takes long.
    compiles_on_the_way: bool

    def prepare(self) -> None:
        """Compiles the steps that can be compiled before `run`. May run in any thread."""
        raise NotImplementedError

    def run(self, params: Any, *, cut_short: Callable[[], bool]) -> Scores | None:
        """Returns the scores; None once `cut_short`, asked before every batch, is true."""
        raise NotImplementedError


class TrainingJob:
    """Everything of a run except the loop. Each method is a function of its arguments and the
    config.
    """

    config: TrainConfig
    mesh: Mesh
    # A factor of the learning rate for each parameter (update/layer_rates.py), or None.
    rates: Any = None
    # The title of the progress bar, and a description of the data for the first line of the log.
    title: str
    introduction: str
    # The place of the tokenizer.
    tokenizer: Path
    # corpus.json of the training corpus; None for a task.
    manifest: dict[str, Any] | None = None
    # Whether a new run starts from a trained model, which is evaluated before the first step.
    begins_trained: bool = False
    objective: Objective
    # Phase -> its step, if the search for settings that fit has compiled it (memory/fit.py).
    programs: Mapping[int, Any] = MappingProxyType({})

    def initial_state(self) -> TrainState:
        """Returns the state of a new run."""
        raise NotImplementedError

    def abstract_batch(self, phase: int) -> dict[str, jax.ShapeDtypeStruct] | None:
        """Returns the shapes of a phase's batches if all are equal: the step is compiled for them
        before the first batch. None otherwise.
        """
        return None

    def batches(self, phase: int, start: int, stop: int) -> Iterator[dict[str, jax.Array]]:
        """Returns the global batches of the steps from `start` to `stop`, in order."""
        raise NotImplementedError

    def evaluation(self, phase: int, params: Any) -> Evaluation:
        """Returns the evaluation of this phase."""
        raise NotImplementedError

    def speed(self, phase: int, seconds: float) -> dict[str, float]:
        """Returns speed metrics for a step time of `seconds`."""
        raise NotImplementedError

    def seen(self, step: int) -> dict[str, float]:
        """Returns the data seen and the FLOPs spent at a step, as columns of the log."""
        return {}

    def kept_steps(self) -> frozenset[int]:
        """Returns steps to save and to keep, in addition to `keep_last` and `keep_every`."""
        return frozenset()

    def figures(self) -> Sequence[str]:
        """Returns the names of the metrics of an evaluation, the main metric first."""
        return self.objective.watched()

    def describe(self, scores: Scores) -> str:
        """Returns the scores as one line."""
        raise NotImplementedError

    def facts(self) -> dict[str, str]:
        """Returns values that must be equal in all processes, in addition to the config."""
        raise NotImplementedError


@dataclass(kw_only=True)
class Run:
    """A run in this process, as hooks see it."""

    job: TrainingJob
    directory: Path
    logger: MetricsLogger
    bar: Progress

    def print(self, text: str) -> None:
        """Shows a line above the progress bar."""
        self.bar.print(text)

    def event(self, name: str, **values: Any) -> None:
        """Writes a line of events.jsonl."""
        self.logger.event(name, **values)
