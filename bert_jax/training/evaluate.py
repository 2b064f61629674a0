"""Held-out evaluation: fixed examples, fixed masks, the same numbers on any number of devices."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax.config import PhaseConfig, TrainConfig
from bert_jax.data.pipeline import EvaluationSet
from bert_jax.data.store import Corpus
from bert_jax.model import losses
from bert_jax.progress import Progress
from bert_jax.training import feed
from bert_jax.training.step import compile_lowered, lower_eval_step

# Of the evaluation set only, and independent of the run's seed: runs that differ in their seed are
# compared on the same examples with the same masks.
EVALUATION_SEED = 20181011


def batch_shape(config: TrainConfig, phase: PhaseConfig, *, devices: int) -> PhaseConfig:
    """What one batch of a phase's held-out evaluation looks like.

    A fixed set does not care how it is cut: the batch grows to what the devices divide.
    """
    rows = math.ceil(config.evaluation.batch_size / devices) * devices
    return dataclasses.replace(phase, global_batch_size=rows, steps=1)


class Evaluator:
    """The held-out set of a phase and the compiled step that goes through it."""

    def __init__(
        self, config: TrainConfig, phase: PhaseConfig, *, corpus: Corpus, mesh: Mesh, params: Any
    ):
        evaluation = config.evaluation
        shape = batch_shape(config, phase, devices=mesh.size)
        self._rows = shape.global_batch_size
        self._mesh = mesh
        self._examples = EvaluationSet(
            corpus.validation,
            special=corpus.special,
            vocab_size=corpus.vocab_size,
            options=config.data,
            sequence_length=phase.sequence_length,
            max_predictions=phase.max_predictions,
            num_examples=evaluation.num_examples,
            batch_size=self._rows,
            seed=EVALUATION_SEED,
        )
        batch = feed.abstract_batch(shape, mesh=mesh)
        self._lowered = lower_eval_step(config, params, batch)
        self._step: Any = None

    def compile(self) -> None:
        """Ahead of the first `run`, which does it otherwise. In any thread."""
        self._step = compile_lowered(self._lowered)

    def run(
        self, params: Any, *, cut_short: Callable[[], bool] | None = None
    ) -> dict[str, float] | None:
        """Means over all held-out examples, weighted by token: a mean of sums, not of batches.

        `cut_short` is asked before every batch; None comes back if it says so.
        """
        if self._step is None:
            self.compile()
        assert self._step is not None
        ranges = feed.local_rows(self._mesh, self._rows)
        totals: dict[str, float] = {}
        batches = self._examples.num_batches
        with Progress("evaluate", total=batches, hidden=cut_short is not None) as bar:
            for index in range(batches):
                if cut_short is not None and cut_short():
                    return None
                host = feed.host_batch(self._examples.batch_at, index, ranges)
                batch = feed.to_global(host, mesh=self._mesh, ranges=ranges, global_rows=self._rows)
                for name, value in jax.device_get(self._step(params, batch)).items():
                    totals[name] = totals.get(name, 0.0) + float(value)
                bar.advance()
        return summarise(totals)


def summarise(sums: dict[str, float]) -> dict[str, float]:
    """`loss`, `mlm_loss`, `mlm_accuracy`, `nsp_loss`, `nsp_accuracy` and `perplexity` from sums."""
    means = losses.means({name: jnp.float32(value) for name, value in sums.items()})
    result = {name: float(value) for name, value in means.items()}
    # exp overflows float64 at 709; a loss up there is no language model's.
    return result | {"perplexity": math.exp(min(result["mlm_loss"], 700.0))}


def evaluate_checkpoint(checkpoint: Path | str, corpus_directory: Path) -> dict[str, Any]:
    """Held-out metrics of any checkpoint on any corpus made with the same tokenizer."""
    from bert_jax.data.store import open_corpus
    from bert_jax.model import sharding
    from bert_jax.training import workdir

    corpus = open_corpus(corpus_directory, verify=("validation",))
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    with jax.set_mesh(mesh):
        source = workdir.load_checkpoint(checkpoint, mesh=mesh)
        workdir.require_parts(source, "mlm", "nsp")
        workdir.require_same_tokenizer(source, corpus)
        phase = source.config.phases[-1]
        evaluator = Evaluator(source.config, phase, corpus=corpus, mesh=mesh, params=source.params)
        metrics = evaluator.run(source.params)
    assert metrics is not None
    return {
        "checkpoint": str(checkpoint),
        "step": source.step,
        "corpus_fingerprint": corpus.fingerprint,
        "sequence_length": phase.sequence_length,
        **metrics,
    }
