"""The command line: verbs that call functions. Heavy imports wait until a verb needs them."""

import argparse
import errno
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax import progress
from bert_jax.commands import convert, finetune, plan, predict, prepare
from bert_jax.commands.tables import table as _table
from bert_jax.errors import BertJaxError, Preempted, UsageError
from bert_jax.resolve import place, shipped_names

_EPILOG = """\
A first run, from text to a filled-in word:

  bert-jax prepare --source docs: --output runs/corpus --vocab-size 8192
  bert-jax pretrain tiny_docs_cpu --corpus runs/corpus --workdir runs/first
  bert-jax fill-mask --checkpoint runs/first "The function returns a [MASK] of strings."
  bert-jax export --checkpoint runs/first --format hf --output runs/first-hf

`bert-jax VERB --help` explains a verb. Exit codes: 0 done; 2 wrong usage or config; 3 the workdir
holds a different run; 4 corpus damaged; 5 no usable checkpoint; 6 loss not finite; 7 storage
failed; 42 preempted, state saved: start it again; 1 anything unexpected.
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
    try:
        return arguments.run(arguments) or 0
    except BertJaxError as error:
        sys.stderr.write(f"bert-jax {arguments.verb}: error: {error}\n")
        return error.exit_code
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"bert-jax {arguments.verb}: error: {name}{error.strerror or error}\n")
        return _STORAGE_FAILED if error.errno in _STORAGE_ERRORS else 2
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted; the same command resumes from the last checkpoint\n")
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
        _pretrain,
        "train on a corpus, or resume the run in the workdir",
        "The same command resumes an interrupted run from its newest checkpoint and ends with the "
        "same bits as an uninterrupted one.",
    )
    _config_arguments(pretrain)
    pretrain.add_argument("--corpus", type=Path, required=True, metavar="DIR")
    pretrain.add_argument(
        "--workdir", type=place, required=True, metavar="DIR", help="or gs://BUCKET/PATH"
    )
    pretrain.add_argument(
        "--init-from",
        type=place,
        metavar="CHECKPOINT",
        help="start a new run, with a fresh schedule, from the parameters of this checkpoint: a "
        "workdir, one step of it, a Hugging Face directory or a TF1 checkpoint",
    )
    convert.add_allow_missing_heads(pretrain, "begin with fresh heads where --init-from has none")
    processes = pretrain.add_argument_group(
        "several processes",
        "One run over several hosts: start the same command on each. SIGTERM to any of them makes "
        "all of them save and exit with 42.",
    )
    processes.add_argument(
        "--distributed",
        action="store_true",
        help="find the other processes through Cloud TPU, GKE or Slurm",
    )
    elsewhere = "elsewhere: where process 0 listens"
    processes.add_argument("--coordinator", metavar="HOST:PORT", help=elsewhere)
    processes.add_argument("--num-processes", type=int, metavar="N")
    processes.add_argument("--process-id", type=int, metavar="I", help="from 0 to N - 1")
    pretrain.add_argument(
        "--profile-steps",
        metavar="A:B",
        help="trace steps A to B into WORKDIR/profile, for TensorBoard or Perfetto",
    )

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
    _checkpoint_argument(say)
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


def _checkpoint_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint",
        type=place,
        required=True,
        metavar="DIR",
        help="a workdir (its newest step), one step of it (DIR/checkpoints/STEP), a Hugging Face "
        "directory, or a TF1 checkpoint; a workdir may be gs://BUCKET/PATH",
    )


def _version() -> str:
    from bert_jax import __version__

    return f"bert-jax {__version__}"


# --- verbs ---------------------------------------------------------------------------------------


def _pretrain(arguments: argparse.Namespace) -> None:
    from bert_jax import resolve

    # Before the heavy imports: until there is something to save, SIGTERM only ends the process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(Preempted.exit_code))
    resolved = resolve.load(arguments.config, arguments.overrides)
    profile = _step_range(arguments.profile_steps)
    from bert_jax.training import host_memory

    if host_memory.computes_on_cpu():
        host_memory.keep_freed_memory()
    from bert_jax.training import distributed

    distributed.Connection(
        detect=arguments.distributed,
        coordinator=arguments.coordinator,
        num_processes=arguments.num_processes,
        process_id=arguments.process_id,
    ).validate().connect()
    if not distributed.is_main():
        progress.silence()
    from bert_jax.training.pretrain import pretrain

    try:
        closing = pretrain(
            resolved,
            corpus_directory=arguments.corpus,
            workdir_path=arguments.workdir,
            init_from=arguments.init_from,
            allow_missing_heads=arguments.allow_missing_heads,
            profile_steps=profile,
        )
    except Preempted:
        distributed.disconnect()
        raise
    distributed.disconnect()
    if not distributed.is_main():
        return
    validation = closing["validation"]
    entropy = closing["unigram_entropy"]
    _table(
        f"{arguments.workdir}, step {closing['step']:,}",
        ("held-out", "value", "for comparison"),
        [
            (
                "MLM loss",
                f"{validation['mlm_loss']:.3f} nats",
                f"{entropy:.3f}: the corpus's unigram entropy "
                f"({entropy - validation['mlm_loss']:+.3f} learned)",
            ),
            ("MLM accuracy", f"{validation['mlm_accuracy']:.3f}", ""),
            ("perplexity", f"{validation['perplexity']:.1f}", ""),
            ("NSP accuracy", f"{validation['nsp_accuracy']:.3f}", "0.5: guessing"),
            ("training speed", f"{closing['tokens_per_second']:,.0f} tokens/s", ""),
        ],
    )


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


def _step_range(text: str | None) -> range | None:
    if text is None:
        return None
    start, _, stop = text.partition(":")
    if not (start.isdigit() and stop.isdigit() and int(start) < int(stop)):
        raise UsageError(f"--profile-steps {text}: write it as A:B with A < B, such as 20:23")
    return range(int(start), int(stop))


def console() -> None:
    """The `bert-jax` command. Storage that failed may hang the threads that wait for it at exit."""
    code = main()
    if code == _STORAGE_FAILED:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    console()
