"""What a fine-tuned model says of new texts, and files for GLUE's test server."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax

from bert_jax.config import from_dict
from bert_jax.data import tokenizer as tokenizers
from bert_jax.data.task_files import read_rows
from bert_jax.errors import UsageError
from bert_jax.interchange import layout
from bert_jax.model import sharding
from bert_jax.tasks import glue
from bert_jax.tasks.forward import Forward
from bert_jax.tasks.load import read_file
from bert_jax.tasks.task import TaskSpec, task_of
from bert_jax.training import bucket, workdir
from bert_jax.training.task_step import outputs_of

_BATCH = 64


class Predictor:
    """A fine-tuned workdir, ready to read files of its task."""

    def __init__(self, checkpoint: Path | str, *, null_threshold: float | None = None):
        """`null_threshold` replaces the task's own. Raises UsageError if the task has none, or if
        `checkpoint` is not a workdir of `bert-jax finetune`."""
        mesh = sharding.make_mesh(fsdp=-1, tensor=1)
        self._mesh = mesh
        with jax.set_mesh(mesh):
            self._source = workdir.load_checkpoint(checkpoint, mesh=mesh)
        path = bucket.directory_of(self._source.directory) / workdir.CONFIG
        stored = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if "task" not in stored:
            raise UsageError(
                f"--checkpoint {checkpoint} is not a workdir of bert-jax finetune, which says what "
                "the task is; a model of another origin has to be fine-tuned first"
            )
        self.spec: TaskSpec = from_dict(stored["task"], TaskSpec)
        if null_threshold is not None:
            if not self.spec.with_unanswerable:
                raise UsageError(f"--null-threshold: {self.spec.name} always has an answer")
            self.spec = dataclasses.replace(self.spec, null_threshold=null_threshold)
        self._tokenizer = tokenizers.load(self._source.tokenizer)

    def rows(self, rows: list[Any]) -> list[dict[str, Any]]:
        """A record for each row, as the task's kind makes them."""
        config = self._source.config
        task = task_of(self.spec)
        length = config.phases[0].sequence_length
        encoded = task.encode(rows, self._tokenizer, length=length, labelled=False)
        with jax.set_mesh(self._mesh):
            forward = Forward(config, outputs_of(config.head.parts), batch_size=_BATCH)
            outputs = forward(self._source.params, encoded.features)
        return task.predictions(rows, encoded, outputs)

    def file(
        self, path: Path, *, columns: tuple[str, ...] = (), id_column: str | None = None
    ) -> list[dict[str, Any]]:
        """Predictions for a file of the task's format; a label in it is not read.

        `columns` are those of the texts, where the file calls them otherwise; `id_column` the one
        that names a row of a table, which else has its number from 0.
        """
        if id_column is not None and self.spec.kind in ("tokens", "spans"):
            raise UsageError(f"--id: a file of {self.spec.name} has no columns with names")
        spec = dataclasses.replace(self.spec, text_columns=columns) if columns else self.spec
        if columns and len(columns) != len(self.spec.text_columns):
            raise UsageError(f"--text: the task has {len(self.spec.text_columns)} column(s)")
        return self.rows(read_file(spec, path, labelled=False, id_column=id_column))


def write_submission(predictor: Predictor, folder: Path, output: Path) -> list[Path]:
    """GLUE's files of predictions for the test rows in `folder`; returns them.

    Labels are written as GLUE names them, STS-B's scores cut to its range of 0 to 5.
    """
    task = glue.TASKS.get(predictor.spec.name)
    if task is None:
        raise UsageError(f"--glue: task {predictor.spec.name} is not one of GLUE's")
    found = []
    for _, name, submission in task.test:
        rows, _ = read_rows(
            glue.find_file(folder, name), text_columns=task.spec.text_columns, label_column=None
        )
        found.append((submission, predictor.rows(list(rows))))
    with layout.new_directory(output) as building:
        for submission, records in found:
            lines = ["index\tprediction"]
            for number, record in enumerate(records):
                lines.append(f"{number}\t{_submitted(record)}")
            (building / submission).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [output / submission for submission, _ in found]


def _submitted(record: dict[str, Any]) -> str:
    return record["label"] if "label" in record else f"{min(max(record['score'], 0.0), 5.0):.3f}"
