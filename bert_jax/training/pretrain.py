"""Pre-training on a corpus: the job, and the checks before the run starts."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from bert_jax.config import PhaseConfig, TrainConfig
from bert_jax.config_checks import complete, mask_warnings, validate
from bert_jax.data.corpus.several import CorpusPlace, open_corpora
from bert_jax.data.corpus.store import SPLITS, Corpus, Split
from bert_jax.data.pretraining.batch import signature
from bert_jax.data.pretraining.pipeline import Pipeline, tf_batches
from bert_jax.errors import some
from bert_jax.memory import fit as fitting
from bert_jax.memory.fit import Demand
from bert_jax.objectives.objective import Objective
from bert_jax.pretrained.export import export_warning
from bert_jax.progress import note
from bert_jax.registry import OBJECTIVES
from bert_jax.runtime import distributed
from bert_jax.training import device_feed, preflight
from bert_jax.training.evaluate import HeldOut, batch_shape, compared_with, describe
from bert_jax.training.hooks import named_hooks
from bert_jax.training.initialization import Initialization
from bert_jax.training.job import Scores, TrainingJob
from bert_jax.training.run import RunSetup, train
from bert_jax.training.words_seen import steps_at_words, words_seen
from bert_jax.update.flops import peak_flops, train_flops
from bert_jax.update.state import TrainState
from bert_jax.update.step import lower_eval_step, lower_train_step
from bert_jax.workdir import location, run_directory
from bert_jax.workdir.location import Location
from bert_jax.workdir.lock import only_trainer
from bert_jax.workdir.run_directory import TOKENIZER


def pretrain(
    config: TrainConfig,
    *,
    corpus_directory: CorpusPlace,
    workdir_path: Path | str,
    init_from: Path | str | None = None,
    allow_missing_heads: bool = False,
    ignore_unexpected: Sequence[str] = (),
    own_fields: Sequence[str] = (),
    profile_steps: range | None = None,
    allowed_changes: Sequence[str] = (),
    fit_memory: bool = False,
    started: float | None = None,
) -> dict[str, Any]:
    """Runs `config` on a corpus, or resumes the run in `workdir_path`, which may be in a bucket
    (`gs://BUCKET/PATH`).

    Several corpora with the same tokenizer are given by source names (`data.source_weights`).
    Returns the closing metrics: `step`, the last validation metrics (`validation`), the last
    training row, and the unigram entropy of the corpus for comparison.

    `init_from` is a checkpoint for the parameters of a *new* run, with a fresh schedule. The model
    is the checkpoint's, except for dropout, with the heads that the checkpoint has; other heads are
    initialized. The fields in `own_fields`, which the user set, must agree with the checkpoint. An
    incomplete head is an error, or is initialized with `allow_missing_heads`; extra tensors are an
    error unless `ignore_unexpected` matches them.

    Steps in `profile_steps` are traced to `workdir/profile`. `allowed_changes` are fields that may
    differ from the stored run. `fit_memory` chooses the number of microbatches, once per run
    (memory/fit.py). `started` is the start of the process on the monotonic clock.
    """
    started = time.monotonic() if started is None else started
    initialization = Initialization(
        init_from, allow_missing_heads=allow_missing_heads, ignore_unexpected=ignore_unexpected
    )
    config = initialization.config_of(complete(config), workdir_path, own_fields=own_fields)
    config = validate(config)
    verify = SPLITS if config.data.verify == "full" else ()
    corpus = open_corpora(corpus_directory, verify=verify)
    initialization.require_tokenizer_of(corpus)
    preflight.require_fitting(config, corpus)
    mesh = preflight.mesh_of(config)
    preflight.require_on_mesh(config, mesh)
    for line in (*mask_warnings(config), export_warning(config)):
        if line:
            note(line)
    with only_trainer(workdir_path, mesh=mesh) as guard:
        place = location.opened(workdir_path, guard=guard)
        settled = fitting.settle(
            config,
            demand(mesh),
            mesh=mesh,
            directory=place.path,
            choose=fit_memory,
            allowed=allowed_changes,
        )
        config, allowed = settled.config, settled.allowed
        setup = _setup(place, config, corpus, init_from=init_from, allowed=allowed)
        is_new = distributed.is_main() and not setup.is_held
        if verify and is_new and (seen := preflight.held_out_elsewhere(config, corpus)):
            note(f"warning: {'; '.join(seen)}")
        # Measured on one device: before the mesh of all devices is set.
        peak = peak_flops(config.compute.dtype)
        job = Pretraining(config, corpus, mesh, peak=peak, initialization=initialization)
        job.programs = settled.programs
        hooks = named_hooks(config)
        with jax.set_mesh(mesh):
            closing = train(
                job,
                setup,
                hooks,
                started=started,
                profile_steps=profile_steps or range(0),
            )
    return closing.row | {
        "validation": closing.scores.get("validation", {}),
        "step": closing.step,
        "objective": config.objective,
        "unigram_entropy": compared_with(corpus, closing.scores),
        "seconds": time.monotonic() - started,
        **closing.figures,
    }


class Pretraining(TrainingJob):
    """The `TrainingJob` of pre-training: an objective on the rows of a corpus."""

    title = "pretrain"

    def __init__(
        self,
        config: TrainConfig,
        corpus: Corpus,
        mesh: Mesh,
        *,
        peak: float,
        initialization: Initialization | None = None,
    ):
        """`peak` is the peak FLOP/s of all devices together."""
        self.config, self.corpus, self.mesh = config, corpus, mesh
        self._initialization = initialization or Initialization(None)
        self.manifest, self.tokenizer = corpus.manifest, corpus.directory / TOKENIZER
        self.begins_trained = self._initialization.is_trained
        self.objective: Objective = OBJECTIVES[config.objective]
        self.introduction = f"{corpus.train.tokens / 1e6:.1f} M training tokens"
        if corpus.sources:
            self.introduction += f" of {len(corpus.sources)} sources"
        self._peak = peak
        self._pipeline = pipeline_of(config, corpus)

    def initial_state(self) -> TrainState:
        return self._initialization.state(self.config, self.corpus, self.mesh)

    def abstract_batch(self, phase: int) -> dict[str, jax.ShapeDtypeStruct]:
        return device_feed.abstract_batch(
            self.config.phases[phase], fields=self.objective.fields, mesh=self.mesh
        )

    def batches(self, phase: int, start: int, stop: int) -> Iterator[dict[str, jax.Array]]:
        rows = self.config.phases[phase].global_batch_size
        ranges = device_feed.local_rows(self.mesh, rows)

        def batch_at(step: int) -> device_feed.HostBatch:
            return device_feed.host_batch(self._pipeline.batch_at, step, ranges)

        host_batches = tf_batches(
            batch_at,
            start,
            stop,
            signature=signature(
                self.objective.fields, self.config.phases[phase], rows=sum(map(len, ranges))
            ),
            num_workers=self.config.data.num_workers,
            prefetch=self.config.data.prefetch,
        )
        if shares := self._pipeline.shares(phase):
            largest = sorted(shares.items(), key=lambda item: -item[1])
            note(
                f"phase {phase}: rows from {some(f'{name} {share:.1%}' for name, share in largest)}"
            )
        return (
            device_feed.to_global(batch, mesh=self.mesh, global_rows=rows) for batch in host_batches
        )

    def evaluation(self, phase: int, params: Any) -> HeldOut:
        return HeldOut(
            self.config.at_step(self.config.phase_ends[phase]),
            self.config.phases[phase],
            corpus=self.corpus,
            mesh=self.mesh,
            params=params,
        )

    def speed(self, phase: int, seconds: float) -> dict[str, float]:
        rows = self.config.phases[phase]
        flops = train_flops(self.objective, self.config.model, rows)
        speed = {
            "tokens_per_second": rows.global_batch_size * rows.sequence_length / seconds,
            "mfu": flops / seconds / self._peak,
        }
        if self.config.in_phase(phase).data.packing == "none":
            return speed
        fill = self._pipeline.fill(phase)
        sequences = rows.global_batch_size * fill.sequences
        return speed | {
            "sequences_per_step": sequences,
            "sequences_per_second": sequences / seconds,
            "real_tokens_per_second": rows.global_batch_size * fill.tokens / seconds,
            "padding": 1 - fill.tokens / rows.sequence_length,
        }

    def seen(self, step: int) -> dict[str, float]:
        columns = {
            f"epochs/{name}" if name else "epochs": times
            for name, times in self._pipeline.epochs(step).items()
        }
        columns["words"] = words_seen(self._pipeline, self.corpus, step)
        starts = (0, *self.config.phase_ends)
        flops = sum(
            max(0, min(step, start + phase.steps) - start)
            * train_flops(self.objective, self.config.model, phase)
            for start, phase in zip(starts, self.config.phases, strict=False)
        )
        return columns | {"flops": float(flops)}

    def kept_steps(self) -> frozenset[int]:
        return frozenset(steps_at_words(self.config, self._pipeline, self.corpus).values())

    def describe(self, scores: Scores) -> str:
        whole = f"held-out {describe(self.objective, scores['validation'])}"
        first = self.objective.figures[0]
        losses = {of.partition("/")[2]: values[first.name] for of, values in scores.items()}
        del losses[""]
        worst = sorted(losses.items(), key=lambda item: -item[1])
        each = some((f"{name} {loss:.3f}" for name, loss in worst), most=4)
        return f"{whole}; {first.title} by source: {each}" if each else whole

    def facts(self) -> dict[str, str]:
        return {"corpus": self.corpus.fingerprint, **self._initialization.facts}


def pipeline_of(config: TrainConfig, corpus: Corpus, split: Split | None = None) -> Pipeline:
    """Returns the training batches of a run, or the batches of `split`."""
    return Pipeline(
        corpus.train if split is None else split,
        collator=OBJECTIVES[config.objective],
        vocabulary=corpus.vocabulary,
        options=[config.in_phase(i).data for i in range(len(config.phases))],
        phases=config.phases,
        seed=config.seed,
        sources={} if split is not None else {n: c.train for n, c in corpus.sources.items()},
    )


def demand(mesh: Mesh) -> Demand:
    """Returns the programs of a run, for the search for settings that fit into memory."""

    def batch(config: TrainConfig, phase: PhaseConfig) -> dict[str, jax.ShapeDtypeStruct]:
        fields = OBJECTIVES[config.objective].fields
        return device_feed.abstract_batch(phase, fields=fields, mesh=mesh)

    def training(config: TrainConfig, phase: int) -> Any:
        state, objective = TrainState.abstract(config, mesh), OBJECTIVES[config.objective]
        rows = batch(config, config.phases[phase])
        return lower_train_step(config, state, rows, objective=objective, phase=phase)

    def evaluation(config: TrainConfig, phase: int) -> Any:
        config = config.at_step(config.phase_ends[phase])
        state, objective = TrainState.abstract(config, mesh), OBJECTIVES[config.objective]
        rows = batch(config, batch_shape(config, config.phases[phase], devices=mesh.size))
        return lower_eval_step(config, state.params, rows, objective=objective)

    return Demand(training=training, evaluation=evaluation)


def _setup(
    place: Location,
    config: TrainConfig,
    corpus: Corpus,
    *,
    init_from: Path | str | None,
    allowed: Sequence[str],
) -> RunSetup:
    directory = place.path
    is_held, changes = run_directory.holds_run(
        directory, config, corpus, init_from=init_from, allowed=allowed
    )
    return RunSetup(
        location=place,
        is_held=is_held,
        changes=changes,
        create=lambda: run_directory.create(directory, config, corpus, init_from=init_from),
        change=lambda: run_directory.change(directory, config, corpus),
    )
