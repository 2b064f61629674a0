"""The command line: verbs that call functions. Heavy imports wait until a verb needs them."""

import argparse
import contextlib
import errno
import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax.commands import checkpoints, convert, finetune, plan, predict, prepare
from bert_jax.commands import pretrain as pretraining
from bert_jax.commands.tables import table as _table
from bert_jax.errors import BertJaxError, Preempted
from bert_jax.progress import say
from bert_jax.resolve import place, shipped_names

_EPILOG = """\
A first run, from text to a filled-in word:

  bert-jax prepare --source docs: --output runs/corpus --vocab-size 8192
  bert-jax pretrain tiny_docs_cpu --corpus runs/corpus --workdir runs/first
  bert-jax fill-mask --checkpoint runs/first "The function returns a [MASK] of strings."
  bert-jax export --checkpoint runs/first --format hf --output runs/first-hf

`bert-jax VERB --help` explains a verb. Exit codes: 0 done; 2 wrong usage or config; 3 the workdir
holds a different run; 4 corpus damaged; 5 no usable checkpoint; 6 loss not finite; 7 storage
failed; 42 preempted, state saved, and 200 hung: start it again; 1 anything unexpected.
"""


# A disk that is full, read-only or failing, and a place one may not write: exit code 7. Any other
# refusal of the operating system is about a wrong path: 2.
_STORAGE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM}
_STORAGE_FAILED = 7


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    # TensorFlow's start-up chatter hides what matters, and it computes nothing here; the user's
    # own settings win.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    # Or it imports Keras, and with it scikit-learn and matplotlib: a third of its four seconds.
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    try:
        return arguments.run(arguments) or 0
    except BertJaxError as error:
        say(f"bert-jax {arguments.verb}: error: {error}")
        return error.exit_code
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        say(f"bert-jax {arguments.verb}: error: {name}{error.strerror or error}")
        return _STORAGE_FAILED if error.errno in _STORAGE_ERRORS else 2
    except KeyboardInterrupt:
        say("\ninterrupted; the same command resumes from the last checkpoint")
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bert-jax",
        description="Pre-train BERT-family encoders with JAX, on one machine or on a TPU pod.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=_version())
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    def verb(name: str, run: Any, summary: str, details: str = "") -> argparse.ArgumentParser:
        sub = verbs.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}. {details}".strip(),
        )
        sub.set_defaults(run=run)
        return sub

    corpus = verb(
        "prepare", prepare.run_prepare, "turn text into a tokenised corpus", prepare.PREPARE
    )
    prepare.add_prepare_options(corpus)

    pretrain = verb(
        "pretrain",
        pretraining.run_pretrain,
        "train on a corpus, or resume the run in the workdir",
        pretraining.PRETRAIN,
    )
    _config_arguments(pretrain)
    pretraining.add_pretrain_options(pretrain)

    evaluate = verb(
        "evaluate",
        _evaluate,
        "print held-out metrics of a checkpoint as JSON",
        "Fixed examples with fixed masks: the same numbers on any number of devices.",
    )
    _checkpoint_argument(evaluate)
    evaluate.add_argument("--corpus", type=Path, required=True, metavar="DIR")

    tune = verb(
        "finetune", finetune.run_finetune, "train a task on a checkpoint", finetune.FINETUNE
    )
    _checkpoint_argument(tune)
    finetune.add_finetune_options(tune)

    say = verb(
        "predict", predict.run_predict, "say what a fine-tuned model makes of rows", predict.PREDICT
    )
    _checkpoint_argument(say, _FINE_TUNED)
    predict.add_predict_options(say)

    vectors = verb("embed", predict.run_embed, "turn texts into vectors", predict.EMBED)
    _checkpoint_argument(vectors)
    predict.add_embed_options(vectors)

    fill = verb("fill-mask", _fill_mask, "guess the masked words of a text")
    _checkpoint_argument(fill)
    fill.add_argument("--top", type=int, default=5, metavar="N", help="candidates a mask")
    fill.add_argument("text", nargs="+", help='such as "Paris is the [MASK] of France."')

    export = verb(
        "export", convert.run_export, "write a checkpoint for other systems", convert.EXPORT
    )
    _checkpoint_argument(export)
    convert.add_export_options(export)

    read = verb(
        "import",
        convert.run_import,
        "read another system's checkpoint into a workdir",
        convert.IMPORT,
    )
    convert.add_import_options(read)

    stored = verb(
        "checkpoints",
        checkpoints.run_checkpoints,
        "list, verify, prune or roll back the checkpoints of a workdir",
        checkpoints.CHECKPOINTS,
    )
    checkpoints.add_checkpoints_options(stored)

    report = verb(
        "report", checkpoints.run_report, "say where a run's time went", checkpoints.REPORT
    )
    checkpoints.add_report_options(report)

    ahead = verb("plan", plan.run_plan, "predict a run on TPUs that are not here", plan.PLAN)
    _config_arguments(ahead)
    plan.add_plan_options(ahead)

    show = verb(
        "show",
        _show,
        "print a config as it would run, as JSON",
        "'show sharding CONFIG --topology NAME' lists how each parameter lies on its devices.",
    )
    show.add_argument("what", nargs="?", choices=("config", "sharding"), default="config")
    _config_arguments(show)
    plan.add_show_options(show)
    return parser


def _config_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config",
        metavar="CONFIG",
        help=f"a shipped config ({', '.join(shipped_names())}), a .py file that defines config(), "
        "or a run's config.json",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="FIELD=VALUE",
        help="change a field, such as model.hidden_size=256 or phases.0.steps=100; repeat for "
        "several. 'bert-jax show CONFIG' lists them all",
    )


_ANY_MODEL = (
    "a workdir (its newest step), one step of it (DIR/checkpoints/STEP), a Hugging Face "
    "directory, or a TF1 checkpoint; a workdir may be gs://BUCKET/PATH"
)
_FINE_TUNED = "a workdir of bert-jax finetune, or one step of it (DIR/checkpoints/STEP)"


def _checkpoint_argument(parser: argparse.ArgumentParser, what: str = _ANY_MODEL) -> None:
    parser.add_argument(
        "--checkpoint",
        type=place,
        required=True,
        metavar="DIR",
        help=what,
    )


def _version() -> str:
    from bert_jax import __version__

    return f"bert-jax {__version__}"


# --- verbs ---------------------------------------------------------------------------------------


def _evaluate(arguments: argparse.Namespace) -> None:
    from bert_jax.training.evaluate import evaluate_checkpoint

    print(json.dumps(evaluate_checkpoint(arguments.checkpoint, arguments.corpus), indent=2))


def _fill_mask(arguments: argparse.Namespace) -> None:
    import jax

    from bert_jax.data import tokenizer
    from bert_jax.model import sharding
    from bert_jax.tasks.fill_mask import fill_mask
    from bert_jax.training.workdir import load_checkpoint

    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    with jax.set_mesh(mesh):
        checkpoint = load_checkpoint(arguments.checkpoint, mesh=mesh)
        sub_words = tokenizer.load(checkpoint.tokenizer)
        for text in arguments.text:
            for place, candidates in enumerate(
                fill_mask(checkpoint, sub_words, text, top=arguments.top)
            ):
                _table(
                    text if place == 0 else f"{text} (mask {place + 1})",
                    ("probability", "token", "text"),
                    [(f"{c.probability:.3f}", c.token, c.text) for c in candidates],
                )


def _show(arguments: argparse.Namespace) -> None:
    from bert_jax import config, resolve

    if arguments.what == "sharding":
        plan.show_sharding(arguments)
        return
    resolved = resolve.load(arguments.config, arguments.overrides)
    print(json.dumps(config.to_dict(resolved), indent=2))


def console() -> None:
    """The `bert-jax` command. Threads that wait for storage or data may hang: not at the exit."""
    try:
        code = main()
    except Exception:
        if not _has_peers():
            raise
        # At the exit jax would wait for them, and they may be gone, or be what failed.
        traceback.print_exc()
        os._exit(1)
    if code in (_STORAGE_FAILED, Preempted.exit_code):
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


def _has_peers() -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()


if __name__ == "__main__":
    console()
