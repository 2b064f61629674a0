"""A training to step through by hand: for a notebook, a lesson, a look at one update.

A run that is to survive its process is `pretrain`'s, which does the same updates.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.api.corpora import corpus_of, whole_batch
from bert_jax.api.model import Model
from bert_jax.config import HeadConfig, MeshConfig, PhaseConfig, TrainConfig
from bert_jax.config_checks import complete, validate
from bert_jax.data.corpus.several import CorpusPlace, open_corpora
from bert_jax.data.corpus.store import Corpus
from bert_jax.data.language.codes import DEFAULT
from bert_jax.data.pretraining.batch import Batch
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.errors import UsageError
from bert_jax.model.bert import Params
from bert_jax.pretrained.load import LoadedCheckpoint
from bert_jax.registry import OBJECTIVES
from bert_jax.training import device_feed, preflight
from bert_jax.training.evaluate import HeldOut, by_source
from bert_jax.training.initialization import fresh_state, trained_state
from bert_jax.training.pretrain import pipeline_of
from bert_jax.update.state import TrainState
from bert_jax.update.step import compile_lowered, lower_train_step


def config_for(
    model: Model,
    *,
    steps: int = 100,
    batch_size: int = 16,
    sequence_length: int = 128,
    learning_rate: float = 5e-5,
) -> TrainConfig:
    """Returns the config of a short run that goes on from a model, with the model's other settings.

    One phase; the learning rate falls from the first step on, without a warm-up. Rows are rounded
    up to what the devices divide, and no longer than the model has positions for.
    """
    config = model.config
    length = min(sequence_length, config.model.max_position_embeddings)
    devices = jax.device_count()
    # Of its last phase, which may have a rate of masks of its own.
    own = config.phases[-1].masked_lm_prob if config.phases else -1
    phase = PhaseConfig(
        sequence_length=length,
        steps=steps,
        global_batch_size=-(-batch_size // devices) * devices,
        masked_lm_prob=own,
    )
    rate = phase.mask_rate(config.data.masked_lm_prob)
    phase = dataclasses.replace(phase, max_predictions=max(1, round(rate * length)))
    schedule = config.optimizer.schedule
    shorter = {name: min(getattr(schedule, name), steps) for name in schedule.in_steps}
    optimizer = dataclasses.replace(
        config.optimizer,
        learning_rate=learning_rate,
        warmup_steps=0,
        schedule=dataclasses.replace(schedule, **shorter),
        gradient_accumulation_steps=1,
    )
    return dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, packing="none"),
        head=HeadConfig(parts=OBJECTIVES[config.objective].parts),
        optimizer=optimizer,
        phases=(phase,),
        mesh=MeshConfig(),
    )


class Training:
    """A run in memory, an update at a time. `state` is a pytree, the present `TrainState`.

    The update takes over the memory of the state before it: of what you keep of `state`, make a
    copy, or ask for a `model()`.
    """

    def __init__(
        self,
        start: Model | TrainConfig,
        *,
        texts: Sequence[str] | None = None,
        corpus: Corpus | CorpusPlace | None = None,
        config: TrainConfig | None = None,
        tokenizer: str | Path | None = None,
        allow_missing_heads: bool = False,
        language: str = DEFAULT,
    ):
        """`start` is a model, whose parameters are copied, or a config to start from.

        The data are `texts`, documents whose paragraphs are separated by newlines, or a `corpus`, a
        directory of `bert-jax prepare`, or several by the names of the sources. A model is trained
        as `config` says, by default `config_for(model)`; heads that it lacks are an error, or begin
        fresh with `allow_missing_heads`. `tokenizer`, a directory or file, is needed for texts
        without a model; `language` is the code of the one that texts are in. Raises UsageError
        where these do not fit each other.
        """
        if (texts is None) == (corpus is None):
            raise UsageError("a training needs either texts or a corpus")
        model = start if isinstance(start, Model) else None
        if model is not None:
            if config is None:
                config = config_for(model)
                if not isinstance(corpus, Mapping):  # whose sources they weigh
                    unweighed = dataclasses.replace(config.data, source_weights="")
                    config = dataclasses.replace(config, data=unweighed)
            tokenizer = model.source.tokenizer
        elif not isinstance(start, TrainConfig) or config is not None:
            raise UsageError("a training begins from a config, or from a model that load() gave")
        else:
            config = start
        self.config = validate(complete(config))
        self.objective = OBJECTIVES[self.config.objective]
        self.mesh = preflight.mesh_of(self.config)
        preflight.require_on_mesh(self.config, self.mesh)
        self.corpus = _corpus(texts, corpus, tokenizer, language)
        self._tokenizer = Path(tokenizer or self.corpus.directory / "tokenizer")
        preflight.require_fitting(self.config, self.corpus)
        self._pipeline = pipeline_of(self.config, self.corpus)
        self._steps_done = 0
        # Phase -> the step that is compiled for its batches.
        self._compiled: dict[int, Any] = {}
        self._held_out: dict[int, HeldOut] = {}
        self.state: TrainState
        with jax.set_mesh(self.mesh):
            if model is None:
                self.state = fresh_state(self.config, self.corpus, self.mesh)
            else:
                source = model.source
                if source.config.model != self.config.model:
                    raise UsageError("the config has another model section than the model itself")
                # The first step takes their memory over, and the model stays what it is.
                own = dataclasses.replace(source, params=jax.tree.map(jnp.copy, source.params))
                self.state = trained_state(
                    own,
                    self.config,
                    self.corpus,
                    self.mesh,
                    name=f"model {source.directory}",
                    allow_missing_heads=allow_missing_heads,
                )

    @property
    def steps_done(self) -> int:
        """Updates so far."""
        return self._steps_done

    @property
    def _phase(self) -> int:
        """The phase of the next update; after the last one, its phase."""
        return self.config.phase_of(min(self._steps_done, self.config.total_steps - 1))

    def batch(self) -> Batch:
        """Returns the global batch that the next step learns from, as NumPy arrays by name."""
        self._require_a_step()
        return whole_batch(self._pipeline, self.config, self._steps_done)

    def step(self) -> dict[str, float]:
        """Makes one update; returns its metrics, which are those before the update.

        `loss`, each part of it with its accuracy, `learning_rate`, `grad_norm`, and `applied`,
        which is 0 if the update was left out. The first step of a phase compiles. Raises UsageError
        after the last step.
        """
        self._require_a_step()
        number = self.config.phase_of(self._steps_done)
        rows = self.config.phases[number].global_batch_size
        ranges = device_feed.local_rows(self.mesh, rows)
        host = device_feed.host_batch(self._pipeline.batch_at, self._steps_done, ranges)
        with jax.set_mesh(self.mesh):
            batch = device_feed.to_global(host, mesh=self.mesh, ranges=ranges, global_rows=rows)
            if number not in self._compiled:
                self._compiled[number] = compile_lowered(
                    lower_train_step(
                        self.config, self.state, batch, objective=self.objective, phase=number
                    )
                )
            self.state, metrics = self._compiled[number](self.state, batch)
        self._steps_done += 1
        return {name: float(value) for name, value in jax.device_get(metrics).items()}

    def loss(self, params: Params, batch: Batch) -> jax.Array:
        """Returns the loss of parameters on a batch, a scalar, without dropout, in the phase of the
        next update.

        A pure function, of which `jax.grad(training.loss)(params, batch)` is the gradient. Outside
        of any mesh it takes arrays that know of none, as `jax.device_get(training.state.params)`
        and `training.batch()` are.
        """
        arrays = {name: jnp.asarray(array) for name, array in batch.items()}
        counts = self.objective.counts(arrays)
        config = self.config.in_phase(self._phase)
        sums = self.objective.forward(params, arrays, config=config, key=None)
        return self.objective.loss(sums, counts)

    def evaluate(self) -> dict[str, Any]:
        """Returns the held-out figures of the present parameters, as `pretrain` logs them; of
        several corpora those of each, too, as `sources`.

        The rows are those of the corpus's validation side. Raises UsageError for texts in memory,
        which have none.
        """
        if len(self.corpus.validation.document_starts) < 2:
            raise UsageError("texts have no held-out side; give the training a `corpus`")
        number = self._phase
        with jax.set_mesh(self.mesh):
            if number not in self._held_out:
                self._held_out[number] = HeldOut(
                    self.config.at_step(self.config.phase_ends[number]),
                    self.config.phases[number],
                    corpus=self.corpus,
                    mesh=self.mesh,
                    params=self.state.params,
                )
            scores = self._held_out[number].run(self.state.params)
        assert scores is not None
        sources = {"sources": by_source(self.corpus, scores)} if self.corpus.sources else {}
        return scores["validation"] | sources

    def model(self) -> Model:
        """Returns a model of the present parameters, which later steps leave as they are."""
        with jax.set_mesh(self.mesh):
            params = jax.tree.map(jnp.copy, self.state.params)
        return Model(
            LoadedCheckpoint(
                directory=self.corpus.directory,
                step=self._steps_done,
                config=self.config.at_step(self._steps_done),
                params=params,
                tokenizer=self._tokenizer,
            )
        )

    def _require_a_step(self) -> None:
        if self._steps_done == self.config.total_steps:
            raise UsageError(f"the run has ended: its config has {self._steps_done} steps")


def _corpus(
    texts: Sequence[str] | None,
    corpus: Corpus | CorpusPlace | None,
    tokenizer: str | Path | None,
    language: str,
) -> Corpus:
    if texts is None:
        assert corpus is not None
        return corpus if isinstance(corpus, Corpus) else open_corpora(corpus)
    if tokenizer is None:
        raise UsageError("texts without a model need a tokenizer, to be encoded with")
    return corpus_of(texts, load_tokenizer(tokenizer), language=language)
