"""Held-out evaluation: fixed examples, fixed masks, the same numbers on any number of devices."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.config import PhaseConfig, TrainConfig
from bert_jax.data.corpus.store import Corpus
from bert_jax.data.pretraining.pipeline import EvaluationSet
from bert_jax.objectives.objective import Objective
from bert_jax.progress import Progress
from bert_jax.registry import OBJECTIVES
from bert_jax.training import device_feed
from bert_jax.training.work import Scores
from bert_jax.update.step import compile_lowered, lower_eval_step

# Of the evaluation set only, and independent of the run's seed: runs that differ in their seed are
# compared on the same examples with the same masks.
EVALUATION_SEED = 20181011


def batch_shape(config: TrainConfig, phase: PhaseConfig, *, devices: int) -> PhaseConfig:
    """Returns the shape of one batch of a phase's held-out evaluation.

    A fixed set does not care how it is cut: the batch grows to what the devices divide. A phase's
    own mask rate is not that of its evaluation: the curve would jump where it changes. No rows are
    packed, so that figures of packed and other runs are of the same set.
    """
    rows = math.ceil(config.evaluation.batch_size / devices) * devices
    rate = config.data.masked_lm_prob
    if phase.masked_lm_prob != -1:
        phase = dataclasses.replace(phase, max_predictions=-1, masked_lm_prob=-1.0)
        phase = phase.resolved(rate)
    return dataclasses.replace(phase.alone(rate), global_batch_size=rows, steps=1)


class HeldOut:
    """The held-out set of a phase and the compiled step that goes through it."""

    compiles_on_the_way = False

    def __init__(
        self, config: TrainConfig, phase: PhaseConfig, *, corpus: Corpus, mesh: Mesh, params: Any
    ):
        evaluation = config.evaluation
        shape = batch_shape(config, phase, devices=mesh.size)
        self._rows = shape.global_batch_size
        self._mesh = mesh
        self._objective: Objective = OBJECTIVES[config.objective]
        self.columns = {"sequence_length": phase.sequence_length}
        self._examples = EvaluationSet(
            corpus.validation,
            collator=self._objective,
            vocabulary=corpus.vocabulary,
            options=config.data,
            sequence_length=phase.sequence_length,
            max_predictions=shape.max_predictions,
            num_examples=evaluation.num_examples,
            batch_size=self._rows,
            seed=EVALUATION_SEED,
        )
        batch = device_feed.abstract_batch(shape, fields=self._objective.fields, mesh=mesh)
        self._lowered = lower_eval_step(config, params, batch, objective=self._objective)
        self._step: Any = None

    def prepare(self) -> None:
        """Compiles ahead of the first `run`, which does it otherwise. In any thread."""
        self._step = compile_lowered(self._lowered)

    def run(self, params: Any, *, cut_short: Callable[[], bool] | None = None) -> Scores | None:
        """Returns the means over all held-out examples, as the scores of "validation".

        They are weighted by token: means of sums, not of batches. `cut_short` is asked before every
        batch; None comes back if it says so.
        """
        if self._step is None:
            self.prepare()
        assert self._step is not None
        ranges = device_feed.local_rows(self._mesh, self._rows)
        totals: dict[str, np.ndarray] = {}
        batches = self._examples.num_batches
        with Progress("evaluate", total=batches, hidden=cut_short is not None) as bar:
            for index in range(batches):
                if cut_short is not None and cut_short():
                    return None
                host = device_feed.host_batch(self._examples.batch_at, index, ranges)
                batch = device_feed.to_global(
                    host, mesh=self._mesh, ranges=ranges, global_rows=self._rows
                )
                for name, value in jax.device_get(self._step(params, batch)).items():
                    totals[name] = totals.get(name, 0.0) + np.asarray(value, np.float64)
                bar.advance()
        return {"validation": self._objective.summarise(totals)}


def describe(objective: Objective, values: Mapping[str, float]) -> str:
    """Returns the figures of an objective in one line."""
    return ", ".join(
        f"{figure.title} {figure.shown(values[figure.name])}" for figure in objective.figures
    )


def evaluate_checkpoint(
    checkpoint: Path | str, corpus_directory: Path, *, ignore_unexpected: Sequence[str] = ()
) -> dict[str, Any]:
    """Returns the held-out metrics of any checkpoint on any corpus made with the same tokenizer."""
    from bert_jax.data.corpus.store import open_corpus
    from bert_jax.model import sharding
    from bert_jax.workdir.load import load_checkpoint, require_parts, require_same_tokenizer

    corpus = open_corpus(corpus_directory, verify=("validation",))
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    with jax.set_mesh(mesh):
        source = load_checkpoint(checkpoint, mesh=mesh, ignore_unexpected=ignore_unexpected)
        require_parts(source, *OBJECTIVES[source.config.objective].parts)
        require_same_tokenizer(source, corpus)
        phase = source.config.phases[-1]
        held_out = HeldOut(source.config, phase, corpus=corpus, mesh=mesh, params=source.params)
        scores = held_out.run(source.params)
    assert scores is not None
    return {
        "checkpoint": str(checkpoint),
        "step": source.step,
        "corpus_fingerprint": corpus.fingerprint,
        "sequence_length": phase.sequence_length,
        **scores["validation"],
    }
