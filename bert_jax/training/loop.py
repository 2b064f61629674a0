"""The inner loop: the steps of one phase, what is logged, evaluated and saved on the way."""

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax

from bert_jax import config as configs
from bert_jax.config import PhaseConfig, TrainConfig
from bert_jax.data.pipeline import Pipeline, tf_batches
from bert_jax.data.store import Corpus
from bert_jax.errors import NonFinite, Preempted, StorageFailed
from bert_jax.progress import Progress, note
from bert_jax.training import bucket, checkpoint, distributed, feed, metrics, workdir
from bert_jax.training.evaluate import Evaluator
from bert_jax.training.state import TrainState
from bert_jax.training.step import compile_lowered, lower_train_step
from bert_jax.training.watchdog import COMPILE_PATIENCE, Watchdog

# Global batches on their way to the devices ahead of the step.
_DEVICE_PREFETCH = 2
# tf.data waits, when its iterator goes, for what its threads are doing. The iterators of runs that
# were told to go stay until the process ends.
_abandoned: list[Any] = []
_SAVED = "preempted; step {} is saved and the same command goes on from it"


class Run:
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
        watchdog: Watchdog,
        profile_steps: range,
        directory: Path,
        peak_flops: float,
        step: int,
        skipped: int,
    ):
        """`step` is the one that the run goes on from: there is nothing to save yet."""
        self.config, self.corpus, self.mesh = config, corpus, mesh
        self.checkpoints, self.journal, self.preemption = checkpoints, journal, preemption
        self.watchdog = watchdog
        self.profile_steps, self.directory = profile_steps, directory
        self.peak_flops = peak_flops
        self._is_tracing = False
        # The last one that began.
        self.step = step
        # Whose state is saved, or being saved; none if that has failed.
        self._saved: int | None = step
        self._feed: Future | None = None
        # Updates left out so far, over all processes that worked on this run.
        self._skipped = skipped
        self._failed_saves = 0
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
        *,
        past_rows: list[dict[str, Any]],
        owes_evaluation: bool,
        bar: Progress,
    ) -> tuple[TrainState, dict[str, Any]]:
        """Trains from `step` to `last_step`, all within phase `number`; returns the last rows.

        `owes_evaluation`: the state has been saved at a step of this phase whose evaluation a
        preemption prevented.
        """
        config, journal, self.step = self.config, self.journal, step
        phase = config.phases[number]
        # TensorFlow takes seconds to import: it does so while the steps compile. All of it in the
        # background, so that a signal is heard.
        background = ThreadPoolExecutor(max_workers=3, thread_name_prefix="prepare")
        self._feed = opening = background.submit(self._open_feed, phase, step, last_step)
        note(f"phase {number}: compiling for {phase.global_batch_size} x "
             f"{phase.sequence_length} ...")  # fmt: skip
        self.watchdog.at(f"compiling phase {number}", patience=COMPILE_PATIENCE)
        compiling = time.monotonic()
        lowered = lower_train_step(config, state, feed.abstract_batch(phase, mesh=self.mesh))
        distributed.require_same(lambda: self._facts(lowered), mesh=self.mesh)
        compiling_step = background.submit(compile_lowered, lowered)
        evaluator = Evaluator(
            config, phase, corpus=self.corpus, mesh=self.mesh, params=state.params
        )
        self.preemption.wait(background.submit(evaluator.compile))
        train = self.preemption.wait(compiling_step)
        journal.event("compile", phase=number, seconds=time.monotonic() - compiling)
        self.watchdog.at("opening the data")
        opened = time.monotonic()
        batches = self.preemption.wait(opening)
        journal.open_tensorboard(past_rows)
        journal.event("open", phase=number, seconds=time.monotonic() - opened)
        background.shutdown(wait=False)

        clock, whole = metrics.Clock(), metrics.Clock()
        latest: dict[str, Any] = {}
        pending: tuple[int, dict[str, jax.Array]] | None = None
        if owes_evaluation:
            values = self._evaluate(evaluator, state, step, phase, bar)
            if values is None:
                raise Preempted(_SAVED.format(step))
            latest["validation"] = values
            clock.restart()
            whole.restart()

        def finish(pending: tuple[int, dict[str, jax.Array]]) -> None:
            """Waits for a dispatched step, checks it and writes its row."""
            done, device_metrics = pending
            values = {name: float(v) for name, v in jax.device_get(device_metrics).items()}
            clock.steps += 1
            whole.steps += 1
            if not values.pop("applied"):
                self._note_skipped(done, values, bar)
            bar.advance()
            seconds = clock.seconds_per_step()
            bar.describe = lambda: (
                f"step {done}  loss {values['loss']:.3f}  "
                f"{phase.global_batch_size * phase.sequence_length / seconds:,.0f} tokens/s"
            )
            if done % config.log_every_steps == 0 or done == config.total_steps:
                row = {"step": done, **values, **self._speed(phase, seconds)}
                row |= {"steps": clock.steps, "time": time.time()}
                row["data_wait_seconds"] = clock.waited / clock.steps
                clock.restart()  # before the row is written: that is part of the next step
                journal.row(**row)
                latest.update(row)

        while step < last_step:
            if step in self.profile_steps and not self._is_tracing:
                jax.profiler.start_trace(str(self.directory / "profile"))
                self._is_tracing = True
            self.watchdog.at(f"waiting for the data of step {step + 1}")
            with clock.waiting(), self.watchdog.waiting():
                batch = self._next_batch(batches, state, step, pending, finish)
            self.watchdog.at(f"step {step + 1}")
            # The step is dispatched first; only then is the one before it waited for.
            state, device_metrics = train(state, batch)
            if pending is not None:
                finish(pending)
            self.step = step = step + 1
            pending = (step, device_metrics)

            evaluate = step == last_step or _due(step, config.evaluation.every_steps)
            preempted = self.preemption.requested() and step != config.total_steps
            save = preempted or self._is_spent or step == last_step
            save = save or _due(step, config.checkpoint.every_steps)
            traced = self._is_tracing and (step not in self.profile_steps or step == last_step)
            if evaluate or save or traced:
                finish(pending)
                pending = None
                if traced:
                    jax.profiler.stop_trace()
                    self._is_tracing = False
                    bar.print(f"a profile that ends with step {step}: {self.directory / 'profile'}")
                with clock.paused(), whole.paused():
                    # This very step may have spent the budget.
                    if evaluate and not preempted and not self._is_spent:
                        values = self._evaluate(evaluator, state, step, phase, bar)
                        preempted = values is None
                        latest["validation"] = values
                    if preempted or self._is_spent or step == config.total_steps:
                        self._save_for_good(state, step)
                    elif save:
                        self._save(state, step)
                if preempted:
                    raise Preempted(_SAVED.format(step))
                if self._is_spent:
                    self._stop_at_non_finite(step)
        speed = self._speed(phase, whole.seconds_per_step()) if whole.steps else {}
        return state, latest | speed

    # --- data -----------------------------------------------------------------------------------

    def _open_feed(
        self, phase: PhaseConfig, step: int, last_step: int
    ) -> Iterator[Future[dict | None]]:
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

    def _next_batch(
        self,
        batches: Iterator[Future[dict | None]],
        state: TrainState,
        step: int,
        pending: Any,
        finish: Any,
    ) -> dict[str, Any]:
        """The next batch; or, told to go while the data keep it waiting, saves and goes."""
        try:
            batch = self.preemption.wait(next(batches))
        except Preempted:
            if pending is not None:
                finish(pending)
            if self._saved == step:
                raise
            self._save_for_good(state, step)
            raise Preempted(_SAVED.format(step)) from None
        assert batch is not None, "the data ended before the phase"
        return batch

    # --- what happens between steps -------------------------------------------------------------

    def _evaluate(
        self, evaluator: Evaluator, state: TrainState, step: int, phase: PhaseConfig, bar: Progress
    ) -> dict[str, Any] | None:
        """Held-out metrics, journalled; None if a preemption cut it short."""

        def cut_short() -> bool:
            self.watchdog.at(f"evaluating step {step}")
            return self.preemption.requested()

        began = time.monotonic()
        values = evaluator.run(state.params, cut_short=cut_short)
        if values is None:
            return None
        length = phase.sequence_length
        self.journal.row(step=step, split="validation", sequence_length=length, **values)
        self.journal.event("evaluate", step=step, seconds=time.monotonic() - began)
        bar.print(
            f"step {step}: held-out MLM loss {values['mlm_loss']:.4f} "
            f"(perplexity {values['perplexity']:.1f}), MLM accuracy {values['mlm_accuracy']:.3f}, "
            f"NSP accuracy {values['nsp_accuracy']:.3f}"
        )
        return values

    def _save(self, state: TrainState, step: int) -> None:
        self.finish_save()
        self.watchdog.at(f"saving step {step}")
        began = time.monotonic()
        problem = None
        try:
            # Before the step is there: whoever goes on from it finds the rows that led to it.
            if distributed.is_main():
                bucket.copy_back(self.directory)
        except StorageFailed as error:
            problem = error
        # A save is made by all processes or by none.
        if not self._has_failed(problem):
            try:
                self.checkpoints.save(state, step=step)
            except StorageFailed as error:
                problem = error
            if not self._has_failed(problem):
                self._saved = step
        self.journal.event("saving", step=step, seconds=time.monotonic() - began)

    def _save_for_good(self, state: TrainState, step: int) -> None:
        """Saves and waits until it is whole, trying as often as saves may fail."""
        while True:
            self._save(state, step)
            began = time.monotonic()
            self.finish_save()
            self.journal.event("saving", step=step, seconds=time.monotonic() - began)
            if not self._failed_saves:
                return
            time.sleep(1.0)

    def finish_save(self) -> None:
        """Waits for the save under way. One that failed is noted; too many in a row end the run."""
        self.watchdog.at("waiting for a save")
        problem, is_whole = None, False
        try:
            is_whole = self.checkpoints.wait()
        except StorageFailed as error:
            problem = error
        if not self._has_failed(problem) and is_whole:
            self._failed_saves = 0

    def _has_failed(self, problem: StorageFailed | None) -> bool:
        """Whether any process has a problem; it is noted by all.

        All count alike: what they do next, they do together.
        """
        has_failed = distributed.anywhere(problem is not None, mesh=self.mesh)
        if has_failed:
            self._note_failed_save(problem or StorageFailed("another process could not save"))
        return has_failed

    def _note_failed_save(self, error: StorageFailed) -> None:
        self._failed_saves += 1
        self._saved = None
        allowed = self.config.checkpoint.max_failed_saves
        self.journal.event("save_failed", in_a_row=self._failed_saves, message=str(error))
        if self._failed_saves > allowed:
            raise error
        note(f"{error} ({self._failed_saves} of {allowed} failures in a row that are borne)")

    @property
    def _is_spent(self) -> bool:
        """Whether more updates were left out than may be."""
        return self._skipped > self.config.optimizer.max_skipped_updates

    def _note_skipped(self, step: int, values: dict[str, float], bar: Progress) -> None:
        self._skipped += 1
        loss, norm = values["loss"], values["grad_norm"]
        self.journal.event("skip", step=step, loss=str(loss), grad_norm=str(norm))
        bar.print(
            f"step {step}: loss {loss}, gradient norm {norm}; this update is left out "
            f"({self._skipped} of {self.config.optimizer.max_skipped_updates} that may be)"
        )

    # --- ends -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Waits for what is being saved, then closes the books."""
        self.finish_save()
        self.checkpoints.close()
        self.watchdog.at("closing")
        self.journal.close()
        if distributed.is_main():
            bucket.copy_back(self.directory)

    def abandon(self) -> None:
        """Closes without waiting for the loader."""
        _abandoned.append(self._feed)
        self.close()

    def _stop_at_non_finite(self, step: int) -> None:
        raise NonFinite(
            f"step {step}: {self._skipped} updates were left out, being not finite or spikes, more "
            "than optimizer.max_skipped_updates. The state without them is saved; "
            "lower optimizer.learning_rate or lengthen optimizer.warmup_steps in a new --workdir, "
            "or go back to an earlier step (--resume-step)"
        )

    def _facts(self, lowered: Any) -> dict[str, str]:
        """What must be the same in every process."""
        return {
            "config": json.dumps(configs.to_dict(self.config), sort_keys=True),
            "corpus": self.corpus.fingerprint,
            "versions": json.dumps(workdir.versions()),
            "compiler flags": json.dumps(_compiler_flags()),
            "lowered step": lowered.as_text(),
        }

    def _speed(self, phase: PhaseConfig, seconds: float) -> dict[str, float]:
        flops = metrics.train_flops(self.config.model, phase)
        return {
            "tokens_per_second": phase.global_batch_size * phase.sequence_length / seconds,
            "step_seconds": seconds,
            "mfu": flops / seconds / self.peak_flops,
        }


def _compiler_flags() -> list[str]:
    """What the environment tells the compiler; where it writes what it did does not count."""
    flags = " ".join(os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"))
    return sorted(flag for flag in flags.split() if not flag.startswith("--xla_dump"))


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
