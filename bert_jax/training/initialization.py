"""The beginning of a pre-training run: fresh parameters, or a checkpoint that it goes on from."""

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax import config_loader
from bert_jax.config import ModelConfig, TrainConfig, flatten
from bert_jax.config.model import TRAINING_FIELDS
from bert_jax.data.corpus.store import Corpus, token_counts
from bert_jax.errors import UsageError
from bert_jax.model import bert
from bert_jax.model.positions.position import lengthened
from bert_jax.pretrained import load
from bert_jax.pretrained.load import LoadedCheckpoint
from bert_jax.progress import note
from bert_jax.registry import PARTS
from bert_jax.training import preflight
from bert_jax.update.state import TrainState
from bert_jax.workdir import location, run_directory
from bert_jax.workdir.inputs import is_same_place

# Of an array that is compared between processes.
_SMALL_BYTES = 1 << 20


class Initialization:
    """The parameters that a run begins with. A checkpoint is read once, when first asked for."""

    def __init__(
        self,
        init_from: Path | str | None,
        *,
        allow_missing_heads: bool = False,
        ignore_unexpected: Sequence[str] = (),
    ):
        self._init_from = init_from
        self._allow_missing_heads = allow_missing_heads
        self._ignore_unexpected = ignore_unexpected
        self._source: LoadedCheckpoint | None = None
        # Which parameters `state` has begun with: `facts_of` the checkpoint.
        self.facts: dict[str, str] = {}

    @property
    def is_trained(self) -> bool:
        """Returns whether a new run begins with the parameters of a checkpoint."""
        return self._init_from is not None

    def config_of(
        self, config: TrainConfig, workdir: Path | str, *, own_fields: Sequence[str] = ()
    ) -> TrainConfig:
        """Returns the config with the checkpoint's model, and the config's dropout.

        `own_fields` are the options that the user set. `max_position_embeddings` above the
        checkpoint's, set by the user or needed by a phase, makes the position table longer. A run
        that the workdir holds has its model there, so that the checkpoint may be gone. Raises
        UsageError if one of `own_fields` differs from the checkpoint.
        """
        theirs = self._model_in(workdir, config)
        if theirs is None:
            if self._init_from is None:
                return config
            theirs = self._model_of(config)
        kept = {name: getattr(config.model, name) for name in TRAINING_FIELDS}
        fewer = theirs.max_position_embeddings
        if self._wants_more_positions(config, theirs, own_fields):
            kept["max_position_embeddings"] = config.model.max_position_embeddings
        model = dataclasses.replace(theirs, **kept)
        new, old = flatten(model), flatten(config.model)
        differing = [
            f"model.{name} is {old[name]!r}, the checkpoint's {new[name]!r}"
            for name in new
            if new[name] != old[name] and {"model", f"model.{name}"} & set(own_fields)
        ]
        if differing:
            where = self._init_from or workdir
            raise UsageError(
                f"`init_from` {where}: {', '.join(differing)}; the model is the checkpoint's: "
                "leave it out"
            )
        if self._source is not None:
            note(
                f"`init_from` {self._init_from}: its model, {model.num_hidden_layers} layers of "
                f"{model.hidden_size}, {model.vocab_size:,} sub-words, "
                f"{fewer} positions; data, phases, optimiser and dropout "
                f"are those of config {config.name!r}"
            )
            if model.max_position_embeddings > fewer:
                note(
                    f"`init_from` {self._init_from}: its {fewer} positions become "
                    f"{model.max_position_embeddings}: the new positions are initialized from the "
                    "checkpoint's"
                )
        return dataclasses.replace(config, model=model)

    def require_tokenizer_of(self, corpus: Corpus) -> None:
        """Raises UsageError if an id would be one token to the checkpoint and another in the
        corpus.
        """
        if self._source is not None:
            load.require_same_tokenizer(self._source, corpus)

    def state(self, config: TrainConfig, corpus: Corpus, mesh: Mesh) -> TrainState:
        """Returns fresh parameters, or those of the checkpoint."""
        if self._init_from is None:
            return fresh_state(config, corpus, mesh)
        source, name = self._read(config), f"`init_from` {self._init_from}"
        state = trained_state(source, config, corpus, mesh, name=name, allow_missing_heads=True)
        self.facts = facts_of(source)
        self._source = None  # or its parameters would stay in memory as long as the run
        return state

    @staticmethod
    def _wants_more_positions(
        config: TrainConfig, theirs: ModelConfig, own_fields: Sequence[str]
    ) -> bool:
        most = theirs.max_position_embeddings
        is_asked_for = bool({"model", "model.max_position_embeddings"} & set(own_fields))
        is_needed = any(phase.sequence_length > most for phase in config.phases)
        is_more = config.model.max_position_embeddings > most
        return is_more and (is_asked_for or is_needed)

    def _model_of(self, config: TrainConfig) -> ModelConfig:
        """Returns the checkpoint's model; the generator is the config's, unless the run goes on
        with the one that is there.
        """
        source = self._read(config).config
        both = set(source.head.parts) & set(config.head.parts)
        if "generator" in both:
            return source.model
        return source.model.with_generator_of(config.model)

    def _model_in(self, workdir: Path | str, config: TrainConfig) -> ModelConfig | None:
        """Returns the model of the run that the workdir holds, if that began from a checkpoint."""
        # Another process may train there: this one does not hold the workdir yet.
        place = location.at(workdir)
        stored = run_directory.stored_at(place)
        begun = stored.get("init_from")
        if begun is None:
            return None
        named = begun if self._init_from is None else str(self._init_from)
        if not is_same_place(begun, named):
            return None
        return config_loader.config_in(stored, f"{place.name}/{run_directory.CONFIG}").model

    def _read(self, config: TrainConfig) -> LoadedCheckpoint:
        if self._source is None:
            assert self._init_from is not None
            self._source = load.load_checkpoint(
                self._init_from,
                mesh=preflight.mesh_of(config),
                allow_missing_heads=self._allow_missing_heads,
                ignore_unexpected=self._ignore_unexpected,
            )
        return self._source


def fresh_state(config: TrainConfig, corpus: Corpus, mesh: Mesh) -> TrainState:
    """Returns the beginning of a run that has no checkpoint, with the output bias that it asks
    for.
    """
    state = TrainState.initial(config, mesh)
    if config.output_bias == TrainConfig.output_bias:
        return state
    parts = config.head.parts
    return dataclasses.replace(
        state, params=_with_frequencies(state.params, corpus, config, parts=parts)
    )


def facts_of(source: LoadedCheckpoint) -> dict[str, str]:
    """Returns what is not the same in all processes that have read other parameters: the newest
    step of a run that still trains may be another one to each.

    It is made from the step and from the small arrays that every process has whole: biases, norms.
    """
    digest = hashlib.sha256(str(source.step).encode())
    for array in jax.tree.leaves(source.params):
        if array.is_fully_replicated and array.nbytes <= _SMALL_BYTES:
            digest.update(np.asarray(array.addressable_data(0)).tobytes())
    name = "the checkpoint that it begins with (of a run that still trains, name one step)"
    return {name: digest.hexdigest()}


def trained_state(
    source: LoadedCheckpoint,
    config: TrainConfig,
    corpus: Corpus,
    mesh: Mesh,
    *,
    name: str,
    allow_missing_heads: bool,
) -> TrainState:
    """Returns the beginning of a run with the parameters of `source`, which `name` stands for.

    Its arrays may be those of `source`: the first step takes their memory over. Raises UsageError
    for another tokenizer than the corpus's, for positions that cannot become more, and for heads
    that are not there, unless `allow_missing_heads` lets them begin fresh, from the seed.
    """
    load.require_same_tokenizer(source, corpus)
    params, fresh = load.with_parts(source, config, allow_missing_heads=allow_missing_heads)
    if fresh:
        note(f"{name} has no {', '.join(fresh)}: fresh, from seed {config.seed}")
    if config.model.max_position_embeddings > source.config.model.max_position_embeddings:
        params = lengthened(params, config.model)
        expected = bert.abstract_params(config.model, config.head)
        if jax.tree.map(np.shape, params) != jax.tree.map(np.shape, expected):
            kind = config.model.position_embedding_type
            raise UsageError(
                f"{name}: position_embedding_type {kind} cannot lengthen its table; define its "
                "method rows_for(), which returns the rows of a longer table"
            )
    if config.output_bias != TrainConfig.output_bias:
        params = _with_frequencies(params, corpus, config, parts=fresh)
        has_own = any(PARTS[part].output_bias for part in {*config.head.parts} - {*fresh})
        begins = "is the checkpoint's" if has_own else "begins at the words' frequencies"
        note(f"{name}: the output bias {begins}")
    state = TrainState.create(config, params)
    return state.to_mesh(mesh, shard_weights=config.mesh.shard_weights)


def _with_frequencies(
    params: bert.Params, corpus: Corpus, config: TrainConfig, *, parts: Sequence[str]
) -> bert.Params:
    """Returns parameters of which the masked-LM heads among `parts` have the words' frequencies.

    Token counts are one more than they are, so that a token which is nowhere has a logarithm.
    """
    counts = token_counts(corpus.train, config.model.vocab_size) + 1
    shares = np.log(counts / counts.sum()).astype(np.float32)

    def with_bias(tree: Any, names: Sequence[str]) -> Any:
        if names:
            return {**tree, names[0]: with_bias(tree[names[0]], names[1:])}
        return jax.make_array_from_callback(
            shares.shape, tree.sharding, lambda index: shares[index]
        )

    for part in parts:
        if PARTS[part].output_bias is not None:
            params = with_bias(params, (part, *PARTS[part].output_bias))
    return params
