"""The verb `finetune`: options, call, and what is said at the end."""

import dataclasses
from pathlib import Path
from typing import Any

from bert_jax.commands.local import local
from bert_jax.errors import UsageError

FINETUNE = (
    "Puts a fresh head on the encoder of any checkpoint, trains all of it, and scores it on the "
    "development set. The same command goes on with an interrupted run. The result is a workdir "
    "that predict, export and another finetune take."
)
# Tokens of a row, where --length does not say: as google-research/bert has them.
_LENGTHS = {"spans": 384}
_LENGTH = 128


def add_finetune_options(parser: Any) -> None:
    parser.add_argument(
        "--task",
        required=True,
        metavar="NAME",
        help="cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli (GLUE); text (your own table); "
        "ner (CoNLL columns); squad or squad2",
    )
    parser.add_argument("--workdir", type=local, required=True, metavar="DIR")
    rows = parser.add_argument_group("rows")
    rows.add_argument(
        "--data",
        metavar="DIR|ADDRESS",
        help="a folder of GLUE's files, tfds:glue/NAME or tfds:squad/NAME",
    )
    rows.add_argument("--train", type=Path, metavar="FILE", help="of text, ner and squad")
    rows.add_argument("--dev", type=Path, metavar="FILE", help="to score on")
    rows.add_argument(
        "--text",
        action="append",
        default=[],
        metavar="COLUMN",
        help="of --task text: the column of the text; twice for a pair",
    )
    rows.add_argument("--label", default="label", metavar="COLUMN", help="default: %(default)s")
    rows.add_argument(
        "--regression", action="store_true", help="of --task text: the label is a number"
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
    rows.add_argument("--tag-scheme", choices=("IOB2", "IOB1"), default="IOB2")
    rows.add_argument(
        "--doc-stride", type=int, default=128, metavar="N", help="tokens from window to window"
    )
    rows.add_argument("--max-question-length", type=int, default=64, metavar="N")
    rows.add_argument("--max-answer-length", type=int, default=30, metavar="N")
    rows.add_argument("--n-best", type=int, default=20, metavar="N", help="answers to keep")
    rows.add_argument(
        "--null-threshold",
        type=float,
        default=0.0,
        metavar="X",
        help="squad2: how much better no answer must be than the best one",
    )
    runs = parser.add_argument_group("runs")
    runs.add_argument("--epochs", type=float, default=3.0, metavar="X")
    runs.add_argument("--batch-size", type=int, default=32, metavar="N")
    runs.add_argument("--learning-rate", type=float, default=5e-5, metavar="X")
    runs.add_argument("--seed", type=int, default=0)
    runs.add_argument("--seeds", type=int, default=1, metavar="N", help="runs, from --seed on")
    runs.add_argument(
        "--grid",
        choices=("paper",),
        help="batch 16 and 32, learning rate 5e-5 to 2e-5, 2 to 4 epochs: 24 settings",
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
        help="factor of the learning rate from each layer to the one below it",
    )
    runs.add_argument(
        "--freeze-layers",
        type=int,
        default=0,
        metavar="N",
        help="hold the embeddings and the first N layers",
    )
    runs.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="FIELD=VALUE",
        help="change a field of the run's config, such as model.hidden_dropout_prob=0",
    )


def run_finetune(arguments: Any) -> None:
    import signal
    import sys

    from bert_jax.errors import Preempted

    # Before the heavy imports: until there is something to save, SIGTERM only ends the process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(Preempted.exit_code))
    from bert_jax.tasks.load import Sources, base_spec

    spec = base_spec(arguments.task)
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
    if arguments.task == "text":
        changes |= {"text_columns": tuple(arguments.text), "label_column": arguments.label}
        if not 1 <= len(arguments.text) <= 2:
            raise UsageError("--task text needs --text COLUMN, once or twice")
        if arguments.regression:
            changes |= {"kind": "regression", "metrics": ("spearman", "pearson")}
    elif arguments.text or arguments.regression:
        raise UsageError(f"--text and --regression are of --task text, not of {arguments.task}")
    spec = dataclasses.replace(spec, **changes)
    from bert_jax.tasks.finetune import Recipe
    from bert_jax.tasks.sweep import Settings, finetune
    from bert_jax.training import host_memory

    if host_memory.computes_on_cpu():
        host_memory.keep_freed_memory()
    summary = finetune(
        arguments.checkpoint,
        arguments.workdir,
        spec,
        Sources(
            data=arguments.data,
            train=arguments.train,
            dev=arguments.dev,
            train_rows=arguments.train_rows,
        ),
        Settings(
            length=arguments.length or _LENGTHS.get(spec.kind, _LENGTH),
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
            overrides=tuple(arguments.overrides),
        ),
    )
    from bert_jax.commands.tables import table
    from bert_jax.tasks import results

    table(f"{arguments.task}, development set", *results.table(summary))
    best = summary["best"]
    print(
        f"{best['examples_per_second']:,.0f} rows/s; {arguments.workdir}/results.md has the table"
    )
    print(f"predict with\n  bert-jax predict --checkpoint {best['directories'][0]} --input FILE")


def _require_positive(name: str, value: int) -> None:
    if value < 1:
        raise UsageError(f"--{name.replace('_', '-')} {value}: it must be at least 1")
