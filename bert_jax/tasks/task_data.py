"""Reads the files of a task into token ids, and reports rows with errors."""

import hashlib
from dataclasses import dataclass

from bert_jax.data.tokenizer import hub
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.data.tokenizer.unknown import note_unknown_ids
from bert_jax.errors import UsageError
from bert_jax.progress import note
from bert_jax.registry import TASKS
from bert_jax.tasks.task import Encoded, Sources, Task, TaskSpec, task_of

# Below this number of rows, a note warns that the score is mostly chance.
_FEW_ROWS = 50


@dataclass(frozen=True)
class TaskData:
    """A task with its rows, a fingerprint of all data that a run sees, and the file names."""

    task: Task
    train: Encoded
    dev: dict[str, Encoded]
    fingerprint: str
    sources: tuple[str, ...] = ()

    @property
    def row_sources(self) -> list[str]:
        """The name of the source of each row of training features; all are equal for a task that
        mixes its files.
        """
        if self.task.one_source_per_batch:
            return [row.source for row in self.train.rows]
        return [""] * len(self.train.features)


def load_task(spec: TaskSpec, sources: Sources, tokenizer: Tokenizer, *, length: int) -> TaskData:
    """Reads and encodes every split. Raises UsageError that names file, line and field."""
    train, dev = TASKS[spec.name].read(task_of(spec, reading=sources.reading), sources)
    # All labels in the training file, including rows that are held out or skipped.
    of_file = list(train)
    if sources.train and sources.dev is None:
        of_file += [row for rows in dev.values() for row in rows]
    if sources.train_rows is not None:
        train = train[: sources.train_rows]
    task = task_of(task_of(spec, reading=sources.reading).with_labels(of_file))
    train = task.usable(train)
    if not train:
        raise UsageError(f"task {spec.name}: the training file has no usable rows")
    splits = {
        name: task.encode(rows, tokenizer, length=length, labelled=True)
        for name, rows in {"train": train, **dev}.items()
    }
    ids = splits["train"].features.input_ids
    note_unknown_ids(ids, tokenizer.special, what="the training rows")
    if (line := task.describe(splits["train"], length=length)) is not None:
        note(line)
    for name, rows in dev.items():
        if len(rows) < _FEW_ROWS:
            note(
                f"{name} has only {len(rows)} rows, so that its score is mostly chance; give more "
                "with `dev`"
            )
    fingerprint = _fingerprint(task, tokenizer, splits)
    return TaskData(task, splits.pop("train"), splits, fingerprint, _names(sources))


def _names(sources: Sources) -> tuple[str, ...]:
    """Returns the names of addresses, folders and files, without their directories."""
    given = (sources.data, *sources.files, sources.dev)
    return tuple(hub.source_name(str(path)) for path in given if path is not None)


def _fingerprint(task: Task, tokenizer: Tokenizer, splits: dict[str, Encoded]) -> str:
    """Returns a hash of the data for training and evaluation."""
    digest = hashlib.sha256(f"{task.spec}{tokenizer.hash}".encode())
    for name, split in splits.items():
        features = split.features
        digest.update(f"{name} {features.input_ids.shape}".encode())
        digest.update(task.fingerprint(split.rows).encode())
        for array in (features.input_ids, features.lengths, features.labels):
            digest.update(b"" if array is None else array.tobytes())
    return digest.hexdigest()
