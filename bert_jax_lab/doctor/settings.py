"""Checks of the config: its fields, mesh and masks, and the packages that it needs."""

from pathlib import Path

from jax.sharding import Mesh

from bert_jax import config_loader
from bert_jax.config import TrainConfig
from bert_jax.config_checks import mask_warnings, validate
from bert_jax.data.corpus.store import Corpus
from bert_jax.pretrained import export as exporting
from bert_jax.registry import OBJECTIVES
from bert_jax.training import preflight
from bert_jax.training.held_out_hooks import HeldOutFigure
from bert_jax.training.hooks import named_hooks
from bert_jax.training.initialization import Initialization
from bert_jax.workdir import trackers
from bert_jax_lab.doctor.arguments import Arguments
from bert_jax_lab.doctor.finding import Finding, passed, warned


def config(arguments: Arguments) -> tuple[Finding, TrainConfig]:
    """Every field is known and valid, and agrees with the others; trackers are installed."""
    assert arguments.config is not None
    # The model of a run with `init_from` comes from the checkpoint: see `beginning`.
    found = config_loader.load_config(
        arguments.config, list(arguments.overrides), checked=arguments.init_from is None
    )
    for hook in named_hooks(found):
        if isinstance(hook, HeldOutFigure):
            hook.choose(OBJECTIVES[found.objective].watched(), found)
    trackers.require_installed(found.trackers)
    model = found.model
    text = (
        f"{found.name}: {model.num_hidden_layers} layers of {model.hidden_size}, "
        f"{found.total_steps:,} steps, phases: {len(found.phases)}"
    )
    return passed(text), found


def beginning(
    arguments: Arguments, config: TrainConfig, corpus: Corpus | None
) -> tuple[Finding, TrainConfig]:
    """The checkpoint of `init_from` can be read, and has the tokenizer of the corpus."""
    # Without a workdir there is no run to resume, which would have another model.
    workdir = arguments.workdir or Path("no workdir")
    begin = Initialization(
        arguments.init_from,
        allow_missing_heads=arguments.allow_missing_heads,
        ignore_unexpected=arguments.ignore_unexpected,
    )
    fields = [assignment.partition("=")[0].strip() for assignment in arguments.overrides]
    found = validate(begin.config_of(config, workdir, own_fields=fields))
    if corpus is not None:
        begin.require_tokenizer_of(corpus)
    return passed(f"the run is initialized from {arguments.init_from}"), found


def export(config: TrainConfig) -> Finding:
    """A class of transformers matches the model, so that it can be exported."""
    if warning := exporting.export_warning(config):
        text = warning.removeprefix("note: ")
        found, _, remedy = text.rpartition("; ")
        return warned(found or text, remedy if found else "only bert-jax reads the model")
    return passed("a class of transformers matches this model")


def mesh(config: TrainConfig) -> tuple[Finding, Mesh]:
    """The mesh uses every device once, and every device gets the same number of rows."""
    found = preflight.mesh_of(config)
    preflight.require_on_mesh(config, found)
    shape = " x ".join(f"{size} {axis}" for axis, size in found.shape.items())
    rows = ", ".join(str(phase.global_batch_size) for phase in config.phases)
    return passed(f"{shape}; batches of {rows} rows divide evenly"), found


def masks(config: TrainConfig) -> Finding:
    """Every phase has slots for the tokens to predict."""
    lines = [line.removeprefix("warning: ") for line in mask_warnings(config)]
    if lines:
        found, remedies = zip(*(line.rsplit("; ", 1) for line in lines), strict=True)
        return warned("; ".join(found), "; ".join(remedies))
    slots = ", ".join(f"{p.max_predictions} of {p.sequence_length}" for p in config.phases)
    return passed(f"slots for {slots} tokens per row")
