"""GLUE's nine tasks (Wang et al. 2019): columns, labels, metrics and files."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bert_jax.data.sources.columns import Columns
from bert_jax.data.sources.read import read_text
from bert_jax.data.sources.rows import tfds_rows
from bert_jax.data.sources.stream import Records, SourceOptions
from bert_jax.data.tasks.tables import TextRow, read_rows
from bert_jax.errors import UsageError
from bert_jax.tasks.task import NamedTask, Sources, Splits, Task, TaskSpec

_USUAL = SourceOptions()


@dataclass(frozen=True)
class GlueTask(NamedTask):
    """A task of GLUE. TFDS uses the same name."""

    name: str  # as in a submission
    # Columns in TFDS, if their names differ there.
    tfds_columns: tuple[str, ...] = ()
    # Columns of the labeled files, if they have no header.
    columns: tuple[str, ...] | None = None
    # A split, its file in GLUE's folder, and its TFDS split.
    dev: tuple[tuple[str, str, str], ...] = (("dev", "dev.tsv", "validation"),)
    # Whether some truncated lines are skipped and counted.
    has_short_lines: bool = False

    @property
    def remedy(self) -> str:
        """The fix for a missing column: a user does not choose the columns."""
        return f"use the files of GLUE's {self.name}"

    @property
    def test(self) -> dict[str, str]:
        """The files to predict, and their names in a submission."""
        if len(self.dev) == 1:
            return {"test.tsv": f"{self.name}.tsv"}
        return {f"test_{split}.tsv": f"{self.name}-{_SHORT[split]}.tsv" for split, *_ in self.dev}

    def header(self, source: str) -> tuple[str, ...] | None:
        """Only the labeled files of CoLA have no header."""
        if self.columns is None or not source.removesuffix(".gz").endswith(".tsv"):
            return None
        first = read_text(source).split("\n", 1)[0].split("\t")
        return None if set(self.spec.text_columns) <= set(first) else self.columns

    def read(self, task: Task, sources: Sources) -> Splits:
        """Reads all splits from GLUE's folder, or `tfds:glue/NAME`."""
        name, data, reading = self.spec.name, sources.data, sources.reading
        if data is None:
            raise UsageError(
                f"`task` {name} needs `data`: a folder of GLUE's files, or tfds:glue/{name}"
            )
        if sources.train or sources.dev is not None:
            raise UsageError(f"`task` {name} reads its rows from `data`; remove `train` and `dev`")
        train = self.read_split(data, "train.tsv", "train", reading)
        return train, {n: self.read_split(data, *rest, reading=reading) for n, *rest in self.dev}

    def read_split(
        self, source: str, file: str, split: str, reading: SourceOptions = _USUAL
    ) -> list[TextRow]:
        """Returns the labeled rows of a split, from GLUE's folder or from `tfds:glue/NAME`."""
        if source.startswith("tfds:"):
            return list(self._from_tfds(source, split))
        skips_records = self.has_short_lines or reading.skips_records
        return read_rows(
            find_file(Path(source), file),
            text_columns=self.spec.text_columns,
            label_column=self.spec.label_column,
            header=self.columns,
            reading=replace(reading, skips_records=skips_records),
            remedy=self.remedy,
        )

    def _from_tfds(self, source: str, split: str) -> Iterator[TextRow]:
        labels = self.spec.labels
        names = [*(self.tfds_columns or self.spec.text_columns), "label", "idx"]
        columns = Columns([(name,) for name in names], f"use tfds:glue/{self.spec.name}")
        records = Records(source, SourceOptions(), None)
        for location, (*texts, label, id_) in tfds_rows(f"{source}:{split}", records, columns):
            known = labels[label] if labels and 0 <= label < len(labels) else str(label)
            yield TextRow(location, tuple(texts), known, str(id_))


def find_file(folder: Path, name: str) -> Path:
    """Returns `name` or `name.gz` in the folder. Raises UsageError if neither exists."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise UsageError(f"{folder} has no {name} or {name}.gz; name a folder with GLUE's files")


_SHORT = {"matched": "m", "mismatched": "mm"}
_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")


def _spec(name: str, columns: tuple[str, ...], labels: tuple[str, ...], **rest: Any) -> TaskSpec:
    values = {"kind": "classification", "metrics": ("accuracy",)} | rest
    return TaskSpec(name=name, text_columns=columns, labels=labels, **values)


_PAIR, _F1 = ("sentence1", "sentence2"), ("f1", "accuracy")
_TASKS = (
    GlueTask("CoLA", spec=_spec("cola", ("sentence",), _BINARY, metrics=("matthews", "accuracy")),
             columns=("source", "label", "star", "sentence")),
    GlueTask("SST-2", spec=_spec("sst2", ("sentence",), _BINARY)),
    GlueTask("MRPC", spec=_spec("mrpc", ("#1 String", "#2 String"), _BINARY, metrics=_F1,
                                label_column="Quality"),
             tfds_columns=_PAIR),
    GlueTask("STS-B", spec=_spec("stsb", _PAIR, (), kind="regression", label_column="score",
                                 metrics=("spearman", "pearson"))),
    GlueTask("QQP", spec=_spec("qqp", ("question1", "question2"), _BINARY, metrics=_F1,
                               label_column="is_duplicate"),
             has_short_lines=True),
    GlueTask("MNLI", spec=_spec("mnli", _PAIR, ("entailment", "neutral", "contradiction"),
                                label_column="gold_label"),
             tfds_columns=("premise", "hypothesis"),
             dev=(("matched", "dev_matched.tsv", "validation_matched"),
                  ("mismatched", "dev_mismatched.tsv", "validation_mismatched"))),
    GlueTask("QNLI", spec=_spec("qnli", ("question", "sentence"), _ENTAILMENT)),
    GlueTask("RTE", spec=_spec("rte", _PAIR, _ENTAILMENT)),
    GlueTask("WNLI", spec=_spec("wnli", _PAIR, _BINARY)),
)  # fmt: skip
# The entries of registry.TASKS.
NAMED = {task.spec.name: task for task in _TASKS}
