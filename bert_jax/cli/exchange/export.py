"""Export a checkpoint to Hugging Face, sentence-transformers or TF1.

'hf' writes a directory that transformers loads; the heads of the model decide its class, for
example BertForMaskedLM or BertForSequenceClassification. The generator of an ELECTRA is in a
directory inside it. With --pooling the directory is a sentence-transformers model as well. 'tf1'
writes a checkpoint for google-research/bert.

examples:
  bert-jax export runs/base --output-dir my-encoder
  bert-jax export runs/base --output-dir my-embedder --pooling mean --normalize
"""

from pathlib import Path
from typing import Annotated, Literal

from bert_jax.cli.options import FromCheckpoint, require_place_for
from bert_jax.config.fields import REQUIRED, section, setting
from bert_jax.errors import UsageError


@section
class ExportOptions(FromCheckpoint):
    output: Annotated[Path, "--output-dir"] = setting(
        REQUIRED, "DIR: new or empty directory to write"
    )
    format: Literal["hf", "tf1"] = setting("hf", "Hugging Face directory, or TF1 checkpoint")
    model_type: str | None = setting(
        None,
        "NAME: family of transformers classes (hf only): bert, roberta, electra, xlm-roberta, "
        "camembert, roformer, roberta-prelayernorm, modernbert, eurobert or ultrabert (default: "
        "chosen from the architecture and the tokenizer)",
    )
    dtype: Literal["float32", "float16", "bfloat16"] = setting(
        "float32", "type of the parameters (hf only)"
    )
    license: str | None = setting(
        None,
        "NAME: license of the model for its card, as the hub writes it, for example apache-2.0",
    )
    data_set: Annotated[tuple[str, ...], "--dataset"] = setting(
        (),
        "NAME: training dataset for the model card, as the hub writes it, for example "
        "wikimedia/wikipedia; repeat for several. Datasets in the run's records are added",
    )
    pooling: Literal["mean", "cls", "max", "lasttoken"] | None = setting(
        None,
        "write a sentence-transformers model with this pooling of token vectors (hf only)",
    )
    normalize: bool | None = setting(
        None, "scale vectors to length 1 (needs `--pooling`) (default: no)"
    )
    length: Annotated[int | None, "--max-length"] = setting(
        None,
        "N: most tokens per text, with [CLS] and [SEP] (needs `--pooling`) (default: the number of "
        "positions)",
    )
    max_file_size: float = setting(5000, "MB: largest safetensors file, in million bytes")


def run(options: ExportOptions) -> None:
    require_place_for(is_directory=True, output=options.output)
    from bert_jax.interchange.electra_pair import FOLDER
    from bert_jax.interchange.family import class_of
    from bert_jax.interchange.sentence_transformers import MODULES
    from bert_jax.interchange.tf1 import NAME
    from bert_jax.pretrained.export import export_checkpoint
    from bert_jax.progress import note
    from bert_jax.registry import FAMILIES

    if options.format == "tf1" and options.dtype != "float32":
        raise UsageError(f"--dtype {options.dtype}: --format tf1 writes float32 only")
    if options.pooling is None and (options.normalize or options.length is not None):
        given = "--normalize" if options.normalize else f"--max-length {options.length}"
        raise UsageError(f"{given} needs --pooling, for example --pooling mean")
    if options.length is not None and options.length < 3:
        raise UsageError(f"--max-length {options.length}: it must be at least 3")
    if not 0 < options.max_file_size < float("inf"):
        raise UsageError(f"--max-file-size {options.max_file_size}: it must be positive")
    if options.model_type is not None:
        if options.format == "tf1":
            raise UsageError(f"--model-type {options.model_type}: --format tf1 writes BERT only")
        FAMILIES[options.model_type]  # or an error that lists the families
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
        normalize=bool(options.normalize),
        length=options.length,
    )
    print(f"wrote {options.output} (step {written.step:,})")
    if options.format == "tf1":
        if written.model.hidden_act == "gelu":
            note(
                "google-research/bert approximates GELU by tanh, so its outputs differ by about "
                "0.1 % of their range"
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
    if (options.output / MODULES).is_file():
        print(f'embed texts with\n  sentence_transformers.SentenceTransformer("{options.output}")')
    if "generator" in written.head.parts:
        inside = f"{options.output}/{FOLDER}"
        print(
            f'its generator with\n  transformers.AutoModelForMaskedLM.from_pretrained("{inside}")'
        )
