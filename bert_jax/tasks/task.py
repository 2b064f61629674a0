"""Defines tasks: a `TaskSpec` is stored with a run, and a kind (`Task`) interprets it.

`TaskSpec` has the columns, the labels and the metrics; the kinds are texts with a class or a
number, tags of words, and questions with an answer in a paragraph. A `NamedTask` is a spec with a
name and a source of rows. The loop, evaluation and prediction use only the methods of `Task`.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.config import EmbeddingConfig, HeadConfig, TrainConfig
from bert_jax.data import counter_rng
from bert_jax.data.sources.stream import HELD_OUT, SourceOptions
from bert_jax.data.tasks.encode_rows import Features
from bert_jax.data.tasks.tag_schemes import SCHEMES
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UsageError
from bert_jax.progress import note
from bert_jax.registry import TASK_KINDS

# The choices of spec fields, and the fields that are counts.
_CHOICES = {
    "truncation": ("longest_first", "only_first", "only_second", "never"),
    "tag_scheme": ("", *SCHEMES),
}
_POSITIVE = ("doc_stride", "max_question_length", "max_answer_length", "n_best")


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """A task and how its texts become rows. Stored in a run's `config.json`."""

    name: str
    kind: str
    # For classification and tagging, in the order of the model's outputs.
    labels: tuple[str, ...] = ()
    # One or two columns of a table, and the column of the label; for pairs the column of the
    # teacher scores, or "". For tagging: the columns of word and tag, and the names of all columns
    # if lines have more than two.
    text_columns: tuple[str, ...] = ()
    label_column: str = "label"
    line_columns: tuple[str, ...] = ()
    # Names in `scores`; the first one selects the best run.
    metrics: tuple[str, ...] = ()
    truncation: str = "longest_first"
    # For tagging: one of `tag_schemes.SCHEMES`, detected from the training rows.
    tag_scheme: str = ""
    # For spans (google-research/bert run_squad.py): tokens between the starts of windows, maximum
    # tokens of question and answer, and the number of candidate answers.
    doc_stride: int = 128
    max_question_length: int = 64
    max_answer_length: int = 30
    n_best: int = 20
    # SQuAD 2.0: a question may have no answer. That is predicted if its score exceeds the best
    # answer's by more than this.
    with_unanswerable: bool = False
    null_threshold: float = 0.0
    # For pairs: text before each query and before each document; None: the checkpoint's.
    query_prompt: str | None = None
    document_prompt: str | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                known = ", ".join(filter(None, choices))
                raise UsageError(f"`{name}` {value}: must be one of {known}")
        for name in _POSITIVE:
            if (value := getattr(self, name)) < 1:
                raise UsageError(f"`{name}` {value}: must be at least 1")
        if math.isnan(self.null_threshold):
            raise UsageError("`null_threshold` nan: must be a number")


@dataclass(frozen=True)
class Encoded:
    """Rows as read and as model inputs, and the data that map outputs back to the texts."""

    rows: Sequence[Any]
    features: Features
    alignment: Any = None


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The place of a task's rows: a folder or `tfds:` address of all splits, or two files or
    addresses.

    Each may be given as a `str` or a `Path`; `train` of a task of pairs also as several.
    """

    data: str | None = None
    train: str | Path | Sequence[str | Path] = ()
    dev: str | None = None
    # The number of training rows to use, from the first; None uses all.
    train_rows: int | None = None
    # Selects the tenth of the training rows that is held out if `dev` is missing.
    seed: int = 0
    reading: SourceOptions = field(default_factory=SourceOptions)

    def __post_init__(self) -> None:
        for name in ("data", "dev"):
            if (place := getattr(self, name)) is not None:
                object.__setattr__(self, name, str(place))
        object.__setattr__(self, "train", self.files)
        if self.train_rows is not None and self.train_rows < 1:
            raise UsageError(f"`train_rows` {self.train_rows}: must be at least 1")

    @property
    def files(self) -> tuple[str, ...]:
        """The training files."""
        given = (self.train,) if isinstance(self.train, str | Path) else self.train
        return tuple(map(str, given))


class Task:
    """The base of all kinds of tasks (registry.TASK_KINDS).

    `rows` are the result of `read`, `encoded` the result of `encode`; `outputs` are the head's
    outputs, float32, with one entry per row of features: `[N, C]`, `[N, L, C]` or `[N, L, 2]`.
    """

    # The default number of tokens per row (google-research/bert run_classifier.py).
    default_length = 128
    # Whether its files are tables with named columns.
    has_columns = False
    # Whether its scores are already in percent.
    has_percent_scores = False
    # Whether a batch needs rows of one source, so that each of several training files is a source.
    one_source_per_batch = False

    # How its files are read, in addition to the spec.
    reading = SourceOptions()
    # The similarity of the run's vectors (`embedding.similarity`).
    similarity = "cosine"

    def __init__(self, spec: TaskSpec):
        self.spec = spec
        known = self.known_metrics()
        if not spec.metrics:
            raise UsageError(f"task {spec.name}: metrics is empty; name at least one")
        for name in spec.metrics:
            if known and name not in known:
                count = f" with {len(spec.labels)} labels" * bool(spec.labels)
                ours = f"but a task of kind {spec.kind}{count} supports {', '.join(known)}"
                raise UsageError(f"task {spec.name}: metrics has {name!r}, {ours}")

    def known_metrics(self) -> Sequence[str]:
        """Returns the metrics that a spec may name; empty if any name is allowed."""
        return ()

    def figures(self) -> Sequence[str]:
        """Returns the names of the scores, the main one first."""
        return self.spec.metrics

    def read(
        self, source: str, *, labelled: bool = True, id_column: str | None = None
    ) -> list[Any]:
        """Returns the rows of a file or address. `id_column` is for tables only.

        Raises UsageError that names file, line and field.
        """
        raise NotImplementedError

    def row(self, given: Any, *, number: int) -> Any:
        """Returns a row given in Python in the form of `read`, without a label.

        Raises UsageError that names the row, counted from 0.
        """
        return given

    def with_labels(self, train: Sequence[Any]) -> TaskSpec:
        """Returns the spec, with the labels of the training rows if it has none."""
        return self.spec

    def usable(self, train: list[Any]) -> list[Any]:
        """Returns the training rows that have a usable label."""
        return train

    def group(self, row: Any) -> Any:
        """Returns what rows have in common that are held out together; None for no group."""
        return getattr(row, "context", None)

    def check(
        self, config: TrainConfig, train: Sequence[Any], dev: Mapping[str, Sequence[Any]]
    ) -> None:
        """Raises UsageError for a config that the rows are not fit for."""

    def head(self) -> HeadConfig:
        """Returns the parts of the model that the task needs."""
        raise NotImplementedError

    def embedding(self) -> EmbeddingConfig:
        """Returns how embeddings of texts are trained, for the head `embedding`."""
        return EmbeddingConfig()

    def encode(
        self, rows: Sequence[Any], tokenizer: Tokenizer, *, length: int, labelled: bool
    ) -> Encoded:
        """Raises UsageError that names the row with an unusable text or label."""
        raise NotImplementedError

    def describe(self, encoded: Encoded, *, length: int) -> str | None:
        """Returns a summary of the training rows for the log, or None."""

    def fingerprint(self, rows: Sequence[Any]) -> str:
        """Returns the data that scores depend on in addition to the encoded rows."""
        return ""

    def score(self, encoded: Encoded, outputs: np.ndarray) -> dict[str, float]:
        """Returns all metrics of the task, the main one first."""
        raise NotImplementedError

    def majority_baseline(self, rows: Sequence[Any]) -> float:
        """Returns the main metric of a model with the same answer for every row.

        -inf if all rows have the same answer, because no model can be better.
        """
        raise NotImplementedError

    def predictions(self, encoded: Encoded, outputs: np.ndarray) -> list[dict[str, Any]]:
        """Returns the prediction for each row, for JSON."""
        raise NotImplementedError


def in_order(labels: Iterable[str]) -> tuple[str, ...]:
    """Returns the distinct labels in the order of the model's outputs: by number if all are
    integers (also as "1.0" or "01"), so that label k of 0 to n - 1 is output k; otherwise sorted as
    text.
    """
    distinct = sorted(set(labels))
    if all(re.fullmatch(r"[+-]?[0-9]+([.]0+)?", label) for label in distinct):
        distinct.sort(key=lambda label: int(label.partition(".")[0]))
    return tuple(distinct)


Splits = tuple[list[Any], dict[str, list[Any]]]


def read_files(task: Task, sources: Sources) -> Splits:
    """Reads the training and development rows of a task from two files."""
    name = task.spec.name
    if sources.data is not None:
        raise UsageError(f"`task` {name}: use `train` FILE and `dev` FILE instead of `data`")
    files = sources.files
    if not files:
        raise UsageError(f"`task` {name} needs `train` FILE and, optionally, `dev` FILE")
    if len(files) > 1 and not task.one_source_per_batch:
        raise UsageError(
            f"`task` {name} takes one `train`: name a folder or a glob for several files"
        )
    train = [row for file in files for row in task.read(file)]
    if len(files) > 1 and len({row.source for row in train}) < len(files):
        raise UsageError(f"`train` {', '.join(files)}: two files have one name; rename one")
    if sources.dev is not None:
        # A data set with splits has both.
        task.reading = replace(task.reading, splits=HELD_OUT)
        return train, {"dev": task.read(sources.dev)}
    kept, held_out = hold_out(train, seed=sources.seed, group=task.group)
    note(
        f"no `dev`: holding out {len(held_out):,} of the {len(train):,} rows of {', '.join(files)} "
        f"for evaluation, chosen by seed {sources.seed}"
    )
    return kept, {"dev": held_out}


def hold_out(
    rows: list[Any], *, seed: int, group: Callable[[Any], Any]
) -> tuple[list[Any], list[Any]]:
    """Returns nine tenths of the rows and the remaining tenth, each in the original order.

    The rows of a group, such as questions about one paragraph, stay together. Raises UsageError if
    one part would be empty.
    """
    of = [(number,) if g is None else g for number, g in enumerate(map(group, rows))]
    groups = {group: number for number, group in enumerate(dict.fromkeys(of))}
    places = counter_rng.permute(np.arange(len(groups)), len(groups), counter_rng.derive(seed))
    is_held = [bool(places[groups[group]] < len(groups) // 10) for group in of]
    if not any(is_held):
        what = "rows" if len(groups) == len(rows) else "different questions or queries"
        raise UsageError(
            f"`dev`: {len(groups)} {what} are too few to hold out a tenth; name a file"
        )
    kept = [row for row, held in zip(rows, is_held, strict=True) if not held]
    return kept, [row for row, held in zip(rows, is_held, strict=True) if held]


@dataclass(frozen=True, kw_only=True)
class NamedTask:
    """An entry of `registry.TASKS`: a spec, and the source of its rows."""

    spec: TaskSpec
    # The minimum and maximum number of text columns that the user names.
    text_columns: tuple[int, int] = (0, 0)

    def read(self, task: Task, sources: Sources) -> Splits:
        """Returns the training and development rows of its task, by default from two files."""
        return read_files(task, sources)

    def header(self, source: str) -> tuple[str, ...] | None:
        """Returns the columns of a file without a header; None for a file with one."""


def task_of(spec: TaskSpec, *, reading: SourceOptions | None = None) -> Task:
    """Returns the task of the kind that `spec` names."""
    task = TASK_KINDS[spec.kind](spec)
    if reading is not None:
        task.reading = reading
    return task
