"""The verb `pretrain`: its options, how it starts, and the table it ends with."""

import json
import time
from pathlib import Path
from typing import Any

from bert_jax import config_loader
from bert_jax.cli.closing import COLUMNS, figure_rows
from bert_jax.cli.options import (
    add_allow_missing_heads,
    add_config,
    add_fit,
    add_ignore_unexpected,
    add_json,
    add_processes,
    add_trackers,
    corpus_directory,
    overrides,
    processes,
    require_place_for_directory,
)
from bert_jax.cli.output import table
from bert_jax.config_loader import path_or_address
from bert_jax.errors import UsageError
from bert_jax.progress import note
from bert_jax.runtime.start import Start

SUMMARY = "train on a corpus, or resume the run in the workdir"
DETAILS = (
    "The same command resumes an interrupted run from its newest good checkpoint and ends with the "
    "same bits as an uninterrupted one."
)


def add_options(parser: Any) -> None:
    add_config(parser)
    parser.add_argument(
        "--corpus",
        type=corpus_directory,
        required=True,
        metavar="DIR",
        help="a directory of bert-jax prepare",
    )
    parser.add_argument(
        "--workdir",
        type=path_or_address,
        required=True,
        metavar="DIR",
        help="where the run lives: a new directory, or that of the run to go on with; it may be "
        "gs://BUCKET/PATH",
    )
    parser.add_argument(
        "--init-from",
        type=path_or_address,
        metavar="CHECKPOINT",
        help="start a new run from the parameters of this checkpoint: a workdir, one step of it, a "
        "Hugging Face directory or a TF1 checkpoint. The run takes over its model and heads, and "
        "takes data, phases, optimiser and dropout from CONFIG. Its tokenizer must be the "
        "corpus's: make that with bert-jax prepare --tokenizer CHECKPOINT",
    )
    add_allow_missing_heads(parser, "begin a head of --init-from afresh where it is not whole")
    add_ignore_unexpected(parser)
    parser.add_argument(
        "--resume-step",
        type=int,
        metavar="N",
        help="go back to step N of the workdir, once; what came after it moves to set_aside/",
    )
    parser.add_argument(
        "--allow-change",
        action="append",
        default=[],
        metavar="FIELD",
        help="go on although this field (such as optimizer.learning_rate or corpus), or this "
        "section (such as phases), differs from the workdir's; repeat for several",
    )
    parser.add_argument(
        "--expect",
        type=path_or_address,
        action="append",
        default=[],
        metavar="DIR",
        help="a finished run that this one should resemble, or the workdir of a study of such "
        "runs: a warning says where the losses leave theirs; repeat for several. For shipped "
        "configs on the embedded corpus (docs:) the curves are known without it",
    )
    add_fit(parser)
    add_processes(parser)
    add_trackers(parser)
    add_json(parser, "print the closing figures as JSON, instead of the table")
    parser.add_argument(
        "--profile-steps",
        metavar="A:B",
        help="trace steps A to B into WORKDIR/profile, for TensorBoard or Perfetto",
    )


def run(arguments: Any) -> None:
    started = time.monotonic()
    require_place_for_directory(workdir=arguments.workdir)
    with Start("bert-jax pretrain", **processes(arguments)) as start:
        # Of a run that goes on from a checkpoint the model is not known yet: it is checked later.
        resolved = config_loader.load_config(
            arguments.config, overrides(arguments), checked=arguments.init_from is None
        )
        profile = _step_range(arguments.profile_steps)
        start.connect()
        from bert_jax.runtime import distributed
        from bert_jax.training.pretrain import pretrain

        closing = pretrain(
            resolved,
            corpus_directory=arguments.corpus,
            workdir_path=arguments.workdir,
            init_from=arguments.init_from,
            allow_missing_heads=arguments.allow_missing_heads,
            ignore_unexpected=arguments.ignore_unexpected,
            own_fields=[field.partition("=")[0].strip() for field in arguments.overrides],
            profile_steps=profile,
            resume_step=arguments.resume_step,
            allowed_changes=arguments.allow_change,
            fit=arguments.fit,
            expect=arguments.expect,
            started=started,
        )
        is_main = distributed.is_main()
    if is_main and arguments.json:
        print(json.dumps(closing, indent=2))
    elif is_main:
        _print_closing(arguments.workdir, closing)


def _print_closing(workdir: Path | str, closing: dict[str, Any]) -> None:
    expected = closing["expected"]
    rows = figure_rows(
        closing["objective"],
        closing["validation"],
        entropy=closing["unigram_entropy"],
        expected=expected,
        published=expected["published"],
    )
    rows.append(("training speed", f"{closing['tokens_per_second']:,.0f} tokens/s", ""))
    if "sequences_per_second" in closing:
        packed = f"{closing['sequences_per_step']:,.0f} a step; {closing['padding']:.1%} padding"
        rows.append(("in sequences", f"{closing['sequences_per_second']:,.1f} a second", packed))
    table(f"{workdir}, step {closing['step']:,}", COLUMNS, rows)
    for line in expected["warnings"]:
        note(f"warning: {line}")


def _step_range(text: str | None) -> range | None:
    if text is None:
        return None
    start, _, stop = text.partition(":")
    if not (start.isdigit() and stop.isdigit() and int(start) < int(stop)):
        raise UsageError(f"--profile-steps {text}: write it as A:B with A < B, such as 20:23")
    return range(int(start), int(stop))
