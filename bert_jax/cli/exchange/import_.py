"""The verb `import`: options, call, and what is said at the end."""

from pathlib import Path
from typing import Any

from bert_jax.cli.options import (
    add_allow_missing_heads,
    add_ignore_unexpected,
    add_overrides,
    corpus_directory,
    local,
    require_place_for_directory,
)
from bert_jax.errors import UsageError

SUMMARY = "read another system's checkpoint into a workdir"
DETAILS = (
    "Reads a Hugging Face directory (BERT or RoBERTa; safetensors) or a TF1 checkpoint. The result "
    "can be evaluated, exported, fine-tuned and started from. With --config and --corpus it is the "
    "home of that run, which 'pretrain' continues: parameters, moments and step."
)


def add_options(parser: Any) -> None:
    parser.add_argument(
        "--checkpoint",
        type=Path,
        required=True,
        metavar="DIR",
        help="a Hugging Face directory, a TF1 one, or a TF1 prefix such as DIR/bert_model.ckpt",
    )
    parser.add_argument(
        "--format",
        choices=("auto", "hf", "tf1"),
        default="auto",
        help="what must lie there (default: whichever does)",
    )
    parser.add_argument(
        "--output", type=local, required=True, metavar="DIR", help="the new workdir"
    )
    add_allow_missing_heads(parser, "import an encoder whose heads are missing or not whole")
    add_ignore_unexpected(parser)
    parser.add_argument(
        "--config", metavar="CONFIG", help="the run to go on with; needs --corpus as well"
    )
    add_overrides(parser, "change a field of --config; repeat for several")
    parser.add_argument(
        "--corpus", type=corpus_directory, metavar="DIR", help="what that run trains on"
    )


def run(arguments: Any) -> None:
    require_place_for_directory(output=arguments.output)
    from bert_jax import config_loader
    from bert_jax.progress import note

    if (arguments.config is None) != (arguments.corpus is None):
        raise UsageError("--config and --corpus go together: they are the run to go on with")
    if arguments.overrides and arguments.config is None:
        raise UsageError("--set changes a field of --config; name one")
    config = None
    if arguments.config is not None:
        config = config_loader.load_config(arguments.config, arguments.overrides)
    _require_format(arguments.format, arguments.checkpoint)
    from bert_jax.pretrained.import_export import import_checkpoint

    foreign = import_checkpoint(
        arguments.checkpoint,
        arguments.output,
        config=config,
        corpus_directory=arguments.corpus,
        allow_missing_heads=arguments.allow_missing_heads,
        ignore_unexpected=arguments.ignore_unexpected,
        format=arguments.format,
    )
    if foreign.missing:
        note(f"left out: {', '.join(foreign.missing)}")
    has = ", ".join(("encoder", *foreign.head.parts))
    moments = "with Adam's moments" if foreign.moments is not None else "without moments"
    print(f"wrote {arguments.output}: {has}; step {foreign.step:,}, {moments}")
    if config is None:
        print(f"start from it with pretrain --init-from {arguments.output}")
    else:
        print(
            f"go on with\n  bert-jax pretrain {arguments.output}/config.json "
            f"--corpus {arguments.corpus} --workdir {arguments.output}"
        )


def _require_format(wanted: str, path: Path) -> None:
    from bert_jax.interchange import huggingface, tf1

    is_hf = huggingface.is_directory(path)
    if (wanted == "hf" and not is_hf) or (wanted == "tf1" and not tf1.is_checkpoint(path)):
        found = "a Hugging Face directory" if is_hf else "no such checkpoint"
        raise UsageError(f"--checkpoint {path} is {found}, not what --format {wanted} names")
