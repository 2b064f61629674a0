"""The verbs `export` and `import`: options, calls, and what is said at the end."""

from pathlib import Path
from typing import Any

from bert_jax.commands.local import local
from bert_jax.errors import UsageError

EXPORT = (
    "'hf' writes a directory that transformers loads as the class its config.json names: "
    "BertForPreTraining, ...ForMaskedLM, ...ForSequenceClassification, ...ForTokenClassification, "
    "...ForQuestionAnswering or BertModel, whichever heads there are. 'tf1' writes what "
    "google-research/bert reads, with Adam's moments and the step."
)
IMPORT = (
    "Reads a Hugging Face directory (BERT or RoBERTa; safetensors) or a TF1 checkpoint. The result "
    "can be evaluated, exported, fine-tuned and started from. With --config and --corpus it is the "
    "home of that run, which 'pretrain' continues: parameters, moments and step."
)


def add_export_options(parser: Any) -> None:
    parser.add_argument("--format", choices=("hf", "tf1"), default="hf")
    parser.add_argument("--output", type=local, required=True, metavar="DIR")
    parser.add_argument(
        "--moments",
        choices=("auto", "yes", "no"),
        default="auto",
        help="whether to write Adam's moments and the step; 'auto' does for tf1 where there are "
        "any (default: %(default)s)",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "float16", "bfloat16"),
        default="float32",
        help="type of the parameters, hf only (default: %(default)s)",
    )
    parser.add_argument(
        "--max-file-size",
        type=float,
        default=5000,
        metavar="MB",
        help="begin a new safetensors file beyond this many million bytes (default: %(default)s)",
    )


def add_import_options(parser: Any) -> None:
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
    parser.add_argument("--output", type=local, required=True, metavar="DIR")
    add_allow_missing_heads(parser, "import an encoder whose heads are missing or not whole")
    parser.add_argument(
        "--config", metavar="CONFIG", help="the run to go on with; needs --corpus as well"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="FIELD=VALUE",
        help="change a field of --config; repeat for several",
    )
    parser.add_argument("--corpus", type=Path, metavar="DIR", help="what that run trains on")


def add_allow_missing_heads(parser: Any, help_text: str) -> None:
    parser.add_argument("--allow-missing-heads", action="store_true", help=help_text)


def run_export(arguments: Any) -> None:
    from bert_jax.interchange.huggingface_names import class_of
    from bert_jax.interchange.tf1 import NAME
    from bert_jax.progress import note
    from bert_jax.training.convert import export_checkpoint

    if arguments.format == "tf1" and arguments.dtype != "float32":
        raise UsageError(f"--dtype {arguments.dtype}: --format tf1 is float32 always")
    if not 0 < arguments.max_file_size < float("inf"):
        raise UsageError(f"--max-file-size {arguments.max_file_size}: it must be positive")
    written = export_checkpoint(
        arguments.checkpoint,
        arguments.output,
        to=arguments.format,
        moments={"auto": None, "yes": True, "no": False}[arguments.moments],
        dtype=arguments.dtype,
        max_file_bytes=int(arguments.max_file_size * 1e6),
    )
    state = "with Adam's moments" if written.moments is not None else "parameters only"
    print(f"wrote {arguments.output} (step {written.step:,}, {state})")
    if arguments.format == "tf1":
        if written.model.hidden_act == "gelu":
            note(
                "the model computes GELU exactly, google-research/bert by tanh: its outputs will "
                "differ by about 0.1 % of their range"
            )
        print(
            f"start from it in TensorFlow 1 with\n  --init_checkpoint={arguments.output}/{NAME}"
            + (
                f"\nor go on, moments and step included, with\n  --output_dir={arguments.output}"
                if written.moments is not None and "pooler" in written.head.parts
                else ""
            )
        )
        return
    loader = f"transformers.AutoModel{_AUTO[class_of(written.head.parts)]}"
    print(f'load it with\n  {loader}.from_pretrained("{arguments.output}")')


# Their automatic class for each of the classes that are written.
_AUTO = {
    "ForSequenceClassification": "ForSequenceClassification",
    "ForTokenClassification": "ForTokenClassification",
    "ForQuestionAnswering": "ForQuestionAnswering",
    "ForPreTraining": "ForMaskedLM",
    "ForMaskedLM": "ForMaskedLM",
    "ForNextSentencePrediction": "ForNextSentencePrediction",
    "Model": "",
}


def run_import(arguments: Any) -> None:
    from bert_jax import resolve
    from bert_jax.progress import note

    if (arguments.config is None) != (arguments.corpus is None):
        raise UsageError("--config and --corpus go together: they are the run to go on with")
    if arguments.overrides and arguments.config is None:
        raise UsageError("--set changes a field of --config; name one")
    config = None
    if arguments.config is not None:
        config = resolve.load(arguments.config, arguments.overrides)
    _require_format(arguments.format, arguments.checkpoint)
    from bert_jax.training.convert import import_checkpoint

    foreign = import_checkpoint(
        arguments.checkpoint,
        arguments.output,
        config=config,
        corpus_directory=arguments.corpus,
        allow_missing_heads=arguments.allow_missing_heads,
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
