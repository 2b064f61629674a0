"""The work of a run: the little in which pre-training and fine-tuning differ.

The loop (loop.py) is one for both. It asks a `Work` for batches, for an evaluation, and for words.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
from jax.sharding import Mesh

from bert_jax.config import TrainConfig
from bert_jax.objectives.objective import Objective
from bert_jax_lab.reference_curves.expectation import Expectation

# Split -> metric -> value.
Scores = dict[str, dict[str, float]]


class Evaluation(Protocol):
    """Held-out rows of one phase, and what goes through them."""

    # What every row of the log says beside the scores.
    columns: dict[str, Any]
    # Whether any batch may have to be compiled first, which takes long.
    compiles_on_the_way: bool

    def prepare(self) -> None:
        """Compiles what can be compiled ahead. In any thread."""
        ...

    def run(self, params: Any, *, cut_short: Callable[[], bool]) -> Scores | None:
        """Returns the scores; None if `cut_short`, which is asked before every batch, says so."""
        ...


class Work(Protocol):
    """One run, but for the loop. Every method is a function of its arguments and the config."""

    config: TrainConfig
    mesh: Mesh
    # A factor of the learning rate for each parameter (update/layer_rates.py), or None.
    rates: Any
    # What the bar is called, and the words about the data when the run begins.
    title: str
    introduction: str
    # What is expected of the losses; None where nothing is.
    expectation: Expectation | None

    @property
    def objective(self) -> Objective: ...

    def abstract_batch(self, phase: int) -> dict[str, jax.ShapeDtypeStruct] | None:
        """Returns the shapes of a phase's batches, if all are alike: they are compiled ahead."""
        ...

    def batches(self, phase: int, start: int, stop: int) -> Iterator[dict[str, jax.Array]]:
        """Returns the global batches of the steps from `start` to `stop`, in order."""
        ...

    def evaluation(self, phase: int, params: Any) -> Evaluation:
        """Returns the evaluation that is due in this phase."""
        ...

    def speed(self, phase: int, seconds: float) -> dict[str, float]:
        """Returns the figures of speed of a step that takes so many seconds."""
        ...

    def describe(self, scores: Scores) -> str:
        """Returns the scores as one line."""
        ...

    def facts(self) -> dict[str, str]:
        """Returns what must be the same in every process, beside the config."""
        ...
