"""Train a task on a checkpoint.

Puts a new head on the encoder of a checkpoint, trains both, and scores the model on the development
set. The same command resumes an interrupted run. The result is a workdir for predict, export or
another finetune.

examples:
  bert-jax finetune runs/base --task sst2 --data tfds:glue/sst2 --workdir runs/sst2
  bert-jax finetune runs/base --train mine.csv --text-column body --workdir runs/mine
"""

import dataclasses
import json
from typing import Annotated, Any, ClassVar, Literal

from bert_jax.cli.options import (
    Address,
    FromCheckpoint,
    Processes,
    TrainingOptions,
    require_place_for,
)
from bert_jax.cli.table_format import TableFormat
from bert_jax.config.fields import REQUIRED, section, setting
from bert_jax.errors import UsageError
from bert_jax.runtime.stop import Start


@section
class TaskRowsOptions(TableFormat):
    """The examples of a task."""

    GROUP: ClassVar = ("examples", None)
    data: str | None = setting(
        None, "DIR|ADDRESS: a folder of GLUE files, `tfds:glue/NAME` or `tfds:squad/NAME`"
    )
    train: tuple[str, ...] = setting(
        (),
        "FILE|ADDRESS: training examples: .tsv, .csv, .jsonl, .parquet or .arrow files, also "
        "compressed, `hf:OWNER/NAME`, `tfds:NAME[:SPLIT]` or another address; CoNLL files for ner, "
        "SQuAD files for squad. Repeat for several files of pairs: each batch has one file, with "
        "the shares of `data.source_weights`",
    )
    dev: str | None = setting(
        None,
        "FILE|ADDRESS: development set (default: the validation split of an address, or a random "
        "tenth of --train)",
    )
    text: Annotated[tuple[str, ...], "--text-column"] = setting(
        (),
        "COLUMN: column of the text; give it twice for pairs of texts. With --task ner and "
        "--columns: column of the words",
    )
    label: Annotated[str | None, "--label-column"] = setting(
        None,
        "COLUMN: column of the label, of the tag (--task ner with --columns), or of the teacher "
        "scores, one per document (--task pairs) (default: label; none for pairs)",
    )
    query_prompt: str | None = setting(
        None,
        "TEXT: put this before each first text of pairs (default: the checkpoint's prompt)",
    )
    document_prompt: str | None = setting(
        None,
        "TEXT: put this before the other texts of pairs (default: the checkpoint's prompt)",
    )
    regression: bool = setting(False, "the label is a number (--task text)")
    on_bad_record: Literal["stop", "skip"] = setting(
        "stop",
        "what to do with answers that are not at the stated position: stop, or skip and count them "
        "(squad)",
    )
    train_rows: int | None = setting(None, "N: use the first N training examples only")
    length: Annotated[int | None, "--max-length"] = setting(
        None,
        "N: most tokens per sequence (default: 128; 384 for squad; fewer if the model has fewer)",
    )
    truncation: Literal["longest_first", "only_first", "only_second", "never"] = setting(
        "longest_first", "which text to truncate if a sequence is too long"
    )
    doc_stride: int = setting(128, "N: tokens from one window to the next (squad)")
    max_question_length: int = setting(64, "N: most tokens per question (squad)")
    max_answer_length: int = setting(30, "N: most tokens per answer (squad)")
    n_best: int = setting(20, "N: number of candidate answers (squad)")
    null_threshold: float = setting(
        0.0, "X: score margin by which no answer must exceed the best answer (squad2)"
    )


@section
class FinetuneOptions(FromCheckpoint, TaskRowsOptions, TrainingOptions):
    workdir: Address = setting(
        REQUIRED,
        "DIR: directory of the run: a new one, or an existing one to resume; it may be "
        "gs://BUCKET/PATH",
    )
    task: str | None = setting(
        None,
        "NAME: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte or wnli (GLUE); text (your table; the "
        "default with --text-column); ner (CoNLL columns); squad or squad2; pairs or similarity "
        "(vectors); or a task that an --extend file registers",
    )
    json: bool = setting(False, "print the content of results.json in place of the table")
    epochs: float = setting(3.0, "X: passes over the training examples")
    batch_size: int = setting(32, "N: examples per update, over all devices")
    learning_rate: float = setting(
        5e-5, "X: peak learning rate, after a warm-up of a tenth of the steps"
    )
    seed: int = setting(
        0, "N: seed of the new head, the order of examples, dropout and the held-out tenth"
    )
    seeds: int = setting(1, "N: number of runs, with consecutive seeds from --seed")
    restarts: int = setting(2, "N: attempts with another seed after a run has diverged")
    layer_decay: float = setting(
        1.0,
        "X: layer-wise decay: factor of the learning rate from each layer to the layer below it; "
        "the top layer has its square, as in ELECTRA",
    )
    freeze_layers: int = setting(0, "N: freeze the embeddings and the first N layers")
    overrides: Annotated[tuple[str, ...], "--set"] = setting(
        (),
        "FIELD=VALUE: change a field of the config, for example `model.hidden_dropout_prob=0`; "
        "repeat for several. `--model.hidden_dropout_prob 0` is the same. Not accepted: fields of "
        "pre-training (`data.*` except the shares of sources, `objective`), of the checkpoint "
        "(`model.*` except dropout), and fields with an option here (`seed`, "
        "`optimizer.learning_rate`, `phases`)",
    )


def run(options: FinetuneOptions) -> None:
    require_place_for(is_directory=True, workdir=options.workdir)
    with Start("bert-jax finetune", **options.fields_of(Processes)) as start:
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
    print(
        f"{best['examples_per_second']:,.0f} examples/s; {options.workdir}/results.md has the table"
    )
    if summary["diverged"]:
        print("no run predicts better than one answer for all rows: change --learning-rate or data")
        return
    print(f"predict with\n  bert-jax predict {summary['directory']} --input FILE")


def _spec(options: FinetuneOptions) -> Any:
    """Returns the task with the changes that the options ask for."""
    from bert_jax.registry import TASKS

    if options.task is None and not options.text:
        raise UsageError(
            f"name a --task ({', '.join(TASKS.names())}), or the --text-column COLUMN of the table "
            "in --train"
        )
    name = options.task or "text"
    spec = TASKS[name].spec
    changes = options.fields_of(type(spec))
    fewest, most = TASKS[name].text_columns
    if not fewest <= len(options.text) <= most:
        times = {(1, 2): "once or twice", (2, 2): "twice"}.get((fewest, most), "twice or more")
        wanted = f"takes --text-column COLUMN {times}"
        raise UsageError(f"--task {name} {wanted if most else 'has no --text-column'}")
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
    from bert_jax.tasks.finetune import Settings
    from bert_jax.tasks.sweep import finetune
    from bert_jax.tasks.task import Sources

    overrides: dict[str, Any] = {"overrides": tuple(options.changes())}
    return finetune(
        options.checkpoint,
        options.workdir,
        spec,
        Sources(
            reading=options.reading(skips_records=options.on_bad_record == "skip"),
            **options.fields_of(Sources),
        ),
        Settings(**options.fields_of(Settings) | overrides),
    )
