"""`TrainingJob`: what the loop needs from pre-training or fine-tuning."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
from jax.sharding import Mesh

from bert_jax.config import TrainConfig
from bert_jax.objectives.objective import Objective
from bert_jax.update.state import TrainState

# A line of metrics.jsonl.
Row = dict[str, Any]
# Split -> metric -> value.
Scores = dict[str, dict[str, Any]]


class Evaluation(Protocol):
    """Held-out rows of one phase, and what goes through them."""

    # What every row of the log has beside the scores.
    columns: dict[str, Any]
    # Whether any batch may have to be compiled first, which takes long.
    compiles_on_the_way: bool

    def prepare(self) -> None:
        """Compiles what can be compiled ahead. In any thread."""
        raise NotImplementedError

    def run(self, params: Any, *, cut_short: Callable[[], bool]) -> Scores | None:
        """Returns the scores; None once `cut_short`, asked before every batch, is true."""
        raise NotImplementedError


class TrainingJob:
    """One run, but for the loop. Every method is a function of its arguments and the config."""

    config: TrainConfig
    mesh: Mesh
    # A factor of the learning rate for each parameter (update/layer_rates.py), or None.
    rates: Any = None
    # The title of the bar, and what is noted of the data when the run begins.
    title: str
    introduction: str
    # corpus.json of the corpus that is trained on; None for a task.
    manifest: dict[str, Any] | None = None
    # Whether a new run begins from a trained model, which is scored before the first step.
    begins_trained: bool = False
    objective: Objective

    def initial_state(self) -> TrainState:
        """Returns the state that a new run begins with."""
        raise NotImplementedError

    def abstract_batch(self, phase: int) -> dict[str, jax.ShapeDtypeStruct] | None:
        """Returns the shapes of a phase's batches, if all are alike: they are compiled ahead."""
        return None

    def batches(self, phase: int, start: int, stop: int) -> Iterator[dict[str, jax.Array]]:
        """Returns the global batches of the steps from `start` to `stop`, in order."""
        raise NotImplementedError

    def evaluation(self, phase: int, params: Any) -> Evaluation:
        """Returns the evaluation that is due in this phase."""
        raise NotImplementedError

    def speed(self, phase: int, seconds: float) -> dict[str, float]:
        """Returns the figures of speed of a step that takes so many seconds."""
        raise NotImplementedError

    def epochs(self, step: int) -> dict[str, float]:
        """Returns how often the run has gone over each source by a step, as columns of the log;
        nothing where there is one source.
        """
        return {}

    def figures(self) -> Sequence[str]:
        """Returns the figures that an evaluation has, the main one first."""
        return self.objective.watched()

    def describe(self, scores: Scores) -> str:
        """Returns the scores as one line."""
        raise NotImplementedError

    def facts(self) -> dict[str, str]:
        """Returns what must be the same in every process, beside the config."""
        raise NotImplementedError
