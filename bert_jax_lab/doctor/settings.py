"""Checks of the config: its fields, its mesh, its masks, and what it asks of other packages."""

from pathlib import Path

from bert_jax import config_loader
from bert_jax.config_checks import mask_warnings, validate
from bert_jax.pretrained import import_export
from bert_jax.registry import OBJECTIVES
from bert_jax.training import preflight
from bert_jax.training.held_out_hooks import HeldOutFigure
from bert_jax.training.hooks import named_hooks
from bert_jax.training.initialization import Initialization
from bert_jax.workdir import trackers
from bert_jax_lab.doctor.checked_run import Case
from bert_jax_lab.doctor.finding import Finding, passed, warned
from bert_jax_lab.reference_curves import recorded_runs


def config(case: Case) -> Finding:
    """Every field is known and possible, and fits the others."""
    assert case.config_name is not None
    # The model of a run that goes on from a checkpoint is the checkpoint's: see `beginning`.
    found = config_loader.load_config(
        case.config_name, list(case.overrides), checked=case.init_from is None
    )
    for hook in named_hooks(found):
        if isinstance(hook, HeldOutFigure):
            hook.choose(OBJECTIVES[found.objective].watched())
    case.config = found
    model = found.model
    return passed(
        f"{found.name}: {model.num_hidden_layers} layers of {model.hidden_size}, "
        f"{found.total_steps:,} steps in {len(found.phases)} phase(s)"
    )


def tracked(case: Case) -> Finding:
    """The packages of the services that show the rows are installed."""
    trackers.require_installed(case.config.trackers)
    return passed(", ".join(case.config.trackers) or "none is asked for")


def beginning(case: Case) -> Finding:
    """The checkpoint that the run begins from can be read, and has the corpus's tokenizer."""
    wanted = case.config
    del case.config
    # Without a workdir no run is there yet that would go on with a model of its own.
    workdir = case.workdir or Path("no workdir")
    begin = Initialization(
        case.init_from,
        allow_missing_heads=case.allow_missing_heads,
        ignore_unexpected=case.ignore_unexpected,
    )
    fields = [assignment.partition("=")[0].strip() for assignment in case.overrides]
    found = validate(begin.config_of(wanted, workdir, own_fields=fields))
    if (corpus := case.known("corpus")) is not None:
        begin.require_tokenizer_of(corpus)
    case.config = found
    return passed(f"the run begins from {case.init_from}")


def expected(case: Case) -> Finding:
    """The runs that this one is compared with are of its kind."""
    assert case.expect is not None
    entropy = case.corpus.manifest["unigram_entropy_nats"]
    group = recorded_runs.of_runs(case.config, entropy, case.expect)
    return passed(f"{len(group['runs'])} run(s) of its kind")


def export(case: Case) -> Finding:
    """A class of transformers computes the model, so that it can be exported."""
    if warning := import_export.export_warning(case.config):
        text = warning.removeprefix("note: ")
        found, _, remedy = text.rpartition("; ")
        return warned(found or text, remedy if found else "it is read by bert-jax alone")
    return passed("a class of transformers computes this model")


def mesh(case: Case) -> Finding:
    """The mesh uses every device once, and every device gets as many rows."""
    found = preflight.mesh_of(case.config)
    preflight.require_on_mesh(case.config, found)
    case.mesh = found
    shape = " x ".join(f"{size} {axis}" for axis, size in found.shape.items())
    rows = ", ".join(str(phase.global_batch_size) for phase in case.config.phases)
    return passed(f"{shape}; batches of {rows} rows divide")


def masks(case: Case) -> Finding:
    """Every phase has room for the tokens that it is to predict."""
    lines = [line.removeprefix("warning: ") for line in mask_warnings(case.config)]
    if lines:
        found, remedies = zip(*(line.rsplit("; ", 1) for line in lines), strict=True)
        return warned("; ".join(found), "; ".join(remedies))
    room = ", ".join(f"{p.max_predictions} of {p.sequence_length}" for p in case.config.phases)
    return passed(f"room for {room} tokens a row")
