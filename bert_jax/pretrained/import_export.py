"""`bert-jax import` and `bert-jax export`: other systems' checkpoints into workdirs, and back."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bert_jax.config import TrainConfig
from bert_jax.config.model import TRAINING_FIELDS
from bert_jax.data.tokenizer import hub
from bert_jax.errors import UsageError
from bert_jax.interchange import huggingface, name_map, sentence_transformers, tf1
from bert_jax.interchange.name_map import ImportedModel
from bert_jax.model import sharding
from bert_jax.model.positions.position import lengthened
from bert_jax.pretrained import model_card
from bert_jax.pretrained.load import (
    SCORED_BY,
    LoadedCheckpoint,
    imported_config,
    load_checkpoint,
    read_imported,
    recorded,
    require_same_tokenizer,
    write_record,
)
from bert_jax.progress import note
from bert_jax.registry import OPTIMIZERS
from bert_jax.update.optimizers import adam_state, with_adam_state
from bert_jax.update.state import TrainState
from bert_jax.workdir import checkpoint, run_directory


def import_checkpoint(
    source: Path,
    output: Path,
    *,
    config: TrainConfig | None = None,
    corpus_directory: Path | None = None,
    allow_missing_heads: bool = False,
    ignore_unexpected: Sequence[str] = (),
    format: str = "auto",
) -> ImportedModel:
    """Turns a foreign checkpoint into a workdir with one checkpoint, at the step it has.

    With a `config` and a corpus the workdir is that of the run, and `pretrain` goes on from
    the step; where it has more positions, tables become longer. Raises UsageError, before anything
    is written, if the source cannot be read, has no head at all and that is not allowed, or does
    not fit the config or the corpus.
    """
    from bert_jax.data.corpus.store import open_corpus
    from bert_jax.data.tokenizer.tokenizer import load_tokenizer

    name_map.require_free(output)
    foreign, directory = read_imported(
        source,
        allow_missing_heads=allow_missing_heads,
        ignore_unexpected=ignore_unexpected,
        format=format,
    )
    if not allow_missing_heads:
        _require_a_head(source, foreign)
    _note_pooling(source, "imported")
    run = config or recorded(directory, foreign)[1] or imported_config(foreign)
    if config is not None:
        _require_same_run(source, foreign, config)
        foreign = _lengthened(foreign, config)
    corpus = None if corpus_directory is None else open_corpus(corpus_directory)
    sub_words = load_tokenizer(directory)
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    with jax.set_mesh(mesh):
        if corpus is not None:
            loaded = LoadedCheckpoint(source, foreign.step, run, foreign.params, directory)
            require_same_tokenizer(loaded, corpus)
        else:
            sub_words.save(output / run_directory.TOKENIZER)
        _save(output, run, foreign, mesh, source=str(source))
    # Last: a workdir that has a config is complete, and `pretrain` goes on from it.
    if corpus is None:
        run_directory.write_config(output, run, imported_from=str(source))
    else:
        run_directory.create(output, run, corpus, init_from=None, imported_from=source)
    return foreign


def average_checkpoints(sources: Sequence[Path | str], output: Path) -> ImportedModel:
    """Writes the mean of the parameters of several checkpoints as a workdir with one checkpoint, as
    `import_checkpoint` does, at the highest of their steps.

    Raises UsageError if they are not of one model with one tokenizer.
    """
    from bert_jax.data.tokenizer.tokenizer import load_tokenizer

    name_map.require_free(output)
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    with jax.set_mesh(mesh):
        first = load_checkpoint(sources[0], mesh=mesh)
        words, mean, step = load_tokenizer(first.tokenizer), first.params, first.step
        for number, source in enumerate(sources[1:], 2):
            loaded = load_checkpoint(source, mesh=mesh)
            ours, theirs = ((c.config.model, c.config.head) for c in (first, loaded))
            if ours != theirs:
                raise UsageError(f"{source} has another model or other heads than {sources[0]}")
            if load_tokenizer(loaded.tokenizer).hash != words.hash:
                raise UsageError(f"{source} has another tokenizer than {sources[0]}")
            mean = jax.tree.map(lambda m, p, n=number: m + (p - m) / n, mean, loaded.params)
            step = max(step, loaded.step)
        foreign = ImportedModel(
            model=first.config.model, head=first.config.head, params=mean, step=step
        )
        # Its rows, masks and held-out examples are those of the run: it is scored as that was.
        kept = {name: getattr(first.config, name) for name in SCORED_BY}
        kept["phases"] = first.config.scored_phases
        run = dataclasses.replace(imported_config(foreign), **kept)
        origin = f"{run_directory.MEAN_OF}{', '.join(map(str, sources))}"
        words.save(output / run_directory.TOKENIZER)
        _save(output, run, foreign, mesh, source=origin)
    run_directory.write_config(output, run, imported_from=origin)
    return foreign


def _save(
    output: Path, run: TrainConfig, foreign: ImportedModel, mesh: Mesh, *, source: str
) -> None:
    saved = checkpoint.Checkpoints(output, run.checkpoint, facts={"imported_from": source})
    saved.save(_state(run, foreign).to_mesh(mesh, shard_weights=True), step=foreign.step)
    saved.close()


def _require_a_head(source: Path, foreign: ImportedModel) -> None:
    if set(foreign.head.parts) <= {"pooler"}:
        heads = ("pooler", "mlm", "nsp")
        if foreign.head.pooler_act == "gelu":
            heads = ("discriminator",)
        whole = dataclasses.replace(foreign.head, parts=heads)
        there = huggingface.tensor_names(foreign.model, foreign.head)
        lacking = [
            name
            for path, name in huggingface.tensor_names(foreign.model, whole).items()
            if path not in there
        ]
        raise UsageError(
            f"{source} has no head: it lacks {', '.join(lacking)}; "
            "`allow_missing_heads` imports it as it is, to fine-tune or to begin pre-training from"
        )


def _require_same_run(source: Path, foreign: ImportedModel, run: TrainConfig) -> None:
    for section, theirs in (("model", foreign.model), ("head", foreign.head)):
        ours = vars(getattr(run, section))
        # Dropout and the like are how a model is trained, not what it is.
        differing = [
            f"{section}.{name} is {ours[name]!r}, the checkpoint's {value!r}"
            for name, value in vars(theirs).items()
            if ours[name] != value
            and name not in TRAINING_FIELDS
            and not (name == "max_position_embeddings" and ours[name] > value)
        ]
        if differing:
            raise UsageError(f"{source}: {'; '.join(differing)}; set the config to match")
    if foreign.step >= run.total_steps:
        raise UsageError(
            f"{source} is at step {foreign.step}, but config {run.name!r} ends at "
            f"{run.total_steps}; give it more steps"
        )


def _lengthened(foreign: ImportedModel, run: TrainConfig) -> ImportedModel:
    """Returns the model with as many positions as the config has, its moments, too."""
    fewer, more = (m.max_position_embeddings for m in (foreign.model, run.model))
    if fewer == more:
        return foreign
    note(
        f"its position table grows from {fewer} to {more} rows: the new rows are initialized from "
        "the checkpoint's"
    )
    trees = (foreign.params, *(foreign.moments or ()))
    params, *moments = (lengthened(tree, run.model) for tree in trees)
    return dataclasses.replace(
        foreign,
        model=dataclasses.replace(foreign.model, max_position_embeddings=more),
        params=params,
        moments=(moments[0], moments[1]) if moments else None,
    )


def _state(run: TrainConfig, foreign: ImportedModel) -> TrainState:
    state = TrainState.create(run, foreign.params)
    opt_state = state.opt_state
    if foreign.moments is not None:
        mu, nu = foreign.moments
        count = jnp.asarray(foreign.step, jnp.int32)
        adam = adam_state(opt_state)
        if adam is None:
            raise UsageError(
                f"optimizer.kind is {run.optimizer.kind}, which does not keep the moments of Adam "
                "that the checkpoint has; import it without `config`, or with bert_adamw"
            )
        opt_state = with_adam_state(opt_state, adam._replace(count=count, mu=mu, nu=nu))
    step = jnp.asarray(foreign.step, jnp.int32)
    return dataclasses.replace(state, step=step, opt_state=opt_state)


def export_warning(config: TrainConfig) -> str:
    """Returns a line for a run whose model no other system will read; nothing for others."""
    why = huggingface.refusal(config.model, config.head)
    return f"note: transformers cannot load this model: {why}" if why else ""


def export_checkpoint(
    source: Path | str,
    output: Path,
    *,
    to: str,
    moments: bool | None = None,
    dtype: str = "float32",
    max_file_bytes: int | None = None,
    ignore_unexpected: Sequence[str] = (),
    model_type: str | None = None,
    license: str | None = None,
    data_sets: Sequence[str] = (),
    pooling: str | None = None,
    normalize: bool = False,
    length: int | None = None,
) -> ImportedModel:
    """Writes any checkpoint as a Hugging Face (`to="hf"`) or TF1 (`to="tf1"`) directory.

    `model_type` is that of Hugging Face's directory; None is RoBERTa's where the tokenizer is of
    its form, else BERT's. A workdir's records become a model card (README.md) there, with the hub's
    names of a `license` and of `data_sets`. `moments` True writes Adam's moments and the step, or
    raises UsageError where there are none; None writes them to TF1 where there are any.

    `pooling` "mean" or "cls" makes Hugging Face's directory one of sentence-transformers, whose
    vectors are those of `embed` with the same `pooling`, `normalize` and `length`: tokens of a text
    at most, by default as many as the model has positions for. Raises UsageError for more.
    """
    name_map.require_free(output)
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    with jax.set_mesh(mesh):
        loaded = load_checkpoint(source, mesh=mesh, ignore_unexpected=ignore_unexpected)
        config = loaded.config
        embedder, library = None, "transformers"
        if pooling is None:
            _note_pooling(source, "exported")
        else:
            library = "sentence-transformers"
            embedder = _embedder(config, pooling, normalize=normalize, length=length)
        foreign = ImportedModel(
            model=config.model,
            head=config.head,
            params=loaded.params,
            moments=None
            if moments is False
            else _moments(source, loaded, mesh, to, moments, ignore_unexpected),
            step=loaded.step,
        )
        if to == "tf1":
            tf1.write(output, foreign, tokenizer=loaded.tokenizer)
            model_type = "bert"
        else:
            model_type = huggingface.write(
                output,
                foreign.params,
                foreign.model,
                head=foreign.head,
                tokenizer=loaded.tokenizer,
                moments=foreign.moments,
                step=foreign.step,
                dtype=dtype,
                model_type=model_type,
                **({} if max_file_bytes is None else {"max_file_bytes": max_file_bytes}),
            )
        if embedder is not None:
            sentence_transformers.write(output, embedder, width=config.model.hidden_size)
        write_record(output, loaded)
        if checkpoint.steps(loaded.directory):
            parameters = sum(leaf.size for leaf in jax.tree.leaves(loaded.params))
            model_card.write_model_card(
                output,
                loaded.directory,
                config,
                step=loaded.step,
                parameters=parameters,
                library=None if to == "tf1" else library,
                model_type=model_type,
                license=license,
                data_sets=data_sets,
            )
    return foreign


def _note_pooling(source: Path | str, verb: str) -> None:
    """Says what an embedder loses that is read as an encoder."""
    if (hub.located(source) / sentence_transformers.MODULES).is_file():
        note(
            f"{source}: its pooling and what follows it ({sentence_transformers.MODULES}) are not "
            f"{verb}; embed from there, or give its `length`, `pooling` and `normalize`"
        )


def _embedder(
    config: TrainConfig, pooling: str, *, normalize: bool, length: int | None
) -> sentence_transformers.EmbeddingRecipe:
    limit = config.model.max_position_embeddings
    if length is not None and length > limit:
        raise UsageError(f"`length` {length}: the model has {limit} positions")
    steps = (sentence_transformers.NORMALIZE,) * normalize
    return sentence_transformers.EmbeddingRecipe(
        length=length or limit, pooling=(pooling,), steps=steps
    )


def _moments(
    source: Path | str,
    loaded: LoadedCheckpoint,
    mesh: Mesh,
    to: str,
    wanted: bool | None,
    ignore_unexpected: Sequence[str],
) -> tuple[Any, Any] | None:
    if wanted is None and to != "tf1":
        return None
    if wanted is None and loaded.config.optimizer.kind not in OPTIMIZERS:
        note(
            f"optimizer.kind {OPTIMIZERS.problem(loaded.config.optimizer.kind)}: the model is "
            "written without moments"
        )
        return None
    if not checkpoint.steps(loaded.directory):
        found = read_imported(Path(source), ignore_unexpected=ignore_unexpected)[0].moments
    else:
        opt_state = checkpoint.load_part(
            loaded.directory, "opt_state", step=loaded.step, config=loaded.config, mesh=mesh
        )
        adam = adam_state(opt_state)
        # A run that has made no update has none: its zeros are not moments of anything.
        is_there = adam is not None and np.asarray(adam.count) > 0
        found = (adam.mu, adam.nu) if adam is not None and is_there else None
    if found is None and wanted:
        raise UsageError(f"`checkpoint` {source} has no moments of Adam to write")
    return found
