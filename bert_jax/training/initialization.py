"""The initial state of a pre-training run: new parameters, or the parameters of a checkpoint."""

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
from bert_jax.workdir.run_directory import is_same_place

# The largest array that is compared between processes.
_SMALL_BYTES = 1 << 20


class Initialization:
    """The parameters that a run starts from. A checkpoint is read once, when it is first needed."""

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
        # `facts_of` the checkpoint that `state` has used.
        self.facts: dict[str, str] = {}

    @property
    def is_trained(self) -> bool:
        """Returns whether a new run starts from the parameters of a checkpoint."""
        return self._init_from is not None

    def config_of(
        self, config: TrainConfig, workdir: Path | str, *, own_fields: Sequence[str] = ()
    ) -> TrainConfig:
        """Returns the config with the checkpoint's model, and the config's dropout.

        `own_fields` are the options that the user set. `max_position_embeddings` above the
        checkpoint's, set by the user or needed by a phase, makes the position table longer. If the
        workdir has a run that started from the checkpoint, the run's model is used: the checkpoint
        may have been deleted. Raises UsageError if one of `own_fields` differs from the checkpoint.
        """
        theirs = self._model_in(workdir)
        if theirs is None and self._init_from is None:
            return config
        theirs = theirs or self._model_of(config)
        fewer, own = theirs.max_position_embeddings, config.model.max_position_embeddings
        kept = {name: getattr(config.model, name) for name in TRAINING_FIELDS}
        is_asked_for = bool({"model", "model.max_position_embeddings"} & set(own_fields))
        is_needed = any(phase.sequence_length > fewer for phase in config.phases)
        if own > fewer and (is_asked_for or is_needed):
            kept["max_position_embeddings"] = own
        model = dataclasses.replace(theirs, **kept)
        new, old = flatten(model), flatten(config.model)
        differing = [
            f"model.{name} is {old[name]!r}, the checkpoint's {new[name]!r}"
            for name in new
            if new[name] != old[name] and {"model", f"model.{name}"} & set(own_fields)
        ]
        if differing:
            raise UsageError(
                f"`init_from` {self._init_from or workdir}: {', '.join(differing)}; the checkpoint "
                "determines the model: leave the option out"
            )
        if self._source is not None:
            more = model.max_position_embeddings
            longer = f" (its {fewer} positions become {more})" if more > fewer else ""
            note(
                f"`init_from` {self._init_from}: its model, {model.num_hidden_layers} layers of "
                f"{model.hidden_size}, {model.vocab_size:,} token embeddings{longer}; config "
                f"{config.name!r} sets data, phases, optimizer and dropout"
            )
        return dataclasses.replace(config, model=model)

    def require_tokenizer_of(self, corpus: Corpus) -> None:
        """Raises UsageError if an id means different tokens in the checkpoint and in the corpus."""
        if self._source is not None:
            load.require_same_tokenizer(self._source, corpus)

    def state(self, config: TrainConfig, corpus: Corpus, mesh: Mesh) -> TrainState:
        """Returns the initial state of a new run, with new parameters or those in the checkpoint.

        Heads that the checkpoint lacks are initialized from the seed. Raises UsageError if the
        tokenizer differs from the corpus's, or a position table cannot be lengthened.
        """
        if self._init_from is None:
            return fresh_state(config, corpus, mesh)
        source, name = self._read(config), f"`init_from` {self._init_from}"
        load.require_same_tokenizer(source, corpus)
        params, fresh = load.with_parts(source, config, allow_missing_heads=True)
        if fresh:
            note(f"{name} has no {', '.join(fresh)}: initialized from seed {config.seed}")
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
            begins = "is the checkpoint's" if has_own else "is initialized with log frequencies"
            note(f"{name}: the output bias {begins}")
        state = TrainState.create(config, params)
        self.facts = facts_of(source)
        self._source = None  # otherwise its parameters would stay in memory during the run
        return state.to_mesh(mesh, shard_weights=config.mesh.shard_weights)

    def _model_of(self, config: TrainConfig) -> ModelConfig:
        """Returns the checkpoint's model. The generator is the config's unless both have one."""
        source = self._read(config).config
        if "generator" in source.head.parts and "generator" in config.head.parts:
            return source.model
        return source.model.with_generator_of(config.model)

    def _model_in(self, workdir: Path | str) -> ModelConfig | None:
        """Returns the model of the run in the workdir, if that run started from this checkpoint."""
        # Another process may train there: this process does not hold the workdir yet.
        place = location.at(workdir)
        stored = run_directory.stored(place)
        begun = stored.get("init_from")
        if begun is None or not is_same_place(begun, str(self._init_from or begun)):
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
    """Returns the state of a new run without a checkpoint, with the output bias of the config."""
    state = TrainState.initial(config, mesh)
    if config.output_bias == TrainConfig.output_bias:
        return state
    params = _with_frequencies(state.params, corpus, config, parts=config.head.parts)
    return dataclasses.replace(state, params=params)


def facts_of(source: LoadedCheckpoint) -> dict[str, str]:
    """Returns a fact that differs between processes that have read different parameters: for a run
    in progress, the newest step may differ per process.

    The value is a hash of the step and of small arrays that every process has: biases and norms.
    """
    digest = hashlib.sha256(str(source.step).encode())
    for array in jax.tree.leaves(source.params):
        if array.is_fully_replicated and array.nbytes <= _SMALL_BYTES:
            digest.update(np.asarray(array.addressable_data(0)).tobytes())
    name = "the checkpoint of `init_from` (for a run in progress, name one step)"
    return {name: digest.hexdigest()}


def _with_frequencies(
    params: bert.Params, corpus: Corpus, config: TrainConfig, *, parts: Sequence[str]
) -> bert.Params:
    """Returns parameters with the log frequency of each token as the output bias of the masked-LM
    heads among `parts`.

    One is added to each count, because the logarithm of 0 is infinite.
    """
    counts = token_counts(corpus.train, config.model.vocab_size) + 1
    shares = np.log(counts / counts.sum()).astype(np.float32)

    biases = {(part, *bias) for part in parts if (bias := PARTS[part].output_bias) is not None}

    def begun(path: Any, leaf: jax.Array) -> jax.Array:
        if tuple(entry.key for entry in path) not in biases:
            return leaf
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda index: shares[index])

    return jax.tree_util.tree_map_with_path(begun, params)
