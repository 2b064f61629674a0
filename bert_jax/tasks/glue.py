"""GLUE's nine tasks (Wang et al. 2019): columns, labels, metrics and files."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bert_jax.data.sources.columns import Columns
from bert_jax.data.sources.read import read_text
from bert_jax.data.sources.rows import tfds_rows
from bert_jax.data.sources.stream import Records, SourceOptions
from bert_jax.data.tasks.tables import TextRow, read_rows
from bert_jax.errors import UsageError
from bert_jax.tasks.task import NamedTask, Sources, Splits, Task, TaskSpec


@dataclass(frozen=True)
class GlueTask:
    """A task of GLUE. TFDS uses the same name."""

    name: str  # as in a submission
    spec: TaskSpec
    # Columns in TFDS, if their names differ there.
    tfds_columns: tuple[str, ...] = ()
    # Columns of the labeled files, if they have no header.
    header: tuple[str, ...] | None = None
    # A split, its file in GLUE's folder, and its TFDS split.
    dev: tuple[tuple[str, str, str], ...] = (("dev", "dev.tsv", "validation"),)
    # Whether some truncated lines are skipped and counted.
    has_short_lines: bool = False

    @property
    def test(self) -> dict[str, str]:
        """The files to predict, and their names in a submission."""
        if len(self.dev) == 1:
            return {"test.tsv": f"{self.name}.tsv"}
        return {f"test_{split}.tsv": f"{self.name}-{_SHORT[split]}.tsv" for split, *_ in self.dev}


_USUAL = SourceOptions()
_SHORT = {"matched": "m", "mismatched": "mm"}
_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")


def _spec(name: str, columns: tuple[str, ...], labels: tuple[str, ...], **rest: Any) -> TaskSpec:
    values = {"kind": "classification", "metrics": ("accuracy",)} | rest
    return TaskSpec(name=name, text_columns=columns, labels=labels, **values)


_PAIR = ("sentence1", "sentence2")
_QUESTIONS = ("question1", "question2")
_TASKS = (
    GlueTask("CoLA", _spec("cola", ("sentence",), _BINARY, metrics=("matthews", "accuracy")),
             header=("source", "label", "star", "sentence")),
    GlueTask("SST-2", _spec("sst2", ("sentence",), _BINARY)),
    GlueTask("MRPC", _spec("mrpc", ("#1 String", "#2 String"), _BINARY, label_column="Quality",
                           metrics=("f1", "accuracy")),
             tfds_columns=_PAIR),
    GlueTask("STS-B", _spec("stsb", _PAIR, (), kind="regression", label_column="score",
                            metrics=("spearman", "pearson"))),
    GlueTask("QQP", _spec("qqp", _QUESTIONS, _BINARY, label_column="is_duplicate",
                          metrics=("f1", "accuracy")),
             has_short_lines=True),
    GlueTask("MNLI", _spec("mnli", _PAIR, ("entailment", "neutral", "contradiction"),
                           label_column="gold_label"),
             tfds_columns=("premise", "hypothesis"),
             dev=(("matched", "dev_matched.tsv", "validation_matched"),
                  ("mismatched", "dev_mismatched.tsv", "validation_mismatched"))),
    GlueTask("QNLI", _spec("qnli", ("question", "sentence"), _ENTAILMENT)),
    GlueTask("RTE", _spec("rte", _PAIR, _ENTAILMENT)),
    GlueTask("WNLI", _spec("wnli", _PAIR, _BINARY)),
)  # fmt: skip
TASKS = {task.spec.name: task for task in _TASKS}


def _read(task: Task, sources: Sources) -> Splits:
    """Reads all splits from GLUE's folder, or `tfds:glue/NAME`."""
    name = task.spec.name
    if sources.data is None:
        raise UsageError(
            f"`task` {name} needs `data`: a folder of GLUE's files, or tfds:glue/{name}"
        )
    if sources.train or sources.dev is not None:
        raise UsageError(f"`task` {name} reads its rows from `data`; remove `train` and `dev`")
    glue, data, reading = TASKS[name], sources.data, sources.reading
    train = read_split(glue, data, "train.tsv", "train", reading)
    return train, {n: read_split(glue, data, *rest, reading=reading) for n, *rest in glue.dev}


def read_split(
    task: GlueTask, source: str, file: str, split: str, reading: SourceOptions = _USUAL
) -> list[TextRow]:
    """Returns the labeled rows of a split, from GLUE's folder `source` or from `tfds:glue/NAME`."""
    if source.startswith("tfds:"):
        return list(_from_tfds(task, source, split))
    path = find_file(Path(source), file)
    return read_rows(
        path,
        text_columns=task.spec.text_columns,
        label_column=task.spec.label_column,
        header=task.header,
        reading=replace(reading, skips_records=task.has_short_lines or reading.skips_records),
    )


def header_of(task: GlueTask, source: str) -> tuple[str, ...] | None:
    """Returns the columns of a TSV without a header: CoLA's, except for its test file."""
    if task.header is None or not source.removesuffix(".gz").endswith(".tsv"):
        return None
    first = read_text(source).split("\n", 1)[0].split("\t")
    return None if set(task.spec.text_columns) <= set(first) else task.header


def find_file(folder: Path, name: str) -> Path:
    """Returns `name` or `name.gz` in the folder. Raises UsageError if neither exists."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise UsageError(f"{folder} has no {name} or {name}.gz; name a folder with GLUE's files")


def _from_tfds(task: GlueTask, source: str, split: str) -> Iterator[TextRow]:
    labels = task.spec.labels
    names = [*(task.tfds_columns or task.spec.text_columns), "label", "idx"]
    columns = Columns([(name,) for name in names], f"use tfds:glue/{task.spec.name}")
    records = Records(source, SourceOptions(), None)
    for location, (*texts, label, id_) in tfds_rows(f"{source}:{split}", records, columns):
        known = labels[label] if labels and 0 <= label < len(labels) else str(label)
        yield TextRow(location, tuple(texts), known, str(id_))


# The entries of registry.TASKS.
NAMED = {
    name: NamedTask(spec=task.spec, read=_read, header=partial(header_of, task))
    for name, task in TASKS.items()
}
