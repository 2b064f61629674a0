"""Read another system's checkpoint into a workdir.

Reads a Hugging Face directory (BERT, RoBERTa, ELECTRA and others; safetensors) or a TF1 checkpoint.
The result can be evaluated, exported, fine-tuned and started from. With --config and --corpus it is
the workdir of that run, which 'pretrain' continues: parameters, moments and step.
"""

from pathlib import Path
from typing import Annotated, Literal

from bert_jax.cli.corpora import CorpusDirectory
from bert_jax.cli.options import Local, Verb, require_place_for_directory
from bert_jax.config.fields import REQUIRED, section, setting
from bert_jax.errors import UsageError


@section
class ImportOptions(Verb):
    checkpoint: Path = setting(
        REQUIRED,
        "DIR: a [Hugging Face directory](checkpoints.md#hugging-face), a TF1 one, or a TF1 "
        "prefix such as DIR/bert_model.ckpt",
    )
    output: Local = setting(REQUIRED, "DIR: the new workdir")
    format: Literal["auto", "hf", "tf1"] = setting(
        "auto", "what must lie there; 'auto' takes either"
    )
    allow_missing_heads: bool = setting(
        False, "import an encoder whose heads are missing or not whole"
    )
    ignore_unexpected: tuple[str, ...] = setting(
        (),
        "PATTERN: leave out the extra tensors of these names, such as `'cls.extra.*'`; repeat "
        "for several",
    )
    config: str | None = setting(None, "CONFIG: the run to go on with; needs --corpus as well")
    overrides: Annotated[tuple[str, ...], "--set"] = setting(
        (), "FIELD=VALUE: change a field of --config; repeat for several"
    )
    corpus: CorpusDirectory | None = setting(None, "DIR: what that run trains on")


def run(options: ImportOptions) -> None:
    require_place_for_directory(output=options.output)
    from bert_jax import config_loader
    from bert_jax.progress import note

    if (options.config is None) != (options.corpus is None):
        raise UsageError("--config and --corpus go together: they are the run to go on with")
    if options.overrides and options.config is None:
        raise UsageError("--set changes a field of --config; name one")
    config = None
    if options.config is not None:
        config = config_loader.load_config(options.config, [*options.overrides])
    _require_format(options.format, options.checkpoint)
    from bert_jax.pretrained.import_export import import_checkpoint

    foreign = import_checkpoint(
        options.checkpoint,
        options.output,
        config=config,
        corpus_directory=options.corpus,
        allow_missing_heads=options.allow_missing_heads,
        ignore_unexpected=options.ignore_unexpected,
        format=options.format,
    )
    if foreign.missing:
        note(f"left out: {', '.join(foreign.missing)}")
    has = ", ".join(("encoder", *foreign.head.parts))
    moments = "with Adam's moments" if foreign.moments is not None else "without moments"
    print(f"wrote {options.output}: {has}; step {foreign.step:,}, {moments}")
    if config is None:
        print(f"start from it with pretrain --init-from {options.output}")
    else:
        print(
            f"go on with\n  bert-jax pretrain {options.output}/config.json "
            f"--corpus {options.corpus} --workdir {options.output}"
        )


def _require_format(wanted: str, path: Path) -> None:
    from bert_jax.interchange import huggingface, tf1

    is_hf = huggingface.is_directory(path)
    if (wanted == "hf" and not is_hf) or (wanted == "tf1" and not tf1.is_checkpoint(path)):
        found = "a Hugging Face directory" if is_hf else "no such checkpoint"
        raise UsageError(f"--checkpoint {path} is {found}, not what --format {wanted} names")
