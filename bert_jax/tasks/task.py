"""What a task is: a value that is stored with the run, and what each kind of task can do with it.

`TaskSpec` says what the rows are, which head they need and how they are scored. Three kinds of task
read it: texts (`texts.py`: a class or a number), words (`words.py`: a tag for each), spans
(`spans.py`: questions answered by a part of a paragraph). The loop knows none of them; it asks for
what `Task` lists.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from bert_jax.config import HeadConfig
from bert_jax.data.features import Features
from bert_jax.data.tokenizer import Tokenizer

KINDS = ("classification", "regression", "tokens", "spans")


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """A task and how its texts become rows. Stored in a run's `config.json`."""

    name: str
    kind: str
    # Of a classification or of tokens, in the order of the model's outputs.
    labels: tuple[str, ...] = ()
    # One or two columns of a table, and the column of the label.
    text_columns: tuple[str, ...] = ()
    label_column: str = "label"
    # Of `scores`; the first one decides which run is best.
    metrics: tuple[str, ...] = ()
    truncation: str = "longest_first"
    tag_scheme: str = "IOB2"
    # Of spans (google-research/bert run_squad.py): tokens between the beginnings of windows, and
    # the longest question and answer in tokens; how many answers are kept to choose from.
    doc_stride: int = 128
    max_question_length: int = 64
    max_answer_length: int = 30
    n_best: int = 20
    # SQuAD 2.0: a question may have no answer, and has none where the score of that exceeds the
    # best answer's by more than this.
    with_unanswerable: bool = False
    null_threshold: float = 0.0


@dataclass(frozen=True)
class Encoded:
    """Rows as the model takes them, and whatever leads from its outputs back to the texts."""

    features: Features
    places: Any = None


class Task(Protocol):
    """What the loop and the predictor ask of a kind of task.

    `rows` are what the kind's reader gives; `outputs` are the head's, float32, one entry a row of
    features: `[N, C]`, `[N, L, C]` or `[N, L, 2]`.
    """

    @property
    def spec(self) -> TaskSpec: ...

    def head(self) -> HeadConfig: ...

    def encode(
        self, rows: Sequence[Any], tokenizer: Tokenizer, *, length: int, labelled: bool
    ) -> Encoded:
        """Raises UsageError that names the row whose text or label is not usable."""
        ...

    def score(self, rows: Sequence[Any], encoded: Encoded, outputs: np.ndarray) -> dict[str, float]:
        """Every metric of the task, the main one first."""
        ...

    def chance(self, rows: Sequence[Any]) -> float:
        """The main metric of a model that says the same of every row.

        -inf where all rows have one answer: no model is better than the one that gives it.
        """
        ...

    def predictions(
        self, rows: Sequence[Any], encoded: Encoded, outputs: np.ndarray
    ) -> list[dict[str, Any]]:
        """What the model says of each row, ready for JSON."""
        ...


def task_of(spec: TaskSpec) -> Task:
    """The kind that handles `spec`."""
    from bert_jax.tasks import spans, texts, words

    kinds = {"tokens": words.WordTask, "spans": spans.SpanTask}
    return kinds.get(spec.kind, texts.TextTask)(spec)
