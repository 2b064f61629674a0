"""Checks the preconditions of a run; each check raises UsageError if it fails."""

import jax
from jax.sharding import Mesh

from bert_jax.config import DataConfig, TrainConfig, source_shares
from bert_jax.data.corpus.several import trained_elsewhere
from bert_jax.data.corpus.store import Corpus
from bert_jax.errors import UsageError, some
from bert_jax.model import sharding
from bert_jax.model.attention.implementation import refusal
from bert_jax.progress import ticking
from bert_jax.registry import OBJECTIVES
from bert_jax.update.flops import train_flops


def mesh_of(config: TrainConfig) -> Mesh:
    """Returns the mesh of a config, which uses every device once."""
    wanted, devices = config.mesh, jax.device_count()
    real = len({getattr(device, "slice_index", 0) for device in jax.devices()})
    if real > 1 and wanted.slices != real:
        raise UsageError(
            f"the devices belong to {real} slices, but mesh.slices is {wanted.slices}; use "
            f"set mesh.slices={real}"
        )
    others = wanted.slices * wanted.tensor
    if devices % others or wanted.fsdp not in (-1, devices // others):
        raise UsageError(
            f"mesh.slices x mesh.fsdp x mesh.tensor is {wanted.slices} x {wanted.fsdp} x "
            f"{wanted.tensor}, but there are {devices} devices; mesh.fsdp=-1 uses the rest"
        )
    return sharding.make_mesh(slices=wanted.slices, fsdp=wanted.fsdp, tensor=wanted.tensor)


def require_on_mesh(config: TrainConfig, mesh: Mesh) -> None:
    """Checks that the devices can share each phase's batches, and that `compute.attention` supports
    the config.
    """
    kind, name = mesh.devices.flat[0].device_kind, config.compute.attention
    if (problem := refusal(name, config, device_kind=kind)) is not None:
        raise UsageError(f"config {config.name!r}: compute.attention is {name}, which {problem}")
    devices, microbatches = sharding.row_shards(mesh), config.optimizer.gradient_accumulation_steps
    batches = [phase.global_batch_size for phase in config.phases]
    for number, rows in enumerate(batches):
        if rows % (shards := devices * microbatches):
            near = sorted({max(rows // shards, 1) * shards, (rows // shards + 1) * shards})
            remedy = f"use a batch size of {' or '.join(map(str, near))}"
            fitting = [
                n for n in range(1, microbatches) if not any(b % (devices * n) for b in batches)
            ]
            if fitting:
                remedy = f"set optimizer.gradient_accumulation_steps={fitting[-1]}, or {remedy}"
            raise UsageError(
                f"config {config.name!r}: phases.{number}.global_batch_size is {rows}, which is "
                f"not a multiple of {shards} (devices that share a batch, times "
                f"optimizer.gradient_accumulation_steps); {remedy}"
            )


def require_fitting(config: TrainConfig, corpus: Corpus) -> None:
    """Checks that the model has the heads of its objective and an embedding for every token, and
    that source weights name sources of the corpus.
    """
    objective = OBJECTIVES[config.objective]
    if set(config.head.parts) != set(objective.parts):
        raise UsageError(
            f"config {config.name!r}: head.parts is {', '.join(config.head.parts)}; objective "
            f"{config.objective} needs {', '.join(objective.parts)}"
        )
    if corpus.vocab_size > config.model.vocab_size:
        raise UsageError(
            f"corpus {corpus.directory} has token ids up to {corpus.vocab_size - 1}, but "
            f"model.vocab_size is {config.model.vocab_size}; use "
            f"set model.vocab_size={corpus.vocab_size} or prepare with a smaller `vocab_size`"
        )
    for number in range(len(config.phases)):
        tokens = {name: source.train.tokens for name, source in corpus.sources.items()}
        source_shares.shares(config.in_phase(number).data, tokens)


def largest_shares(config: TrainConfig | None, corpus: Corpus) -> dict[str, float]:
    """Returns the largest share of rows that each source has in any phase; without a config, its
    share of the tokens.
    """
    tokens = {name: source.train.tokens for name, source in corpus.sources.items()}
    phases = [config.in_phase(i).data for i in range(len(config.phases))] if config else []
    each = [source_shares.shares(options, tokens) for options in phases or [DataConfig()]]
    return {name: max(found) for name, *found in zip(tokens, *each, strict=False)}


def held_out_elsewhere(config: TrainConfig | None, corpus: Corpus) -> tuple[str, str] | None:
    """Returns the problem and the fix if a source's training text has held-out text of another
    source, so that the scores would be too good. Without a config, all sources count as trained on.
    """
    if not corpus.sources:
        return None
    text, names = seen_in_training(corpus, config, corpus)
    if not text:
        return None
    return (
        text,
        f"prepare {some(names)} again: pass the held-out text as `decontaminate` or, without "
        "`validation_source`, use the same `seed` and `validation_fraction` for all",
    )


def seen_in_training(
    held_out: Corpus, config: TrainConfig | None, trained: Corpus
) -> tuple[str, list[str]]:
    """Returns how many held-out documents of a corpus, or of each source, are in the training text
    of a run on another one, and the names of the corpora with them; an empty text if none.
    """
    sides = [each.sources or {str(each.directory): each} for each in (held_out, trained)]
    if trained.sources:
        shares = largest_shares(config, trained)
        sides[1] = {name: each for name, each in sides[1].items() if shares[name]}
    with ticking("looking for held-out documents in training text"):
        found = trained_elsewhere(*sides)
    each = [
        f"{count:,} of the {sides[0][name].validation.document_starts.size - 1:,} held-out "
        f"documents of {name} are in the training text of {other}"
        for (name, other), count in found.items()
    ]
    return some(each) if each else "", sorted({other for _, other in found})


def step_seconds(config: TrainConfig, rate: float) -> list[float]:
    """Returns the estimated seconds per step of each phase, at `rate` FLOP/s."""
    objective = OBJECTIVES[config.objective]
    return [train_flops(objective, config.model, phase) / rate for phase in config.phases]
