"""Write a checkpoint for other systems.

'hf' writes a directory that transformers loads as the class its config.json names:
BertForPreTraining, ...ForMaskedLM, ...ForSequenceClassification, ...ForTokenClassification,
...ForQuestionAnswering or BertModel, whichever heads there are, or as RoBERTa's or ELECTRA's
classes of these names; of a generator, a directory inside it. With --pooling it is a directory of
sentence-transformers as well. 'tf1' writes what google-research/bert reads.
"""

from typing import Literal

from bert_jax.cli.options import FromCheckpoint, Local, require_place_for
from bert_jax.config.fields import REQUIRED, section, setting
from bert_jax.errors import UsageError


@section
class ExportOptions(FromCheckpoint):
    output: Local = setting(REQUIRED, "DIR: a directory, new or empty")
    format: Literal["hf", "tf1"] = setting("hf", "a Hugging Face directory, or a TF1 checkpoint")
    model_type: str | None = setting(
        None,
        "NAME: the family of classes to write, hf only: bert, roberta, electra, xlm-roberta, "
        "camembert, roformer, roberta-prelayernorm, modernbert, eurobert or ultrabert (default:"
        " electra for what only that has, roberta-prelayernorm where norms come first, roformer"
        " for rotary positions, one of the last three for both, roberta where the tokenizer "
        "puts two separators between texts, as byte-level BPE does, else bert)",
    )
    dtype: Literal["float32", "float16", "bfloat16"] = setting(
        "float32", "type of the parameters, hf only"
    )
    license: str | None = setting(
        None,
        "NAME: the licence of the model for its card, as the hub calls it, such as apache-2.0 "
        "or mit",
    )
    data_set: tuple[str, ...] = setting(
        (),
        "NAME: a data set that the model was trained on, for its card, as the hub calls it, "
        "such as wikimedia/wikipedia; repeat for several; those that the run's records name are"
        " there anyway",
    )
    pooling: Literal["mean", "cls", "max", "lasttoken"] | None = setting(
        None,
        "also write sentence-transformers files (hf only): how token vectors become one vector"
        " per text",
    )
    normalize: bool = setting(False, "with `--pooling`: scale vectors to length 1")
    length: int | None = setting(
        None,
        "N: of these: tokens of a text, [CLS] and [SEP] included (default: as many as the model"
        " has positions for)",
    )
    max_file_size: float = setting(
        5000, "MB: begin a new safetensors file beyond this many million bytes"
    )


def run(options: ExportOptions) -> None:
    require_place_for(is_directory=True, output=options.output)
    from bert_jax.interchange.electra_pair import FOLDER
    from bert_jax.interchange.family import class_of
    from bert_jax.interchange.tf1 import NAME
    from bert_jax.pretrained.export import export_checkpoint
    from bert_jax.progress import note
    from bert_jax.registry import FAMILIES

    if options.format == "tf1" and options.dtype != "float32":
        raise UsageError(f"--dtype {options.dtype}: --format tf1 is float32 always")
    if options.pooling is None and (options.normalize or options.length is not None):
        given = "--normalize" if options.normalize else f"--length {options.length}"
        raise UsageError(
            f"{given} is of an embedder: say how its tokens become one, --pooling mean"
        )
    if options.pooling is not None and options.format == "tf1":
        raise UsageError(f"--pooling {options.pooling}: --format tf1 has no such files")
    if options.length is not None and options.length < 3:
        raise UsageError(f"--length {options.length}: it must be at least 3")
    if not 0 < options.max_file_size < float("inf"):
        raise UsageError(f"--max-file-size {options.max_file_size}: it must be positive")
    if options.model_type is not None:
        if options.format == "tf1":
            raise UsageError(f"--model-type {options.model_type}: --format tf1 writes BERT only")
        FAMILIES[options.model_type]  # or an error that names those there are
    written = export_checkpoint(
        options.checkpoint,
        options.output,
        to=options.format,
        ignore_unexpected=options.ignore_unexpected,
        dtype=options.dtype,
        model_type=options.model_type,
        license=options.license,
        data_sets=options.data_set,
        max_file_bytes=int(options.max_file_size * 1e6),
        pooling=options.pooling,
        normalize=options.normalize,
        length=options.length,
    )
    print(f"wrote {options.output} (step {written.step:,})")
    if options.format == "tf1":
        if written.model.hidden_act == "gelu":
            note(
                "the model computes GELU exactly, google-research/bert by tanh: its outputs will "
                "differ by about 0.1 % of their range"
            )
        print(f"start from it in TensorFlow 1 with\n  --init_checkpoint={options.output}/{NAME}")
        return
    if (positions := written.model.position_embedding_type).startswith("relative_key"):
        note(
            f"only transformers 4 computes positions of kind {positions}: later versions load the "
            "rest without them"
        )
    kind = class_of(written.head.parts)
    if "discriminator" in written.head.parts:
        kind = "ForPreTraining"
    else:
        # Two classes have another name for `AutoModel`.
        kind = {"ForPreTraining": "ForMaskedLM", "Model": ""}.get(kind, kind)
    loader = f"transformers.AutoModel{kind}"
    print(f'load it with\n  {loader}.from_pretrained("{options.output}")')
    if options.pooling is not None:
        print(f'embed texts with\n  sentence_transformers.SentenceTransformer("{options.output}")')
    if "generator" in written.head.parts:
        inside = f"{options.output}/{FOLDER}"
        print(
            f'its generator with\n  transformers.AutoModelForMaskedLM.from_pretrained("{inside}")'
        )
