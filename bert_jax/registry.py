"""Registries map names in a config to implementations: one registry per option.

A built-in entry is one line here and one file elsewhere. The file is imported when its entry is
first used, so that a config can be read without JAX. A `.py` config, or a file given with `extend`,
registers custom entries: `OBJECTIVES.register("mine", Mine())`.
"""

import functools
import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UsageError, brief, did_you_mean

# An optional package. Its entries are registered if it is installed.
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
    """One registry. Its built-in entries are "MODULE:NAME" or "MODULE:TABLE:KEY" until used."""

    def __init__(
        self, field: str, builtin: Mapping[str, str], *, object_of: str = "", subclass_of: str = ""
    ):
        """`field` is the option that chooses an entry, for messages. An entry is an object of the
        class "MODULE:NAME", or a subclass of one. With neither, it is a function, or the class that
        declares the options of its kind (config/fields.py).
        """
        self._field = field
        self._builtin = {name: place for name, place in builtin.items() if is_available(place)}
        self._object_of, self._subclass_of = object_of, subclass_of
        self._entries: dict[str, Any] = {}

    def register(self, name: str, entry: Any) -> None:
        """Adds an entry, or replaces a registered one: a file may be executed again.

        Raises UsageError for the name of a built-in entry, and for an entry of another type.
        """
        if name in self._builtin:
            raise UsageError(f"{self._field} {name!r} is built in; register yours by another name")
        is_class = isinstance(entry, type)
        if place := self._object_of or self._subclass_of:
            base = _imported(place)
            fits = issubclass(entry, base) if is_class else isinstance(entry, base)
            fits &= is_class == bool(self._subclass_of)
            kind = "an object" if self._object_of else "a subclass"
            wanted = f"{kind} of {base.__module__}.{base.__name__}"
        else:
            fits = callable(entry) and (not is_class or getattr(entry, "kind", None) == name)
            wanted = f"a function, or a section with kind={name!r}"
        if not fits:
            raise UsageError(f"{self._field} {name!r} must be {wanted}, not {brief(entry)}")
        self._entries[name] = entry

    def names(self) -> list[str]:
        """Returns all names, the built-in ones first."""
        return list(dict.fromkeys([*self._builtin, *self._entries]))

    def is_builtin(self, name: str) -> bool:
        return name in self._builtin

    def __contains__(self, name: object) -> bool:
        return name in self._builtin or name in self._entries

    def __getitem__(self, name: str) -> Any:
        """Returns the entry. Raises UsageError, with the nearest name, for an unknown name."""
        if name not in self._entries:
            if name not in self._builtin:
                raise UsageError(f"{self._field} {self.problem(name)}")
            self._entries[name] = _imported(self._builtin[name])
        return self._entries[name]

    def problem(self, name: str) -> str:
        """Returns the error message for an unknown name."""
        hint = did_you_mean(name, self.names(), cutoff=0.5)
        return (
            f"is {name!r}; choose one of {', '.join(self.names())}.{hint} If a Python file "
            "registers it, load that file with `extend`"
        )


def _imported(place: str) -> Any:
    """Returns the object at "MODULE:NAME" or "MODULE:TABLE:KEY"."""
    module, attribute, *key = place.split(":")
    found = getattr(importlib.import_module(module), attribute)
    return found[key[0]] if key else found


OBJECTIVES = Registry(
    "objective",
    {
        "mlm+nsp": "bert_jax.objectives.mlm_nsp:MLM_NSP",
        "mlm": "bert_jax.objectives.mlm:MLM",
        "rtd": "bert_jax.objectives.replaced_token:REPLACED_TOKEN",
        "contrastive": "bert_jax.objectives.contrastive:CONTRASTIVE",
    },
    object_of="bert_jax.objectives.objective:Objective",
)
# Losses of text embeddings.
PAIR_LOSSES = Registry(
    "embedding.loss.kind",
    {
        "info_nce": "bert_jax.objectives.pair_losses:info_nce",
        "cosent": "bert_jax.objectives.pair_losses:CoSENT",
        "margin_mse": "bert_jax.objectives.pair_losses:MarginMSE",
        "kl": "bert_jax.objectives.pair_losses:KullbackLeibler",
    },
)
# Heads of a model, in the order in which they are initialized.
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
        "embedding": "bert_jax.model.heads.embedding:EMBEDDING",
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
# How the tokens of a sequence exchange information.
MIXERS = Registry(
    "model.mixer.kind",
    {"attention": "bert_jax.model.mixers.self_attention:SELF_ATTENTION"},
    object_of="bert_jax.model.mixers.mixer:Mixer",
)
# Attention scores of a query and a key.
SCORES = Registry(
    "model.mixer.score",
    {"scaled_dot_product": "bert_jax.model.mixers.scores:Score"},
    subclass_of="bert_jax.model.mixers.scores:Score",
)
# Attention implementations. `auto` takes the first one that supports a layer and is faster.
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
        "bert_adamw": "bert_jax.update.optimizers:bert_adamw",
        "adamw": "bert_jax.update.optimizers:AdamW",
        "lamb": "bert_jax.update.lamb:Lamb",
        "stable_adamw": "bert_jax.update.stable_adamw:StableAdamW",
        "muon": "bert_jax.update.muon:Muon",
    },
)
SCHEDULES = Registry(
    "optimizer.schedule.kind",
    {
        "bert_linear": "bert_jax.update.schedules:bert_linear",
        "electra_linear": "bert_jax.update.schedules:ElectraLinear",
        "linear": "bert_jax.update.schedules:LinearDecay",
        "polynomial": "bert_jax.update.schedules:PolynomialDecay",
        "cosine": "bert_jax.update.schedules:CosineDecay",
        "constant": "bert_jax.update.schedules:Constant",
        "warmup_stable_decay": "bert_jax.update.schedules:WarmupStableDecay",
    },
)
# How a corpus becomes sequences, and which of their tokens are masked.
SEQUENCE_FORMATS = Registry(
    "data.sequence_format",
    {
        "sentence_pairs": "bert_jax.data.pretraining.sentence_pairs:SENTENCE_PAIRS",
        "full_sentences": "bert_jax.data.pretraining.one_segment:FULL_SENTENCES",
        "doc_sentences": "bert_jax.data.pretraining.one_segment:DOC_SENTENCES",
        "documents": "bert_jax.data.pretraining.one_segment:DOCUMENTS",
        "electra_segments": "bert_jax.data.pretraining.electra_segments:ELECTRA_SEGMENTS",
        "crops": "bert_jax.data.pairs.rows:CROPS",
        "adjacent": "bert_jax.data.pairs.rows:ADJACENT",
        "title_body": "bert_jax.data.pairs.rows:TITLE_BODY",
        "same": "bert_jax.data.pairs.rows:SAME",
    },
    object_of="bert_jax.data.pretraining.spans:SpanRows",
)
MASKINGS = Registry(
    "data.masking",
    {
        "tokens": "bert_jax.data.pretraining.masking:mask_rows",
        "whole_words": "bert_jax.data.pretraining.word_masking:mask_words",
        "spans": "bert_jax.data.pretraining.span_masking:mask_spans",
    },
)
_RECORDS = (".jsonl", ".csv", ".tsv", ".parquet", ".arrow")
_FASTA = (".fasta", ".fa", ".faa", ".fna")
# Suffixes of supported corpus files.
FORMATS = Registry(
    "source",
    {
        ".txt": "bert_jax.data.formats.text:read_text",
        **dict.fromkeys(_RECORDS, "bert_jax.data.sources.rows:read_records"),
        ".warc": "bert_jax.data.formats.warc:read_pages",
        ".wet": "bert_jax.data.formats.warc:read_texts",
        **dict.fromkeys(_FASTA, "bert_jax.data.formats.fasta:read_fasta"),
    },
)
# Kinds of tasks, and the tasks by name: each names its kind and sets the options of that kind.
TASK_KINDS = Registry(
    "task.kind",
    {
        "classification": "bert_jax.tasks.sequence_classification:TextTask",
        "regression": "bert_jax.tasks.sequence_classification:TextTask",
        "tokens": "bert_jax.tasks.token_classification:WordTask",
        "pairs": "bert_jax.tasks.pairs:PairTask",
        "similarity": "bert_jax.tasks.pairs:PairTask",
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
        "pairs": "bert_jax.tasks.pairs:PAIRS",
        "similarity": "bert_jax.tasks.pairs:SIMILARITY",
        "squad": "bert_jax.tasks.question_answering:SQUAD",
        "squad2": "bert_jax.tasks.question_answering:SQUAD2",
    },
    object_of="bert_jax.tasks.task:NamedTask",
)
# Probes of a trained model.
PROBES = Registry(
    "probe",
    {
        "minimal_pairs": "bert_jax_lab.probes.minimal_pairs:PROBE",
        "pseudo_perplexity": "bert_jax_lab.probes.pseudo_perplexity:PROBE",
    },
    object_of="bert_jax_lab.probes.probe:Probe",
)
# Hooks run between the steps of a run, besides logging, saving and evaluating.
HOOKS = Registry(
    "hooks",
    {
        "expected_curves": "bert_jax_lab.reference_curves.hook:ExpectedCurves",
        "best_checkpoint": "bert_jax.training.held_out_hooks:BestCheckpoint",
        "early_stopping": "bert_jax.training.held_out_hooks:EarlyStopping",
        "vector_scores": "bert_jax.tasks.vector_scores:VectorScores",
    },
    subclass_of="bert_jax.training.hooks:Hook",
)
# Services that show the curves of runs, besides metrics.jsonl and TensorBoard.
TRACKERS = Registry(
    "trackers",
    {"wandb": "bert_jax.workdir.trackers:WeightsAndBiases"},
    subclass_of="builtins:object",
)
# `model_type` of a Hugging Face config -> how its tensors and fields map to bert-jax.
FAMILIES = Registry(
    "model_type",
    {
        "bert": "bert_jax.interchange.families:BERT_FAMILY",
        "roberta": "bert_jax.interchange.families:ROBERTA_FAMILY",
        "xlm-roberta": "bert_jax.interchange.families:XLM_ROBERTA_FAMILY",
        "camembert": "bert_jax.interchange.families:CAMEMBERT_FAMILY",
        "electra": "bert_jax.interchange.families:ELECTRA_FAMILY",
        "roformer": "bert_jax.interchange.families:ROFORMER_FAMILY",
        "roberta-prelayernorm": "bert_jax.interchange.families:PRE_NORM_FAMILY",
        "modernbert": "bert_jax.interchange.modernbert:FAMILY",
        "eurobert": "bert_jax.interchange.eurobert:FAMILY",
        "ultrabert": "bert_jax.interchange.ultrabert:FAMILY",
    },
    object_of="bert_jax.interchange.family:Family",
)
