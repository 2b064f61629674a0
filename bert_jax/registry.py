"""Tables lead from a name in a config to what the name stands for: one table for each axis of runs.

A built-in entry is one line here and one file elsewhere, imported when it is first asked for: a
config is read in an instant. A config that is a `.py` file, or a file given with `extend`,
registers its own entries: `OBJECTIVES.register("mine", Mine())`.
"""

import dataclasses
import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from bert_jax.errors import UsageError, brief, did_you_mean


class _Place(NamedTuple):
    """A statement that registers, and the execution of its file."""

    file: str  # "" in a notebook
    line: int
    execution: Any

    def repeats(self, other: "_Place") -> bool:
        """Returns whether this is the same statement, or one of the same file executed again."""
        is_again = self.line == other.line or self.execution is not other.execution
        return self.file == other.file and (is_again or not self.file)


# A package that the core works without. Its entries are built in where it is installed.
LABORATORY = "bert_jax_lab"


@functools.cache
def is_available(place: str) -> bool:
    """Returns whether the package of a built-in entry ("PACKAGE.MODULE...") is installed."""
    if place.partition(".")[0] != LABORATORY:
        return True
    try:
        return importlib.util.find_spec(LABORATORY) is not None
    except ImportError:
        return False


class Registry:
    """One table. Its built-in entries are "MODULE:NAME" or "MODULE:TABLE:KEY" until asked for."""

    _all: ClassVar[list["Registry"]] = []

    def __init__(
        self, field: str, builtin: Mapping[str, str], *, object_of: str = "", subclass_of: str = ""
    ):
        """`field` is what chooses an entry, as messages name it. An entry is an object of the class
        "MODULE:NAME", or a subclass of another; where neither is given, a function.
        """
        self._field, self._section = field, field.rpartition(".")[0] or field
        self._builtin = {name: place for name, place in builtin.items() if is_available(place)}
        self._object_of, self._subclass_of = object_of, subclass_of
        self._entries: dict[str, Any] = {}
        self._places: dict[str, _Place] = {}
        self._all.append(self)

    def register(self, name: str, entry: Any) -> None:
        """Adds an entry. A file that is executed again replaces its own; all others stay.

        Raises UsageError for a name that is taken, for what is no entry of this table, and for an
        option that another entry of the config's section has.
        """
        caller = sys._getframe(1)
        values = caller.f_globals
        file = os.path.realpath(values["__file__"]) if "__file__" in values else ""
        # A module that is reloaded has the same values, and another `__spec__`.
        place = _Place(file, caller.f_lineno, values.get("__spec__") or values)
        for problem in self._problems(name, entry, place):
            raise UsageError(f"{self._field} {name!r} {problem}")
        self._entries[name], self._places[name] = entry, place

    def _problems(self, name: str, entry: Any, place: _Place) -> Iterator[str]:
        if name in self._builtin:
            yield "is built in; register yours by another name"
        other = self._places.get(name, place)
        if name in self._entries and not place.repeats(other):
            where = f"{other.file}, line {other.line}" if other.file else "a notebook"
            yield f"is registered by {where}; register yours by another name"
        if (wrong := self._wrong_kind(entry)) is not None:
            yield f"must be {wrong}, not {brief(entry)}"
        own = _options(entry)
        for table in self._all if own else ():
            for other in table.names() if table._section == self._section else ():
                is_itself = table is self and other == name
                for option, theirs in () if is_itself else _options(table[other]).items():
                    if option in own and (table is not self or own[option] != theirs):
                        yield (
                            f"has an option {option}, and {table._field} {other!r} has another "
                            "one of that name; name yours otherwise"
                        )

    def _wrong_kind(self, entry: Any) -> str | None:
        """Returns what an entry must be, where this one is not."""
        if self._subclass_of:
            base = _imported(self._subclass_of)
            is_one = isinstance(entry, type) and issubclass(entry, base)
            return None if is_one else f"a subclass of {base.__module__}.{base.__name__}"
        if self._object_of:
            base = _imported(self._object_of)
            is_one = isinstance(entry, base) or (is_made(entry) and issubclass(entry, base))
            return None if is_one else f"an object of {base.__module__}.{base.__name__}"
        is_one = is_made(entry) or (callable(entry) and not isinstance(entry, type))
        return None if is_one else "a function, or a class made by bert_jax.config.entries.entry"

    def names(self) -> list[str]:
        """Returns all names, the built-in ones first."""
        return [*self._builtin, *(name for name in self._entries if name not in self._builtin)]

    def is_builtin(self, name: str) -> bool:
        return name in self._builtin

    def __contains__(self, name: object) -> bool:
        return name in self._builtin or name in self._entries

    def __getitem__(self, name: str) -> Any:
        """Returns the entry. Raises UsageError, with the nearest name, if there is none."""
        if name not in self._entries:
            if name not in self._builtin:
                raise UsageError(f"{self._field} {self.problem(name)}")
            self._entries[name] = _imported(self._builtin[name])
        return self._entries[name]

    def problem(self, name: str) -> str:
        """Returns what to say of a name that is not there."""
        hint = did_you_mean(name, self.names(), cutoff=0.5)
        return (
            f"is {name!r}; choose one of {', '.join(self.names())}.{hint} If a file of yours "
            "registers it, name that file with `extend`"
        )


def is_made(entry: Any) -> bool:
    """Returns whether an entry is made with its options before it is used (config/entries.py)."""
    return isinstance(entry, type) and dataclasses.is_dataclass(entry)


def declared(entry: Any) -> Any:
    """Returns the class that declares the options of an entry; None where it has none."""
    return entry if is_made(entry) else getattr(entry, "Options", None)


def _options(entry: Any) -> dict[str, Any]:
    """Returns what the options of an entry say about themselves, by their names."""
    cls = declared(entry)
    return {f.name: f.metadata for f in dataclasses.fields(cls) if f.metadata} if cls else {}


def _imported(place: str) -> Any:
    """Returns what "MODULE:NAME" or "MODULE:TABLE:KEY" stands for."""
    module, attribute, *key = place.split(":")
    found = getattr(importlib.import_module(module), attribute)
    return found[key[0]] if key else found


OBJECTIVES = Registry(
    "objective",
    {
        "mlm+nsp": "bert_jax.objectives.mlm_nsp:MLM_NSP",
        "mlm": "bert_jax.objectives.mlm:MLM",
        "rtd": "bert_jax.objectives.replaced_token:REPLACED_TOKEN",
    },
    object_of="bert_jax.objectives.objective:Objective",
)
# Parts of a model that stand on the encoder, in the order in which they are initialised.
PARTS = Registry(
    "head.parts",
    {
        "pooler": "bert_jax.model.heads.pooler:POOLER",
        "mlm": "bert_jax.model.heads.masked_lm:MASKED_LM",
        "nsp": "bert_jax.model.heads.next_sentence:NEXT_SENTENCE",
        "sequence_classifier": "bert_jax.model.heads.classifiers:SEQUENCE_CLASSIFIER",
        "token_classifier": "bert_jax.model.heads.classifiers:TOKEN_CLASSIFIER",
        "span_classifier": "bert_jax.model.heads.classifiers:SPAN_CLASSIFIER",
        "generator": "bert_jax.model.heads.replaced_token:GENERATOR",
        "discriminator": "bert_jax.model.heads.replaced_token:DISCRIMINATOR",
    },
    object_of="bert_jax.model.heads.part:Part",
)
POSITIONS = Registry(
    "model.position_embedding_type",
    {
        "learned": "bert_jax.model.positions.absolute:Learned",
        "sinusoidal": "bert_jax.model.positions.absolute:Sinusoidal",
        "none": "bert_jax.model.positions.position:Position",
        "rotary": "bert_jax.model.positions.rotary:Rotary",
        "rotary_interleaved": "bert_jax.model.positions.rotary:RotaryInterleaved",
        "alibi": "bert_jax.model.positions.distance_bias:Alibi",
        "t5": "bert_jax.model.positions.distance_bias:T5",
        "relative_key": "bert_jax.model.positions.relative_key:RelativeKey",
        "relative_key_query": "bert_jax.model.positions.relative_key:RelativeKeyQuery",
    },
    subclass_of="bert_jax.model.positions.position:Position",
)
# How the tokens of a sequence exchange what they know.
MIXERS = Registry(
    "model.mixer",
    {
        "attention": "bert_jax.model.mixers.self_attention:SELF_ATTENTION",
        "convolution": "bert_jax.model.mixers.convolution:CONVOLUTION",
        "gru": "bert_jax.model.mixers.gru:RECURRENCE",
    },
    object_of="bert_jax.model.mixers.mixer:Mixer",
)
# How well a key answers a query.
SCORES = Registry(
    "model.attention_score",
    {
        "scaled_dot_product": "bert_jax.model.mixers.scores:Score",
        "dot_product": "bert_jax.model.mixers.scores:DotProduct",
        "general": "bert_jax.model.mixers.scores:General",
        "additive": "bert_jax.model.mixers.scores:Additive",
    },
    subclass_of="bert_jax.model.mixers.scores:Score",
)
# What computes attention. `auto` takes the first that can serve a layer, and pays.
ATTENTION = Registry(
    "compute.attention",
    {
        "auto": "bert_jax.model.attention.implementation:AUTO",
        "local": "bert_jax.model.attention.local:LOCAL",
        "cudnn": "bert_jax.model.attention.cudnn:CUDNN",
        "triton": "bert_jax.model.attention.triton:TRITON",
        "chunked": "bert_jax.model.attention.chunked:CHUNKED",
        "fused": "bert_jax.model.attention.fused:FUSED",
        "plain": "bert_jax.model.attention.plain:PLAIN",
    },
)
OPTIMIZERS = Registry(
    "optimizer.kind",
    {
        "bert_adamw": "bert_jax.update.optimizers:BertAdamW",
        "adamw": "bert_jax.update.optimizers:AdamW",
        "lamb": "bert_jax.update.lamb:Lamb",
        "stable_adamw": "bert_jax.update.stable_adamw:StableAdamW",
        "muon": "bert_jax.update.muon:Muon",
    },
)
SCHEDULES = Registry(
    "optimizer.schedule",
    {
        "bert_linear": "bert_jax.update.schedules:bert_linear",
        "electra_linear": "bert_jax.update.schedules:electra_linear",
        "linear": "bert_jax.update.schedules:LinearDecay",
        "polynomial": "bert_jax.update.schedules:PolynomialDecay",
        "cosine": "bert_jax.update.schedules:CosineDecay",
        "constant": "bert_jax.update.schedules:constant",
        "warmup_stable_decay": "bert_jax.update.schedules:WarmupStableDecay",
    },
)
# How a corpus becomes rows, and which of their tokens are masked.
ROWS = Registry(
    "data.rows",
    {
        "sentence_pairs": "bert_jax.data.pretraining.sentence_pairs:SENTENCE_PAIRS",
        "full_sentences": "bert_jax.data.pretraining.one_segment:FULL_SENTENCES",
        "doc_sentences": "bert_jax.data.pretraining.one_segment:DOC_SENTENCES",
        "documents": "bert_jax.data.pretraining.one_segment:DOCUMENTS",
        "electra_segments": "bert_jax.data.pretraining.electra_segments:ELECTRA_SEGMENTS",
    },
    object_of="bert_jax.data.pretraining.spans:SpanRows",
)
MASKS = Registry(
    "data.mask",
    {
        "tokens": "bert_jax.data.pretraining.masking:mask_rows",
        "whole_words": "bert_jax.data.pretraining.word_masking:mask_words",
        "spans": "bert_jax.data.pretraining.span_masking:mask_spans",
    },
)
# Endings of the files that a corpus is made of.
FORMATS = Registry(
    "source",
    {
        ".txt": "bert_jax.data.formats.text:read_text",
        ".jsonl": "bert_jax.data.formats.records:read_records",
        ".csv": "bert_jax.data.formats.records:read_records",
        ".tsv": "bert_jax.data.formats.records:read_records",
        ".parquet": "bert_jax.data.formats.records:read_records",
        ".arrow": "bert_jax.data.formats.records:read_records",
        ".warc": "bert_jax.data.formats.warc:read_pages",
        ".wet": "bert_jax.data.formats.warc:read_texts",
        ".fasta": "bert_jax.data.formats.fasta:read_fasta",
        ".fa": "bert_jax.data.formats.fasta:read_fasta",
        ".faa": "bert_jax.data.formats.fasta:read_fasta",
        ".fna": "bert_jax.data.formats.fasta:read_fasta",
    },
)
# Kinds of task, and the tasks by name: each names a kind and says the rest.
TASK_KINDS = Registry(
    "task.kind",
    {
        "classification": "bert_jax.tasks.sequence_classification:TextTask",
        "regression": "bert_jax.tasks.sequence_classification:TextTask",
        "tokens": "bert_jax.tasks.token_classification:WordTask",
        "spans": "bert_jax.tasks.question_answering:SpanTask",
    },
    subclass_of="bert_jax.tasks.task:Task",
)
TASKS = Registry(
    "task",
    {
        **{
            name: f"bert_jax.tasks.glue:NAMED:{name}"
            for name in ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
        },
        "text": "bert_jax.tasks.sequence_classification:TEXT",
        "ner": "bert_jax.tasks.token_classification:NER",
        "squad": "bert_jax.tasks.question_answering:SQUAD",
        "squad2": "bert_jax.tasks.question_answering:SQUAD2",
    },
    object_of="bert_jax.tasks.task:NamedTask",
)
# Questions to a trained model.
PROBES = Registry(
    "probe",
    {
        "minimal_pairs": "bert_jax_lab.probes.minimal_pairs:PROBE",
        "pseudo_perplexity": "bert_jax_lab.probes.pseudo_perplexity:PROBE",
    },
    object_of="bert_jax_lab.probes.probe:Probe",
)
# What happens between the steps of a run, beside logging, saving and evaluating.
HOOKS = Registry(
    "hooks",
    {
        "expected_curves": "bert_jax_lab.reference_curves.hook:ExpectedCurves",
        "best_checkpoint": "bert_jax.training.held_out_hooks:BestCheckpoint",
        "early_stopping": "bert_jax.training.held_out_hooks:EarlyStopping",
    },
    subclass_of="bert_jax.training.hooks:Hook",
)
# The hooks of every run, which a config does not name.
ALWAYS_HOOKS = [name for name in ("expected_curves",) if name in HOOKS]
# Services that show the curves of runs, beside metrics.jsonl and TensorBoard.
TRACKERS = Registry(
    "trackers",
    {
        "wandb": "bert_jax.workdir.trackers:WeightsAndBiases",
    },
    subclass_of="builtins:object",
)
# `model_type` of a Hugging Face config -> how its names and tables map to ours.
FAMILIES = Registry(
    "model_type",
    {
        "bert": "bert_jax.interchange.huggingface_names:BERT_FAMILY",
        "roberta": "bert_jax.interchange.huggingface_names:ROBERTA_FAMILY",
        "xlm-roberta": "bert_jax.interchange.huggingface_names:XLM_ROBERTA_FAMILY",
        "camembert": "bert_jax.interchange.huggingface_names:CAMEMBERT_FAMILY",
        "electra": "bert_jax.interchange.huggingface_names:ELECTRA_FAMILY",
        "roformer": "bert_jax.interchange.huggingface_names:ROFORMER_FAMILY",
        "roberta-prelayernorm": "bert_jax.interchange.huggingface_names:PRE_NORM_FAMILY",
        "modernbert": "bert_jax.interchange.modernbert:FAMILY",
        "eurobert": "bert_jax.interchange.eurobert:FAMILY",
        "ultrabert": "bert_jax.interchange.ultrabert:FAMILY",
    },
    object_of="bert_jax.interchange.family:Family",
)
