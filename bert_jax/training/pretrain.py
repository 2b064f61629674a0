"""The pre-training loop, read from top to bottom.

A run is a function of (config, corpus): step N's batch, masks and dropout follow from the seed and
N, so a run that was interrupted goes on from its newest checkpoint with one integer and ends with
the same bits as one that was not.
"""

import json
import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax

from bert_jax import config as configs
from bert_jax.config import PhaseConfig, TrainConfig
from bert_jax.data.pipeline import Pipeline, tf_batches
from bert_jax.data.store import SPLITS, Corpus, open_corpus
from bert_jax.errors import NonFinite, Preempted, UsageError
from bert_jax.model import heads, sharding
from bert_jax.progress import Progress, note
from bert_jax.training import bucket, checkpoint, distributed, feed, metrics, require, workdir
from bert_jax.training.evaluate import Evaluator
from bert_jax.training.state import TrainState
from bert_jax.training.step import compile_lowered, lower_train_step

# Global batches on their way to the devices ahead of the step.
_DEVICE_PREFETCH = 2


def pretrain(
    config: TrainConfig,
    *,
    corpus_directory: Path,
    workdir_path: Path | str,
    init_from: Path | str | None = None,
    allow_missing_heads: bool = False,
    profile_steps: range | None = None,
) -> dict[str, Any]:
    """Runs `config` on a corpus, or resumes the run that `workdir_path` holds.

    Returns the run's closing figures: `step`, the last held-out metrics (`validation`), the last
    row of training, and the corpus's unigram entropy to compare them with. `workdir_path` may be
    in a bucket (`gs://BUCKET/PATH`). `init_from` is a checkpoint whose parameters a *new* run
    starts from, with a fresh schedule; a resumed run has its own. Heads that it lacks are an error,
    or begin fresh with `allow_missing_heads`. Steps in `profile_steps` are traced to
    `workdir/profile`.
    """
    started = time.monotonic()
    verify = SPLITS if config.data.verify == "full" else ()
    corpus = open_corpus(corpus_directory, verify=verify)
    require.fitting(config, corpus)
    is_main = distributed.is_main()
    mesh = sharding.make_mesh(**require.mesh_shape(config))
    for phase in config.phases:
        require.divisible(phase, mesh, config)
    home = bucket.directory_of(workdir_path, owner=f"process-{jax.process_index()}")
    is_held = workdir.holds_run(home, config, corpus, init_from=init_from)
    # Measured on one device, hence before all of them are the context.
    peak_flops = metrics.peak_flops(config.compute.dtype)

    with jax.set_mesh(mesh), distributed.Preemption() as preemption:
        # 0. Every process has looked before one of them writes.
        distributed.barrier(mesh)

        # 1. The state: the newest checkpoint, or a beginning. Nothing is written before the
        # beginning is known to be possible.
        resumed_from = checkpoint.latest_step(home) if is_held else None
        beginning = None
        if resumed_from is None:
            beginning = _initial_state(config, corpus, init_from, allow_missing_heads, mesh)
        if not is_held and is_main:
            workdir.create(home, config, corpus, init_from=init_from)
            bucket.copy_back(home)
        distributed.barrier(mesh)
        checkpoints = checkpoint.Checkpoints(home, config.checkpoint)
        state = beginning or checkpoints.load(resumed_from or 0, config=config, mesh=mesh)
        del beginning
        step = resumed_from or 0

        # 2. The logs, rewound to where the state stands.
        rows = metrics.set_aside_after(home, step) if is_main else []
        journal = metrics.Journal(home, is_writer=is_main)
        journal.event("start", step=step, devices=jax.device_count(), versions=workdir.versions())
        if resumed_from is not None:
            journal.event("resume", step=step, seconds=time.monotonic() - started)
        parameters = heads.parameter_count(state.params)
        note(
            f"{config.name}: {parameters / 1e6:.1f} M parameters, "
            f"{corpus.train.shard_starts[-1] / 1e6:.1f} M training tokens, "
            f"{jax.device_count()} x {jax.devices()[0].device_kind}, "
            + (f"resuming at step {step}" if resumed_from is not None else "a new run")
            + f" of {config.total_steps}"
        )

        # 3. The phases. Schedule, state and data cursor go through them unbroken.
        run = _Run(
            config=config,
            corpus=corpus,
            mesh=mesh,
            checkpoints=checkpoints,
            journal=journal,
            preemption=preemption,
            profile_steps=profile_steps or range(0),
            directory=home,
            peak_flops=peak_flops,
        )
        closing: dict[str, Any] = {}
        first_step = 0
        with Progress("pretrain", total=config.total_steps, done=step) as bar:
            for number, phase in enumerate(config.phases):
                last_step = first_step + phase.steps
                if step < last_step:
                    state, closing = run.phase(state, step, last_step, number, rows, bar)
                    step, rows = last_step, []
                first_step = last_step

        # 4. The end. A run that was already finished is only told so.
        run.finish_save()
        checkpoints.close()
        if profile_steps and profile_steps.start >= config.total_steps:
            note(f"no step of --profile-steps was reached: the run has {config.total_steps}")
        if resumed_from == config.total_steps:
            note(f"{workdir_path} is already at its last step, {step}; nothing left to do")
            closing = metrics.closing_rows(rows)
        journal.event("stop", step=step, seconds=time.monotonic() - started)
        run.close_journal()
    return closing | {
        "step": step,
        "unigram_entropy": corpus.manifest["unigram_entropy_nats"],
        "seconds": time.monotonic() - started,
    }


class _Run:
    """What the phases of one process share. Nothing here outlives the process."""

    def __init__(
        self,
        *,
        config: TrainConfig,
        corpus: Corpus,
        mesh: Any,
        checkpoints: checkpoint.Checkpoints,
        journal: metrics.Journal,
        preemption: distributed.Preemption,
        profile_steps: range,
        directory: Path,
        peak_flops: float,
    ):
        self.config, self.corpus, self.mesh = config, corpus, mesh
        self.checkpoints, self.journal, self.preemption = checkpoints, journal, preemption
        self.profile_steps, self.directory = profile_steps, directory
        self.peak_flops = peak_flops
        self._is_tracing = False
        self._unfinished_save: dict[str, Any] | None = None
        self.pipeline = Pipeline(
            corpus.train,
            special=corpus.special,
            vocab_size=corpus.vocab_size,
            options=config.data,
            phases=config.phases,
            seed=config.seed,
        )

    def phase(
        self,
        state: TrainState,
        step: int,
        last_step: int,
        number: int,
        past_rows: list[dict[str, Any]],
        bar: Progress,
    ) -> tuple[TrainState, dict[str, Any]]:
        """Trains from `step` to `last_step`, all within phase `number`; returns the last rows."""
        config, journal = self.config, self.journal
        phase = config.phases[number]
        with ThreadPoolExecutor(max_workers=1) as background:
            # TensorFlow takes seconds to import: it does so while the step compiles.
            opening = background.submit(self._open_feed, phase, step, last_step)
            compiling = time.monotonic()
            note(f"phase {number}: compiling for {phase.global_batch_size} x "
                 f"{phase.sequence_length} ...")  # fmt: skip
            lowered = lower_train_step(config, state, feed.abstract_batch(phase, mesh=self.mesh))
            distributed.require_same(lambda: self._facts(lowered), mesh=self.mesh)
            train = compile_lowered(lowered)
            evaluator = Evaluator(
                config, phase, corpus=self.corpus, mesh=self.mesh, params=state.params
            )
            journal.event("compile", phase=number, seconds=time.monotonic() - compiling)
            batches = opening.result()
        journal.open_tensorboard(past_rows)

        clock, whole = metrics.Clock(), metrics.Clock()
        latest: dict[str, Any] = {}
        pending: tuple[int, dict[str, jax.Array]] | None = None

        def finish(pending: tuple[int, dict[str, jax.Array]]) -> None:
            """Waits for a dispatched step, checks it and writes its row."""
            done, device_metrics = pending
            values = {name: float(v) for name, v in jax.device_get(device_metrics).items()}
            clock.steps += 1
            whole.steps += 1
            if not math.isfinite(values["loss"]) or not math.isfinite(values["grad_norm"]):
                self._stop_at_non_finite(done, values)
            bar.advance()
            seconds = clock.seconds_per_step()
            bar.describe = lambda: (
                f"step {done}  loss {values['loss']:.3f}  "
                f"{phase.global_batch_size * phase.sequence_length / seconds:,.0f} tokens/s"
            )
            if done % config.log_every_steps == 0 or done == config.total_steps:
                row = {"step": done, **values, **self._speed(phase, seconds)}
                journal.row(**row)
                latest.update(row)
                clock.restart()

        for batch in batches:
            if step in self.profile_steps and not self._is_tracing:
                jax.profiler.start_trace(str(self.directory / "profile"))
                self._is_tracing = True
            # The step is dispatched first; only then is the one before it waited for.
            state, device_metrics = train(state, batch)
            if pending is not None:
                finish(pending)
            step += 1
            pending = (step, device_metrics)

            evaluate = step == last_step or _due(step, config.evaluation.every_steps)
            preempted = self.preemption.requested(step) and step != config.total_steps
            evaluate = evaluate and not preempted
            save = preempted or step == last_step or _due(step, config.checkpoint.every_steps)
            traced = self._is_tracing and (step not in self.profile_steps or step == last_step)
            if evaluate or save or traced:
                finish(pending)
                pending = None
                if traced:
                    jax.profiler.stop_trace()
                    self._is_tracing = False
                    bar.print(f"a profile that ends with step {step}: {self.directory / 'profile'}")
                with clock.paused(), whole.paused():
                    if evaluate:
                        latest["validation"] = self._evaluate(evaluator, state, step, phase, bar)
                    if save:
                        self._save(state, step)
                if preempted:
                    self._stop_for_preemption(step)
        return state, latest | self._speed(phase, whole.seconds_per_step())

    def _open_feed(self, phase: PhaseConfig, step: int, last_step: int) -> Iterator[dict]:
        ranges = feed.local_rows(self.mesh, phase.global_batch_size)

        def batch_at(step: int, ranges: list[range]) -> feed.HostBatch:
            return feed.host_batch(self.pipeline.batch_at, step, ranges)

        data = self.config.data
        host_batches = tf_batches(
            batch_at, step, last_step, ranges, num_workers=data.num_workers, prefetch=data.prefetch
        )
        placed = (
            feed.to_global(
                batch, mesh=self.mesh, ranges=ranges, global_rows=phase.global_batch_size
            )
            for batch in host_batches
        )
        return feed.ahead(placed, depth=_DEVICE_PREFETCH)

    def _evaluate(
        self, evaluator: Evaluator, state: TrainState, step: int, phase: PhaseConfig, bar: Progress
    ) -> dict[str, Any]:
        began = time.monotonic()
        values = evaluator.run(state.params)
        seconds = time.monotonic() - began
        length = phase.sequence_length
        self.journal.row(step=step, split="validation", sequence_length=length, **values)
        self.journal.event("evaluate", step=step, seconds=seconds)
        bar.print(
            f"step {step}: held-out MLM loss {values['mlm_loss']:.4f} "
            f"(perplexity {values['perplexity']:.1f}), MLM accuracy {values['mlm_accuracy']:.3f}, "
            f"NSP accuracy {values['nsp_accuracy']:.3f}"
        )
        return values

    def _save(self, state: TrainState, step: int) -> None:
        self.finish_save()
        began = time.monotonic()
        self.journal.flush()
        # Before the step is there: whoever goes on from it finds the rows that led to it.
        if distributed.is_main():
            bucket.copy_back(self.directory)
        self.checkpoints.save(state, step=step)
        self._unfinished_save = {"step": step, "seconds": time.monotonic() - began}

    def finish_save(self) -> None:
        """Waits for the save under way and notes it: the journal has no save that is not there."""
        self.checkpoints.wait()
        if self._unfinished_save is not None:
            self.journal.event("save", **self._unfinished_save)
            self._unfinished_save = None

    def close_journal(self) -> None:
        self.journal.close()
        if distributed.is_main():
            bucket.copy_back(self.directory)

    def _stop_for_preemption(self, step: int) -> None:
        self.finish_save()
        self.checkpoints.close()
        self.journal.event("preempt", step=step)
        self.close_journal()
        raise Preempted(f"preempted; step {step} is saved and the same command goes on from it")

    def _facts(self, lowered: Any) -> dict[str, str]:
        """What must be the same in every process."""
        return {
            "config": json.dumps(configs.to_dict(self.config), sort_keys=True),
            "corpus": self.corpus.fingerprint,
            "versions": json.dumps(workdir.versions()),
            "lowered step": lowered.as_text(),
        }

    def _speed(self, phase: PhaseConfig, seconds: float) -> dict[str, float]:
        flops = metrics.train_flops(self.config.model, phase)
        return {
            "tokens_per_second": phase.global_batch_size * phase.sequence_length / seconds,
            "step_seconds": seconds,
            "mfu": flops / seconds / self.peak_flops,
        }

    def _stop_at_non_finite(self, step: int, values: dict[str, float]) -> None:
        self.finish_save()
        self.checkpoints.close()
        self.journal.event("stop", step=step, reason="non-finite", **values)
        self.close_journal()
        saved = self.checkpoints.latest_step()
        raise NonFinite(
            f"step {step}: loss {values['loss']}, gradient norm {values['grad_norm']}. The last "
            f"good state is {'step ' + str(saved) if saved is not None else 'not saved'}; lower "
            "optimizer.learning_rate or lengthen optimizer.warmup_steps in a new --workdir"
        )


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _initial_state(
    config: TrainConfig,
    corpus: Corpus,
    init_from: Path | str | None,
    allow_missing_heads: bool,
    mesh: Any,
) -> TrainState:
    """Fresh parameters, or those of `init_from` if model and tokenizer are the same."""
    if init_from is None:
        return TrainState.initial(config, mesh)
    source = workdir.load_checkpoint(init_from, mesh=mesh, allow_missing_heads=allow_missing_heads)
    workdir.require_same_tokenizer(source, corpus)
    if source.config.model != config.model:
        theirs, ours = vars(source.config.model), vars(config.model)
        differing = ", ".join(
            f"model.{k} is {ours[k]!r}, the checkpoint's {theirs[k]!r}"
            for k in ours
            if ours[k] != theirs[k]
        )
        raise UsageError(f"--init-from {init_from}: {differing}; set the config to match")
    params, fresh = workdir.with_parts(source, config, allow_missing_heads=allow_missing_heads)
    if fresh:
        note(f"--init-from {init_from} has no {', '.join(fresh)}: fresh, from seed {config.seed}")
    state = TrainState.create(config, params)
    return state.place(mesh, shard_weights=config.mesh.shard_weights)
