"""The pre-training loop, read from top to bottom.

A run is a function of (config, corpus): step N's batch, masks and dropout follow from the seed and
N, so a run that was interrupted goes on from its newest checkpoint with one integer and ends with
the same bits as one that was not.
"""

import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from bert_jax.config import TrainConfig
from bert_jax.data.store import SPLITS, Corpus, open_corpus
from bert_jax.errors import NonFinite, Preempted, UsageError
from bert_jax.model import heads, sharding
from bert_jax.progress import Progress, note
from bert_jax.training import (
    bucket,
    checkpoint,
    distributed,
    metrics,
    recovery,
    require,
    workdir,
)
from bert_jax.training.loop import Run
from bert_jax.training.state import TrainState
from bert_jax.training.watchdog import COMPILE_PATIENCE, Watchdog


def pretrain(
    config: TrainConfig,
    *,
    corpus_directory: Path,
    workdir_path: Path | str,
    init_from: Path | str | None = None,
    allow_missing_heads: bool = False,
    profile_steps: range | None = None,
    resume_step: int | None = None,
    allowed_changes: Sequence[str] = (),
    started: float | None = None,
) -> dict[str, Any]:
    """Runs `config` on a corpus, or resumes the run that `workdir_path` holds.

    Returns the run's closing figures: `step`, the last held-out metrics (`validation`), the last
    row of training, and the corpus's unigram entropy to compare them with. `workdir_path` may be
    in a bucket (`gs://BUCKET/PATH`). `init_from` is a checkpoint whose parameters a *new* run
    starts from, with a fresh schedule; a resumed run has its own. Heads that it lacks are an error,
    or begin fresh with `allow_missing_heads`. Steps in `profile_steps` are traced to
    `workdir/profile`. `resume_step` goes back to an earlier step, once; `allowed_changes` are
    fields that may differ from the workdir's (same_run.py). `started` is the process's beginning on
    the monotonic clock.
    """
    started = time.monotonic() if started is None else started
    verify = SPLITS if config.data.verify == "full" else ()
    corpus = open_corpus(corpus_directory, verify=verify)
    require.fitting(config, corpus)
    is_main = distributed.is_main()
    mesh = sharding.make_mesh(**require.mesh_shape(config))
    for phase in config.phases:
        require.divisible(phase, mesh, config)
    home = bucket.directory_of(workdir_path, owner=f"process-{jax.process_index()}")
    is_held, changes = workdir.holds_run(
        home, config, corpus, init_from=init_from, allowed=allowed_changes
    )
    if resume_step is not None and not is_held:
        raise UsageError(f"--resume-step {resume_step}: --workdir {workdir_path} holds no run yet")
    # Measured on one device, hence before all of them are the context.
    peak_flops = metrics.peak_flops(config.compute.dtype)

    with (
        jax.set_mesh(mesh),
        distributed.Preemption() as preemption,
        Watchdog(config.deadline_seconds) as watchdog,
    ):
        # 0. Every process has looked before one of them writes.
        watchdog.at("meeting the other processes")
        distributed.barrier(mesh)

        # 1. The state: the newest good checkpoint, or a beginning. Nothing is written before the
        # beginning is known to be possible.
        # A beginning is compiled, and a checkpoint of many gigabytes comes from far away.
        watchdog.at("restoring", patience=COMPILE_PATIENCE)
        restoring = time.monotonic()
        resumed_from = None
        if is_held:
            resumed_from = distributed.from_main(
                lambda: recovery.prepare(home, resume_step=resume_step), mesh=mesh
            )
        if (resumed_from or 0) > config.total_steps:
            raise UsageError(
                f"{workdir_path} is at step {resumed_from}, beyond the {config.total_steps} of "
                "this config; lengthen its phases, or go back with --resume-step N"
            )
        beginning = None
        if resumed_from is None:
            beginning = _initial_state(config, corpus, init_from, allow_missing_heads, mesh)
        if is_main and not is_held:
            workdir.create(home, config, corpus, init_from=init_from)
        elif is_main and changes:
            workdir.change(home, config, corpus)
        if is_main:
            bucket.copy_back(home)
        distributed.barrier(mesh)
        state = beginning or checkpoint.load(home, step=resumed_from or 0, config=config, mesh=mesh)
        del beginning
        step = resumed_from or 0

        # 2. The logs, rewound to where the state stands.
        rows = metrics.set_aside_after(home, step) if is_main else []
        skipped = metrics.skipped_steps(home, step)
        journal = metrics.Journal(home, is_writer=is_main)
        journal.event("start", step=step, **workdir.hardware(), versions=workdir.versions(),
                      seconds=time.monotonic() - started)  # fmt: skip
        if resumed_from is not None:
            journal.event("resume", step=step, seconds=time.monotonic() - restoring)
        if changes:
            journal.event("change", step=step, fields=[list(change) for change in changes])
        watchdog.on_slow = lambda process, share: journal.event(
            "slow_process", process=process, share=share
        )
        checkpoints = checkpoint.Checkpoints(
            home,
            config.checkpoint,
            facts=workdir.facts(config, corpus),
            on_saved=lambda step, seconds: journal.event("save", step=step, seconds=seconds),
        )
        parameters = heads.parameter_count(state.params)
        note(
            f"{config.name}: {parameters / 1e6:.1f} M parameters, "
            f"{corpus.train.shard_starts[-1] / 1e6:.1f} M training tokens, "
            f"{jax.device_count()} x {jax.devices()[0].device_kind}, "
            + (f"resuming at step {step}" if resumed_from is not None else "a new run")
            + f" of {config.total_steps}"
        )

        # 3. The phases. Schedule, state and data cursor go through them unbroken.
        run = Run(
            config=config,
            corpus=corpus,
            mesh=mesh,
            checkpoints=checkpoints,
            journal=journal,
            preemption=preemption,
            watchdog=watchdog,
            profile_steps=profile_steps or range(0),
            directory=home,
            peak_flops=peak_flops,
            step=step,
            skipped=skipped,
        )
        owes = _owes_evaluation(config, resumed_from, rows, mesh=mesh)
        closing: dict[str, Any] = {}
        first_step = 0
        try:
            with Progress("pretrain", total=config.total_steps, done=step) as bar:
                for number, phase in enumerate(config.phases):
                    last_step = first_step + phase.steps
                    if step < last_step or (owes and first_step < step == last_step):
                        state, closing = run.phase(
                            state,
                            step,
                            last_step,
                            number,
                            past_rows=rows,
                            owes_evaluation=owes and first_step < step,
                            bar=bar,
                        )
                        step, rows, owes = last_step, [], False
                    first_step = last_step
        except (Preempted, NonFinite) as error:
            run.finish_save()
            if isinstance(error, Preempted):
                journal.event("preempt", step=run.step)
            else:
                journal.event("stop", step=run.step, reason="non-finite")
            run.abandon()
            raise

        # 4. The end. A run that was already finished is only told so.
        run.finish_save()
        if profile_steps and profile_steps.start >= config.total_steps:
            note(f"no step of --profile-steps was reached: the run has {config.total_steps}")
        if resumed_from == config.total_steps and not closing:
            note(f"{workdir_path} is already at its last step, {step}; nothing left to do")
        # A process that trained only the end, or nothing, tells of the others' rows.
        closing = metrics.closing_rows(metrics.read_rows(home)) | closing
        journal.event("stop", step=step, seconds=time.monotonic() - started)
        run.close()
    return closing | {
        "step": step,
        "unigram_entropy": corpus.manifest["unigram_entropy_nats"],
        "seconds": time.monotonic() - started,
    }


def _owes_evaluation(
    config: TrainConfig, step: int | None, rows: list[dict[str, Any]], *, mesh: Any
) -> bool:
    """Whether a preemption prevented the evaluation that is due where the run goes on."""
    if step is None:
        return False
    ends = itertools.accumulate(phase.steps for phase in config.phases)
    every = config.evaluation.every_steps
    if step not in ends and not (step and every and step % every == 0):
        return False
    has_row = any(row["step"] == step and row.get("split") == "validation" for row in rows)
    # Process 0 has the rows.
    return distributed.from_main(lambda: int(not has_row), mesh=mesh) == 1


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
