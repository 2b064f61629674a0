"""Evaluation on the validation split: fixed examples and masks, equal results on any number of
devices.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.config import PhaseConfig, TrainConfig
from bert_jax.data.corpus.several import CorpusPlace, compared_entropy, open_corpora
from bert_jax.data.corpus.store import MANIFEST, Corpus
from bert_jax.data.pretraining.pipeline import EvaluationSet
from bert_jax.errors import BertJaxError, NonFinite, UsageError, some
from bert_jax.model import sharding
from bert_jax.objectives.objective import Objective
from bert_jax.pretrained import load
from bert_jax.pretrained.load import load_checkpoint, require_parts, require_same_tokenizer
from bert_jax.progress import Progress, note
from bert_jax.registry import OBJECTIVES
from bert_jax.training import device_feed, preflight
from bert_jax.training.divergence import SPOILT
from bert_jax.training.job import Scores
from bert_jax.update.step import compile_lowered, lower_eval_step
from bert_jax.workdir import run_directory

# Seed of the evaluation set. It is independent of the run's seed, so that runs with different seeds
# are compared on the same examples and masks.
EVALUATION_SEED = 20181011
# Minimum rows per source, if it has as many: with 5,000 predictions the loss has a standard error
# of 0.03 nats.
_LEAST_OF_A_SOURCE = 256

_Sums = dict[str, Any]


def batch_shape(config: TrainConfig, phase: PhaseConfig, *, devices: int) -> PhaseConfig:
    """Returns the shape of one evaluation batch of a phase.

    The batch is a multiple of the devices, which does not change the result. A phase's
    mask rate does not apply, because the curve would jump where it changes. Rows are never packed,
    so that packed and other runs are evaluated on the same set.
    """
    rows = math.ceil(config.evaluation.batch_size / devices) * devices
    rate = config.data.masked_lm_prob
    if phase.masked_lm_prob != -1:
        phase = dataclasses.replace(phase, max_predictions=-1, masked_lm_prob=-1.0)
        phase = phase.resolved(rate)
    return dataclasses.replace(phase.unpacked(rate), global_batch_size=rows, steps=1)


class HeldOut:
    """The evaluation set of a phase and its compiled step."""

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
        splits = {name: source.validation for name, source in corpus.sources.items()}
        splits = splits or {"": corpus.validation}
        rows = evaluation.num_examples
        if len(splits) > 1:
            rows = max(-(-rows // len(splits)), _LEAST_OF_A_SOURCE)
        self._examples = {
            name: EvaluationSet(
                split,
                collator=self._objective,
                vocabulary=corpus.vocabulary,
                options=config.data,
                sequence_length=phase.sequence_length,
                max_predictions=shape.max_predictions,
                num_examples=rows,
                batch_size=self._rows,
                seed=EVALUATION_SEED,
            )
            for name, split in splits.items()
        }
        batch = device_feed.abstract_batch(shape, fields=self._objective.fields, mesh=mesh)
        self._lowered = lower_eval_step(config, params, batch, objective=self._objective)
        self._step: Any = None

    @property
    def num_examples(self) -> int:
        """The number of validation rows that the means cover."""
        return sum(examples.num_examples for examples in self._examples.values())

    def prepare(self) -> None:
        """Compiles ahead of the first `run`. May run in any thread."""
        self._step = compile_lowered(self._lowered)

    def run(self, params: Any, *, cut_short: Callable[[], bool] | None = None) -> Scores | None:
        """Returns the means over all validation examples as the scores of "validation", and with
        several sources the scores of each as "validation/NAME".

        Means are weighted by token, so that the losses of the sources, each times its `LOSS_count`,
        sum to the total. Returns None once `cut_short`, called before every batch, is true.
        """
        if self._step is None:
            self.prepare()
        assert self._step is not None
        ranges = device_feed.local_rows(self._mesh, self._rows)
        sums: dict[str, _Sums] = {source: {} for source in self._examples}
        batches = [(s, i) for s, e in self._examples.items() for i in range(e.num_batches)]
        with Progress("evaluate", total=len(batches), hidden=cut_short is not None) as bar:
            for source, index in batches:
                if cut_short is not None and cut_short():
                    return None
                host = device_feed.host_batch(self._examples[source].batch_at, index, ranges)
                batch = device_feed.to_global(host, mesh=self._mesh, global_rows=self._rows)
                _add(sums[source], jax.device_get(self._step(params, batch)))
                bar.advance()
        if len(sums) == 1:
            return {"validation": self._objective.summarise(*sums.values())}
        whole: _Sums = {}
        for each in sums.values():
            _add(whole, each)
        found = {"validation": whole, **{f"validation/{s}": each for s, each in sums.items()}}
        return {split: self._summary(each) for split, each in found.items()}

    def _summary(self, sums: _Sums) -> dict[str, Any]:
        counts = {f"{loss}_count" for loss in self._objective.losses} & sums.keys()
        return self._objective.summarise(sums) | {n: int(sums[n]) for n in sorted(counts)}


def _add(sums: _Sums, more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        sums[name] = sums.get(name, 0.0) + np.asarray(value, np.float64)


def compared_with(corpus: Corpus, scores: Scores) -> float:
    """Returns the unigram entropy to compare with validation scores of a corpus."""
    sources = {name: source.manifest for name, source in corpus.sources.items()}
    return compared_entropy(corpus.manifest, sources, scores)


def describe(objective: Objective, values: Mapping[str, float]) -> str:
    """Returns the metrics of an objective as one line."""
    return ", ".join(
        f"{figure.title} {figure.shown(values[figure.name])}" for figure in objective.figures
    )


def evaluate_checkpoint(
    checkpoint: Path | str,
    corpus_directory: CorpusPlace | None = None,
    *,
    like: Path | str | None = None,
    length: int | None = None,
    ignore_unexpected: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns the validation metrics of any checkpoint on any corpus made with the same tokenizer.

    Rows, masks and mask rate are those in the last phase of the run that made the checkpoint; a
    third-party model gets sentence pairs of 128 tokens, or fewer if it has fewer positions. With
    `like`, a run, the rows of that run are used: scores are only comparable on the same rows.
    `length` overrides the sequence length. By default the corpus, or corpora, of the workdir are
    used. With several, `sources` has the metrics of each.

    Raises UsageError if the corpus is unknown or has another tokenizer, or if the model lacks a
    head or positions. Raises NonFinite if a loss is not finite.
    """
    # Checked before the checkpoint is read, which takes longer.
    corpus = None if corpus_directory is None else _open(corpus_directory)
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    with jax.set_mesh(mesh):
        source = load_checkpoint(checkpoint, mesh=mesh, ignore_unexpected=ignore_unexpected)
        config = source.config
        if like is not None:
            run = load.run_config(like)
            if run is None:
                raise UsageError(f"`like` {like} is not a workdir; name the workdir of a run")
            config = dataclasses.replace(config, **{n: getattr(run, n) for n in load.SCORED_BY})
        if not config.phases:
            raise UsageError(f"{checkpoint}: phases is empty in its config; add at least one")
        phase = config.phases[-1]
        if length is not None:
            phase = dataclasses.replace(phase, sequence_length=length, max_predictions=-1)
            phase = phase.resolved(config.data.masked_lm_prob)
        if phase.sequence_length > config.model.max_position_embeddings:
            raise UsageError(
                f"`checkpoint` {checkpoint} has {config.model.max_position_embeddings} positions, "
                f"but the rows have {phase.sequence_length} tokens; give a smaller `length`"
            )
        require_parts(source, *OBJECTIVES[config.objective].parts)
        if corpus is None:
            place = trained_on(source.directory, checkpoint)
            if place is None:
                raise UsageError(
                    f"`checkpoint` {checkpoint} records no corpus; name one with `corpus`"
                )
            corpus = _open(place)
        require_same_tokenizer(source, corpus)
        _note_seen(source, corpus, is_named=corpus_directory is not None)
        held_out = HeldOut(config, phase, corpus=corpus, mesh=mesh, params=source.params)
        scores = held_out.run(source.params)
    assert scores is not None
    if not math.isfinite(scores["validation"]["loss"]):
        raise NonFinite(f"the validation loss of {checkpoint} is not finite: {SPOILT}")
    return {
        "checkpoint": str(checkpoint),
        "step": source.step,
        "corpus_fingerprint": corpus.fingerprint,
        "unigram_entropy_nats": compared_with(corpus, scores),
        "objective": config.objective,
        "sequence_length": phase.sequence_length,
        "rows": config.data.sequence_format,
        "mask": config.data.masking,
        "masked_lm_prob": config.data.masked_lm_prob,
        "examples": held_out.num_examples,
        # The run that determines the rows; None if it is unknown.
        "rows_of": str(like or checkpoint) if like or source.is_run else None,
        **scores["validation"],
        **({"sources": by_source(corpus, scores)} if corpus.sources else {}),
    }


def trained_on(directory: Path, checkpoint: Path | str) -> CorpusPlace | None:
    """Returns the corpus, or corpora, of the run in a directory; None if it names none.

    Raises UsageError, which names the `checkpoint`, if a corpus is missing.
    """
    place = run_directory.corpus_of(directory)
    for each in place.values() if isinstance(place, dict) else (place,):
        if each is not None and not (each / MANIFEST).is_file():
            raise UsageError(
                f"`checkpoint` {checkpoint} was trained on the corpus {each}, which is missing; "
                "if it was moved, name its new path with `corpus`"
            )
    return place


def _note_seen(source: load.LoadedCheckpoint, corpus: Corpus, *, is_named: bool) -> None:
    """Warns if a run was, or may have been, trained on the text that it is evaluated on."""
    if not source.is_run:
        return
    was = (run_directory.stored(source.directory).get("corpus") or {}).get("fingerprint")
    if was in (None, corpus.fingerprint):
        return
    name, place = source.directory, run_directory.corpus_of(source.directory)
    if not is_named:
        each = some(str(each.directory) for each in corpus.sources.values() or (corpus,))
        note(
            f"warning: corpus {each} has changed since {name} was trained (fingerprint "
            f"{corpus.fingerprint[:12]}, was {was[:12]}): its validation split may contain "
            "training data; evaluate on the original corpus"
        )
        return
    with contextlib.suppress(BertJaxError):  # the corpus may be on another machine
        trained = None if place is None else open_corpora(place)
        if trained is not None and trained.fingerprint == was:
            seen, _ = preflight.seen_in_training(corpus, source.config, trained)
            if seen:
                note(
                    f"warning: {seen}, on which {name} was trained: its scores are too good; "
                    "prepare the text with the `seed` and the `validation_fraction` of that corpus"
                )


def _open(place: CorpusPlace) -> Corpus:
    return open_corpora(place, verify=("validation",))


def by_source(corpus: Corpus, scores: Scores) -> dict[str, dict[str, Any]]:
    """Returns the validation scores and the unigram entropy of each source."""
    return {
        name: {
            "unigram_entropy_nats": source.manifest["unigram_entropy_nats"],
            **scores[f"validation/{name}"],
        }
        for name, source in corpus.sources.items()
    }
