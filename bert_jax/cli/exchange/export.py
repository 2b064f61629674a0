"""The verb `export`: options, call, and what is said at the end."""

from typing import Any

from bert_jax.cli.options import add_checkpoint, local, require_place_for_directory
from bert_jax.errors import UsageError

SUMMARY = "write a checkpoint for other systems"
DETAILS = (
    "'hf' writes a directory that transformers loads as the class its config.json names: "
    "BertForPreTraining, ...ForMaskedLM, ...ForSequenceClassification, ...ForTokenClassification, "
    "...ForQuestionAnswering or BertModel, whichever heads there are, or as RoBERTa's or ELECTRA's "
    "classes of these names; of a generator, a directory inside it. 'tf1' writes what "
    "google-research/bert reads, with Adam's moments and the step."
)


def add_options(parser: Any) -> None:
    add_checkpoint(parser)
    parser.add_argument("--format", choices=("hf", "tf1"), default="hf")
    parser.add_argument(
        "--output", type=local, required=True, metavar="DIR", help="a directory, new or empty"
    )
    parser.add_argument(
        "--model-type",
        metavar="NAME",
        help="the family of classes to write, hf only: bert, roberta, electra, xlm-roberta, "
        "camembert, roformer or roberta-prelayernorm (default: electra for what only that has, "
        "roformer for rotary positions, roberta-prelayernorm where norms come first, roberta "
        "where the tokenizer puts two "
        "separators between texts, as byte-level BPE does, else bert)",
    )
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
        "--license",
        metavar="NAME",
        help="the licence of the model for its card, as the hub calls it: apache-2.0, mit, ...",
    )
    parser.add_argument(
        "--max-file-size",
        type=float,
        default=5000,
        metavar="MB",
        help="begin a new safetensors file beyond this many million bytes (default: %(default)s)",
    )


def run(arguments: Any) -> None:
    require_place_for_directory(output=arguments.output)
    from bert_jax.interchange.electra_pair import FOLDER
    from bert_jax.interchange.huggingface_names import class_of
    from bert_jax.interchange.tf1 import NAME
    from bert_jax.pretrained.import_export import export_checkpoint
    from bert_jax.progress import note
    from bert_jax.registry import FAMILIES

    if arguments.format == "tf1" and arguments.dtype != "float32":
        raise UsageError(f"--dtype {arguments.dtype}: --format tf1 is float32 always")
    if not 0 < arguments.max_file_size < float("inf"):
        raise UsageError(f"--max-file-size {arguments.max_file_size}: it must be positive")
    if arguments.model_type is not None:
        if arguments.format == "tf1":
            raise UsageError(f"--model-type {arguments.model_type}: --format tf1 writes BERT only")
        FAMILIES[arguments.model_type]  # or an error that names those there are
    written = export_checkpoint(
        arguments.checkpoint,
        arguments.output,
        to=arguments.format,
        ignore_unexpected=arguments.ignore_unexpected,
        moments={"auto": None, "yes": True, "no": False}[arguments.moments],
        dtype=arguments.dtype,
        model_type=arguments.model_type,
        license=arguments.license,
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
    if (positions := written.model.position_embedding_type).startswith("relative_key"):
        note(
            f"only transformers 4 computes positions of kind {positions}: later versions load the "
            "rest without them"
        )
    kind = _AUTO[class_of(written.head.parts)]
    if "discriminator" in written.head.parts:
        kind = "ForPreTraining"
    loader = f"transformers.AutoModel{kind}"
    print(f'load it with\n  {loader}.from_pretrained("{arguments.output}")')
    if "generator" in written.head.parts:
        inside = f"{arguments.output}/{FOLDER}"
        print(
            f'its generator with\n  transformers.AutoModelForMaskedLM.from_pretrained("{inside}")'
        )


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
