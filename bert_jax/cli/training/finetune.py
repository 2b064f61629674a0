"""The verb `finetune`: options, call, and what is said at the end."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from bert_jax.cli.options import (
    add_checkpoint,
    add_fit,
    add_json,
    add_overrides,
    add_processes,
    add_reading,
    add_trackers,
    overrides,
    processes,
    reading,
    require_place_for_directory,
)
from bert_jax.config_loader import path_or_address
from bert_jax.errors import UsageError
from bert_jax.runtime.start import Start

SUMMARY = "train a task on a checkpoint"
DETAILS = (
    "Puts a fresh head on the encoder of any checkpoint, trains all of it, and scores it on the "
    "development set. The same command goes on with an interrupted run. The result is a workdir "
    "that predict, export and another finetune take."
)


def add_options(parser: Any) -> None:
    add_checkpoint(parser)
    parser.add_argument(
        "--task",
        metavar="NAME",
        help="cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli (GLUE); text (your own table; "
        "the default where --text names a column of it); ner (CoNLL columns); squad or squad2; or "
        "one that an --extend file registers",
    )
    parser.add_argument(
        "--workdir",
        type=path_or_address,
        required=True,
        metavar="DIR",
        help="where the run or runs live; it may be gs://BUCKET/PATH",
    )
    add_processes(parser)
    add_json(parser, "print what results.json holds, instead of the table")
    rows = parser.add_argument_group("rows")
    rows.add_argument(
        "--data",
        metavar="DIR|ADDRESS",
        help="a folder of GLUE's files, tfds:glue/NAME or tfds:squad/NAME",
    )
    rows.add_argument(
        "--train", type=Path, metavar="FILE", help="the training rows of text, ner and squad"
    )
    rows.add_argument(
        "--dev",
        type=Path,
        metavar="FILE",
        help="the rows to score on (default: a tenth of --train, chosen by --seed)",
    )
    rows.add_argument(
        "--text",
        action="append",
        default=[],
        metavar="COLUMN",
        help="for task text: the column that holds the text; give it twice for a pair",
    )
    rows.add_argument(
        "--label",
        default="label",
        metavar="COLUMN",
        help="for task text: the column that holds the label (default: %(default)s)",
    )
    rows.add_argument(
        "--regression", action="store_true", help="for task text: the label is a number"
    )
    add_reading(rows)
    rows.add_argument(
        "--skip-bad",
        action="store_true",
        help="for squad: leave out answers that do not stand where the file says, and count them",
    )
    rows.add_argument(
        "--train-rows", type=int, metavar="N", help="use the first N training rows only"
    )
    rows.add_argument(
        "--length", type=int, metavar="N", help="tokens of a row (default: 128; 384 for squad)"
    )
    rows.add_argument(
        "--truncation",
        choices=("longest_first", "only_first", "only_second", "never"),
        default="longest_first",
        help="which text is cut where a row is too long (default: %(default)s)",
    )
    rows.add_argument(
        "--tag-scheme",
        choices=("IOB2", "IOB1"),
        default="IOB2",
        help="for ner: how the files are tagged (default: %(default)s)",
    )
    rows.add_argument(
        "--doc-stride",
        type=int,
        default=128,
        metavar="N",
        help="for squad: tokens from one window to the next (default: %(default)s)",
    )
    for name, default, meaning in (
        ("--max-question-length", 64, "the longest question, in tokens"),
        ("--max-answer-length", 30, "the longest answer, in tokens"),
        ("--n-best", 20, "answers to choose from"),
    ):
        rows.add_argument(
            name,
            type=int,
            default=default,
            metavar="N",
            help=f"for squad: {meaning} (default: %(default)s)",
        )
    rows.add_argument(
        "--null-threshold",
        type=float,
        default=0.0,
        metavar="X",
        help="for squad2: how much better no answer must be than the best (default: %(default)s)",
    )
    runs = parser.add_argument_group("runs")
    for name, default, metavar, meaning in (
        ("--epochs", 3.0, "X", "passes over the training rows"),
        ("--batch-size", 32, "N", "rows of an update, over all devices"),
        ("--learning-rate", 5e-5, "X", "the peak of the rate, after a tenth of the steps"),
        (
            "--seed",
            0,
            "N",
            "decides the new head, the order of rows, dropout, and what is held out",
        ),
        ("--seeds", 1, "N", "how many runs, with seeds from --seed on"),
    ):
        runs.add_argument(
            name,
            type=type(default),
            default=default,
            metavar=metavar,
            help=f"{meaning} (default: %(default)s)",
        )
    runs.add_argument(
        "--grid",
        choices=("paper",),
        help="try the 24 settings of the paper: batches of 16 and 32, learning rates from 5e-5 to "
        "2e-5, 2 to 4 epochs",
    )
    runs.add_argument(
        "--restarts",
        type=int,
        default=2,
        metavar="N",
        help="attempts with other seeds after a run has diverged (default: %(default)s)",
    )
    runs.add_argument(
        "--layer-decay",
        type=float,
        default=1.0,
        metavar="X",
        help="factor of the learning rate from each layer to the one below it; the top layer has "
        "its square, as in ELECTRA (default: %(default)s)",
    )
    runs.add_argument(
        "--freeze-layers",
        type=int,
        default=0,
        metavar="N",
        help="hold the embeddings and the first N layers (default: %(default)s, nothing)",
    )
    add_fit(runs)
    add_trackers(runs)
    add_overrides(runs, "change a field of the run's config, such as model.hidden_dropout_prob=0")


def run(arguments: Any) -> None:
    require_place_for_directory(workdir=arguments.workdir)
    with Start("bert-jax finetune", **processes(arguments)) as start:
        spec = _spec(arguments)
        start.connect()
        from bert_jax.runtime import distributed

        summary = _finetune(arguments, spec)
        is_main = distributed.is_main()
    if not is_main:
        return
    if arguments.json:
        print(json.dumps(summary, indent=2))
        return
    from bert_jax.cli.output import table
    from bert_jax.tasks import results

    table(f"{arguments.task}, development set", *results.table(summary))
    best = summary["best"]
    print(
        f"{best['examples_per_second']:,.0f} rows/s; {arguments.workdir}/results.md has the table"
    )
    print(f"predict with\n  bert-jax predict --checkpoint {best['directories'][0]} --input FILE")


def _spec(arguments: Any) -> Any:
    """Returns the task with what the options say of it."""
    from bert_jax.registry import TASKS

    if arguments.task is None:
        if not arguments.text:
            raise UsageError(
                f"name a --task ({', '.join(TASKS.names())}), or the --text COLUMN of your own "
                "table in --train"
            )
        arguments.task = "text"
    spec = TASKS[arguments.task].spec
    changes: dict[str, Any] = {
        name: getattr(arguments, name)
        for name in (
            "truncation",
            "tag_scheme",
            "doc_stride",
            "max_question_length",
            "max_answer_length",
            "n_best",
            "null_threshold",
        )
    }
    for name in ("doc_stride", "max_question_length", "max_answer_length", "n_best"):
        _require_positive(name, changes[name])
    for name in ("batch_size", "train_rows", "length"):
        if getattr(arguments, name) is not None:
            _require_positive(name, getattr(arguments, name))
    if TASKS[arguments.task].takes_columns:
        changes |= {"text_columns": tuple(arguments.text), "label_column": arguments.label}
        if not 1 <= len(arguments.text) <= 2:
            raise UsageError(f"--task {arguments.task} needs --text COLUMN, once or twice")
        if arguments.regression:
            changes |= {"kind": "regression", "metrics": ("spearman", "pearson")}
    elif arguments.text or arguments.regression:
        raise UsageError(f"--text and --regression are of --task text, not of {arguments.task}")
    return dataclasses.replace(spec, **changes)


def _finetune(arguments: Any, spec: Any) -> dict[str, Any]:
    from bert_jax.registry import TASK_KINDS
    from bert_jax.tasks.finetune import Recipe
    from bert_jax.tasks.sweep import Settings, finetune
    from bert_jax.tasks.task import Sources

    return finetune(
        arguments.checkpoint,
        arguments.workdir,
        spec,
        Sources(
            data=arguments.data,
            train=arguments.train,
            dev=arguments.dev,
            train_rows=arguments.train_rows,
            seed=arguments.seed,
            reading=reading(arguments, skip_bad=arguments.skip_bad),
        ),
        Settings(
            length=arguments.length or TASK_KINDS[spec.kind].default_length,
            batch_size=arguments.batch_size,
            learning_rate=arguments.learning_rate,
            recipe=Recipe(
                epochs=arguments.epochs,
                layer_decay=arguments.layer_decay,
                freeze_layers=arguments.freeze_layers,
            ),
            seed=arguments.seed,
            seeds=arguments.seeds,
            grid=arguments.grid,
            restarts=arguments.restarts,
            fit=arguments.fit,
            overrides=tuple(overrides(arguments)),
            ignore_unexpected=tuple(arguments.ignore_unexpected),
        ),
    )


def _require_positive(name: str, value: int) -> None:
    if value < 1:
        raise UsageError(f"--{name.replace('_', '-')} {value}: it must be at least 1")
