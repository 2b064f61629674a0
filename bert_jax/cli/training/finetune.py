"""Train a task on a checkpoint.

Puts a fresh head on the encoder of any checkpoint, trains all of it, and scores it on the
development set. The same command goes on with an interrupted run. The result is a workdir that
predict, export and another finetune take.
"""

import dataclasses
import json
from typing import Annotated, Any, ClassVar, Literal

from bert_jax.cli.options import (
    Address,
    FromCheckpoint,
    TrainingOptions,
    require_place_for,
)
from bert_jax.cli.table_format import TableFormat
from bert_jax.config.fields import REQUIRED, section, setting
from bert_jax.errors import UsageError
from bert_jax.runtime.stop import Start


@section
class TaskRowsOptions(TableFormat):
    """The rows that are learned from, and their task."""

    GROUP: ClassVar = ("rows", None)
    data: str | None = setting(
        None, "DIR|ADDRESS: a folder of GLUE's files, `tfds:glue/NAME` or `tfds:squad/NAME`"
    )
    train: tuple[str, ...] = setting(
        (),
        "FILE|ADDRESS: the training rows of text, pairs, similarity, ner, squad, squad2 or a task "
        "of your own; for text and pairs .tsv, .csv, .jsonl, .parquet or .arrow files, packed or "
        "not, here or at `hf:OWNER/NAME`, gs://... or another [address](data.md#addresses), or "
        "`tfds:NAME[:SPLIT]`; repeat for several files of pairs: each batch has rows of one file, "
        "with the shares of `data.source_weights`",
    )
    dev: str | None = setting(
        None,
        "FILE|ADDRESS: the rows to score on; of an address with splits, its validation split "
        "(default: a tenth of --train, chosen by --seed and held out)",
    )
    text: tuple[str, ...] = setting(
        (),
        "COLUMN: the column that holds the text; give it twice for a pair. For ner with "
        "--columns: the column of the words",
    )
    label: str | None = setting(
        None,
        "COLUMN: the column that holds the label, for ner with --columns the tag, for pairs a list "
        "of scores of a teacher, one for each document (default: label; for pairs no column)",
    )
    query_prompt: str = setting("", "TEXT: for pairs and similarity: put before each first text")
    document_prompt: str = setting("", "TEXT: for pairs and similarity: put before the other texts")
    regression: bool = setting(False, "for task text: the label is a number")
    skip_bad: bool = setting(
        False, "for squad: leave out answers that do not stand where the file says, and count them"
    )
    train_rows: int | None = setting(None, "N: use the first N training rows only")
    length: int | None = setting(None, "N: tokens of a row (default: 128; 384 for squad)")
    truncation: Literal["longest_first", "only_first", "only_second", "never"] = setting(
        "longest_first", "which text is cut where a row is too long"
    )
    doc_stride: int = setting(128, "N: for squad: tokens from one window to the next")
    max_question_length: int = setting(64, "N: for squad: the longest question, in tokens")
    max_answer_length: int = setting(30, "N: for squad: the longest answer, in tokens")
    n_best: int = setting(20, "N: for squad: answers to choose from")
    null_threshold: float = setting(
        0.0, "X: for squad2: how much better no answer must be than the best"
    )


@section
class FinetuneOptions(FromCheckpoint, TaskRowsOptions, TrainingOptions):
    workdir: Address = setting(
        REQUIRED,
        "DIR: where the run or runs live: a new directory, or that of the runs to go on with; "
        "it may be [gs://BUCKET/PATH](reliability.md#a-workdir-in-a-bucket)",
    )
    task: str | None = setting(
        None,
        "NAME: a task: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli (GLUE); text (your "
        "own table; the default where --text names a column of it); ner (CoNLL columns); squad "
        "or squad2; or one that an --extend file registers",
    )
    json: bool = setting(False, "print what results.json holds, instead of the table")
    epochs: float = setting(3.0, "X: passes over the training rows")
    batch_size: int = setting(32, "N: rows of an update, over all devices")
    learning_rate: float = setting(5e-5, "X: the peak of the rate, after a tenth of the steps")
    seed: int = setting(
        0, "N: decides the new head, the order of rows, dropout, and what is held out"
    )
    seeds: int = setting(1, "N: how many runs, with seeds from --seed on")
    restarts: int = setting(2, "N: attempts with other seeds after a run has diverged")
    layer_decay: float = setting(
        1.0,
        "X: factor of the learning rate from each layer to the one below it; the top layer has "
        "its square, as in ELECTRA",
    )
    freeze_layers: int = setting(0, "N: hold the embeddings and the first N layers")
    overrides: Annotated[tuple[str, ...], "--set"] = setting(
        (),
        "FIELD=VALUE: change a field of the run's config, such as "
        "`model.hidden_dropout_prob=0`; repeat for several. Refused are fields that only "
        "pre-training has (`data.*` except for the shares of sources, `objective`, "
        "`evaluation.num_examples`), those of the "
        "checkpoint or the task (`model.*` but dropout and `initializer_range`, `head.*`, "
        "`name`), and those that have an option here (`seed`, `optimizer.learning_rate`, "
        "`phases`)",
    )


def run(options: FinetuneOptions) -> None:
    require_place_for(is_directory=True, workdir=options.workdir)
    with Start("bert-jax finetune", **options.connection()) as start:
        spec = _spec(options)
        start.connect()
        from bert_jax.runtime import distributed

        summary = _finetune(options, spec)
        is_main = distributed.is_main()
    if not is_main:
        return
    if options.json:
        print(json.dumps(summary, indent=2))
        return
    from bert_jax.cli.output import table
    from bert_jax.tasks import results

    table(f"{spec.name}, development set", *results.table(summary))
    best = summary["best"]
    print(f"{best['examples_per_second']:,.0f} rows/s; {options.workdir}/results.md has the table")
    print(f"predict with\n  bert-jax predict --checkpoint {summary['directory']} --input FILE")


def _spec(options: FinetuneOptions) -> Any:
    """Returns the task with what the options say of it."""
    from bert_jax.registry import TASKS

    if options.task is None and not options.text:
        raise UsageError(
            f"name a --task ({', '.join(TASKS.names())}), or the --text COLUMN of your own "
            "table in --train"
        )
    name = options.task or "text"
    spec = TASKS[name].spec
    changes = options.fields_of(type(spec))
    fewest, most = TASKS[name].text_columns
    if not fewest <= len(options.text) <= most:
        times = {(1, 2): "once or twice", (2, 2): "twice"}.get((fewest, most), "twice or more")
        wanted = f"takes --text COLUMN {times}"
        raise UsageError(f"--task {name} {wanted if most else 'has no --text COLUMN'}")
    if most:
        changes |= {"text_columns": options.text}
        if options.label is not None:
            changes |= {"label_column": options.label}
    elif given := [name for name in ("columns", "delimiter", "quoting") if getattr(options, name)]:
        raise UsageError(f"--task {spec.name} has no --{given[0]}: its files have one format")
    if options.regression:
        if spec.kind != "classification" or not most:
            raise UsageError(f"--regression is for --task text, not for {name}")
        changes |= {"kind": "regression", "metrics": ("spearman", "pearson")}
    return dataclasses.replace(spec, **changes)


def _finetune(options: FinetuneOptions, spec: Any) -> dict[str, Any]:
    from bert_jax.registry import TASK_KINDS
    from bert_jax.tasks.finetune import Settings
    from bert_jax.tasks.sweep import finetune
    from bert_jax.tasks.task import Sources

    length = options.length
    if length is None:
        length = TASK_KINDS[spec.kind].default_length
    return finetune(
        options.checkpoint,
        options.workdir,
        spec,
        Sources(reading=options.reading(skip_bad=options.skip_bad), **options.fields_of(Sources)),
        Settings(
            **options.fields_of(Settings)
            | {"length": length, "overrides": tuple(options.changes())}
        ),
    )
