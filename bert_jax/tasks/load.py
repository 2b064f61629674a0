"""From the name of a task and its files to rows of ids; what is wrong with them is said here."""

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.data.conll import read_sentences
from bert_jax.data.squad import read_questions
from bert_jax.data.task_files import read_rows
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UsageError
from bert_jax.progress import note
from bert_jax.tasks import glue, words
from bert_jax.tasks.task import Encoded, Task, TaskSpec, task_of

NAMES = (*glue.TASKS, "text", "ner", "squad", "squad2")


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where a task's rows are: a folder or `tfds:` address of all splits, or two files."""

    data: str | None = None
    train: Path | None = None
    dev: Path | None = None
    # The first of the training file's rows to use; none uses all.
    train_rows: int | None = None


@dataclass(frozen=True)
class Split:
    """Rows as they were read, and as the model takes them."""

    rows: Sequence[Any]
    encoded: Encoded


@dataclass(frozen=True)
class TaskData:
    """A task with its rows, a fingerprint of all that a run sees of them, and their names."""

    task: Task
    train: Split
    dev: dict[str, Split]
    fingerprint: str
    sources: tuple[str, ...] = ()


def base_spec(name: str) -> TaskSpec:
    """The task of that name, before its files and options have said the rest."""
    if name in glue.TASKS:
        return glue.TASKS[name].spec
    if name == "text":
        return TaskSpec(name=name, kind="classification", metrics=("accuracy", "macro_f1"))
    if name == "ner":
        return TaskSpec(name=name, kind="tokens", metrics=("f1", "precision", "recall"))
    if name in ("squad", "squad2"):
        return TaskSpec(
            name=name,
            kind="spans",
            metrics=("f1", "exact_match"),
            with_unanswerable=name == "squad2",
        )
    raise UsageError(f"--task {name}: choose one of {', '.join(NAMES)}")


def load(spec: TaskSpec, sources: Sources, tokenizer: Tokenizer, *, length: int) -> TaskData:
    """Reads and encodes every split. Raises UsageError that names file, line and field."""
    train, dev = _read(spec, sources)
    if sources.train_rows is not None:
        train = train[: sources.train_rows]
    spec = _with_labels(spec, train)
    task = task_of(spec)
    if spec.kind == "spans" and not spec.with_unanswerable:
        answered = [question for question in train if question.answers]
        if len(answered) < len(train):
            note(f"{len(train) - len(answered)} training questions have no answer: left out")
        train = answered
    if not train:
        raise UsageError("there are no rows to train on")
    splits = {
        name: Split(rows, task.encode(rows, tokenizer, length=length, labelled=True))
        for name, rows in {"train": train, **dev}.items()
    }
    if spec.kind == "spans":
        _tell_of_windows(splits["train"], length)
    fingerprint = _fingerprint(task, tokenizer, splits)
    return TaskData(task, splits.pop("train"), splits, fingerprint, _names(sources))


def _names(sources: Sources) -> tuple[str, ...]:
    """Of addresses, folders and files, without the place where they lie."""
    if sources.data is not None and sources.data.startswith("tfds:"):
        return (sources.data,)
    given = (sources.data, sources.train, sources.dev)
    return tuple(Path(path).name for path in given if path is not None)


def _read(spec: TaskSpec, sources: Sources) -> tuple[list[Any], dict[str, list[Any]]]:
    of_glue = glue.TASKS.get(spec.name)
    if of_glue is not None:
        if sources.data is None:
            raise UsageError(
                f"--task {spec.name} needs --data: a folder of GLUE's files, or "
                f"tfds:glue/{of_glue.tfds}"
            )
        if sources.train is not None or sources.dev is not None:
            raise UsageError(f"--task {spec.name} takes its rows from --data, not --train or --dev")
        train = glue.read_split(of_glue, sources.data, "train.tsv", "train")
        dev = {name: glue.read_split(of_glue, sources.data, *rest) for name, *rest in of_glue.dev}
        return train, dev
    if spec.kind == "spans" and sources.data is not None:
        if not sources.data.startswith("tfds:"):
            raise UsageError(f"--data {sources.data}: name --train and --dev, or tfds:squad/...")
        if sources.train is not None or sources.dev is not None:
            raise UsageError(f"--data {sources.data} has all rows; leave out --train and --dev")
        train = read_questions(sources.data, split="train")
        return train, {"dev": read_questions(sources.data, split="validation")}
    if sources.data is not None:
        raise UsageError(f"--task {spec.name} takes --train FILE and --dev FILE, not --data")
    if sources.train is None or sources.dev is None:
        raise UsageError(f"--task {spec.name} needs --train FILE and --dev FILE")
    return read_file(spec, sources.train), {"dev": read_file(spec, sources.dev)}


def read_file(
    spec: TaskSpec, path: Path, *, labelled: bool = True, id_column: str | None = None
) -> list[Any]:
    """The rows of one file of a task. `id_column` is of tables only."""
    if spec.kind == "tokens":
        return list(read_sentences(path, scheme=spec.tag_scheme, labelled=labelled))
    if spec.kind == "spans":
        return read_questions(path, labelled=labelled)
    if not spec.text_columns:
        raise UsageError(f"--task {spec.name} needs --text COLUMN, once or twice")
    label = spec.label_column if labelled else None
    header = None
    if spec.name in glue.TASKS and path.name.removesuffix(".gz").endswith(".tsv"):
        header = glue.header_of(glue.TASKS[spec.name], path)
    return read_rows(
        path,
        text_columns=spec.text_columns,
        label_column=label,
        header=header,
        id_column=id_column,
    )[0]


def _with_labels(spec: TaskSpec, train: Sequence[Any]) -> TaskSpec:
    """Labels that the training rows name, where the task does not name them itself."""
    if spec.labels or spec.kind in ("regression", "spans"):
        return spec
    if spec.kind == "tokens":
        labels = words.labels_of(train)
        if len(labels) == 1:
            raise UsageError("the training file has no tag but O; there is nothing to learn")
    else:
        labels = tuple(sorted({row.label for row in train}))
        if len(labels) == 1:
            raise UsageError(
                f"{train[0].place}: column {spec.label_column!r} has one label only, "
                f"{labels[0]!r}; name the right column, or --regression"
            )
    return dataclasses.replace(spec, labels=labels)


def _tell_of_windows(train: Split, length: int) -> None:
    found = train.encoded.places
    lost = int((~found.answered).sum()) - sum(not question.answers for question in train.rows)
    note(
        f"{len(train.rows):,} questions in {len(found.questions):,} windows of {length} tokens; "
        f"{lost} answers are in no window whole"
    )


def _fingerprint(task: Task, tokenizer: Tokenizer, splits: dict[str, Split]) -> str:
    """Of what is trained on and what is scored: a question has answers that are no label."""
    digest = hashlib.sha256(f"{task.spec}{tokenizer.hash}".encode())
    for name, split in splits.items():
        features = split.encoded.features
        digest.update(f"{name} {features.input_ids.shape}".encode())
        if task.spec.kind == "spans":
            digest.update(repr([(q.id, q.answers) for q in split.rows]).encode())
        for array in (features.input_ids, features.lengths, features.labels):
            digest.update(b"" if array is None else array.tobytes())
    return digest.hexdigest()
