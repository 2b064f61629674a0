"""Predicts new rows with a fine-tuned model, and writes submissions for GLUE's test server."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax.config import from_dict
from bert_jax.data.sources.stream import TESTS, SourceOptions
from bert_jax.data.tasks.tables import read_rows
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.data.tokenizer.unknown import note_unknown_ids
from bert_jax.errors import UsageError
from bert_jax.inference.forward import Forward, in_float32
from bert_jax.interchange import name_map
from bert_jax.objectives.contrastive import task_objective
from bert_jax.pretrained.load import LoadedCheckpoint, load_checkpoint
from bert_jax.registry import TASK_KINDS, TASKS
from bert_jax.tasks import glue
from bert_jax.tasks.task import TaskSpec, task_of
from bert_jax.workdir import run_directory

_BATCH = 64


class Predictor:
    """A fine-tuned workdir, ready to predict files of its task."""

    def __init__(
        self, checkpoint: LoadedCheckpoint | Path | str, *, null_threshold: float | None = None
    ):
        """`null_threshold` replaces the task's own. Raises UsageError if the task has none, or if
        `checkpoint` is not a workdir of `bert-jax finetune`."""
        if isinstance(checkpoint, LoadedCheckpoint):
            self._source, checkpoint = checkpoint, checkpoint.directory
        else:
            self._source = load_checkpoint(checkpoint)
        stored = run_directory.stored(self._source.directory)
        if "task" not in stored:
            raise UsageError(
                f"`checkpoint` {checkpoint} is not a workdir of bert-jax finetune; fine-tune the "
                "model first"
            )
        self.spec: TaskSpec = from_dict(stored["task"], TaskSpec)
        if null_threshold is not None:
            if not self.spec.with_unanswerable:
                raise UsageError(f"`null_threshold`: {self.spec.name} always has an answer")
            self.spec = dataclasses.replace(self.spec, null_threshold=null_threshold)
        self._tokenizer = load_tokenizer(self._source.tokenizer)
        config = self._source.config
        self._forward = Forward(
            in_float32(config),
            task_objective(config.head).output,
            batch_size=_BATCH,
            mesh=self._source.mesh,
        )

    def rows(self, rows: list[Any]) -> list[dict[str, Any]]:
        """Returns a prediction record for each row, in the format of the task's kind."""
        config = self._source.config
        task = task_of(self.spec)
        task.similarity = config.embedding.similarity
        length = config.phases[0].sequence_length
        encoded = task.encode(rows, self._tokenizer, length=length, labelled=False)
        note_unknown_ids(encoded.features.input_ids, self._tokenizer.special)
        outputs = self._forward(self._source.params, encoded.features)
        return task.predictions(encoded, outputs)

    def given(self, rows: Sequence[Any]) -> list[dict[str, Any]]:
        """Returns predictions for rows in Python, in the form that `Task.row` accepts."""
        task = task_of(self.spec)
        return self.rows([task.row(row, number=number) for number, row in enumerate(rows)])

    def file(
        self,
        source: Path | str,
        *,
        columns: tuple[str, ...] = (),
        id_column: str | None = None,
        reading: SourceOptions | None = None,
    ) -> list[dict[str, Any]]:
        """Returns predictions for a file or address of the task's format; labels are not read.

        `columns` are the names of the text columns, if they differ from the training file's.
        `id_column` names the column with row ids; without it, rows are numbered from 0. `reading`
        is the format of a table.
        """
        if id_column is not None and not TASK_KINDS[self.spec.kind].has_columns:
            raise UsageError(f"`id`: files of {self.spec.name} have no named columns")
        spec = dataclasses.replace(self.spec, text_columns=columns) if columns else self.spec
        count = len(self.spec.text_columns) or TASKS[self.spec.name].text_columns[1]
        if columns and len(columns) != count:
            raise UsageError(f"`text`: the task has {count} column(s)")
        task = task_of(spec, reading=dataclasses.replace(reading or SourceOptions(), splits=TESTS))
        return self.rows(task.read(str(source), labelled=False, id_column=id_column))


def write_submission(predictor: Predictor, folder: Path, output: Path) -> list[Path]:
    """Writes GLUE's submission files for the test rows in `folder`; returns their paths.

    Labels have GLUE's names, and STS-B's scores are clipped to the range 0 to 5.
    """
    task = glue.NAMED.get(predictor.spec.name)
    if task is None:
        raise UsageError(f"`glue`: task {predictor.spec.name} is not a GLUE task")
    found = []
    for name, submission in task.test.items():
        rows = read_rows(
            glue.find_file(folder, name),
            text_columns=task.spec.text_columns,
            label_column=None,
            remedy=task.remedy,
        )
        found.append((submission, predictor.rows(list(rows))))
    with name_map.new_directory(output) as building:
        for submission, records in found:
            lines = ["index\tprediction"]
            for number, record in enumerate(records):
                lines.append(f"{number}\t{_submitted(record)}")
            (building / submission).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [output / submission for submission, _ in found]


def _submitted(record: dict[str, Any]) -> str:
    return record["label"] if "label" in record else f"{min(max(record['score'], 0.0), 5.0):.3f}"
