"""Exports any checkpoint as a directory for other libraries, with a model card."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import jax

from bert_jax.config import TrainConfig
from bert_jax.data.tokenizer import hub
from bert_jax.errors import UsageError
from bert_jax.interchange import (
    huggingface,
    name_map,
    safetensors_files,
    sentence_transformers,
    tf1,
)
from bert_jax.interchange.name_map import Foreign
from bert_jax.interchange.sentence_transformers import EmbeddingRecipe
from bert_jax.model import sharding
from bert_jax.pretrained import model_card
from bert_jax.pretrained.load import load_checkpoint
from bert_jax.progress import note


def export_warning(config: TrainConfig) -> str:
    """Returns a note if no third-party library can load a run's model; "" otherwise."""
    why = huggingface.refusal(config.model, config.head.with_parameters())
    return f"note: transformers cannot load this model: {why}" if why else ""


def export_checkpoint(
    source: Path | str,
    output: Path,
    *,
    to: Literal["hf", "tf1"],
    dtype: str = "float32",
    max_file_bytes: int = safetensors_files.MAX_FILE_BYTES,
    ignore_unexpected: Sequence[str] = (),
    model_type: str | None = None,
    license: str | None = None,
    data_sets: Sequence[str] = (),
    pooling: str | None = None,
    normalize: bool = False,
    length: int | None = None,
) -> Foreign:
    """Writes any checkpoint as a Hugging Face (`to="hf"`) or TF1 (`to="tf1"`) directory.

    `model_type` is the family of the Hugging Face directory, by default chosen from the model and
    its tokenizer (`interchange.huggingface.write`). The records of a workdir become a model card
    (README.md) with the hub's names of a `license` and of `data_sets`.

    With `pooling`, the Hugging Face directory is also one of sentence-transformers, with the
    vectors of `embed` for the same `pooling`, `normalize` and `length` (tokens per text, by
    default as many as the model has positions for).

    Raises UsageError if the format has no class for the model, or `length` is too large.
    """
    name_map.require_free(output)
    if to == "tf1" and pooling is not None:
        raise UsageError(
            f"`pooling` {pooling}: a TF1 checkpoint has no pooling; leave out `pooling`, or export "
            "with `format` hf"
        )
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    with jax.set_mesh(mesh):
        loaded = load_checkpoint(source, mesh=mesh, ignore_unexpected=ignore_unexpected)
        config, model = loaded.config, loaded.config.model
        head = config.head.with_parameters()
        foreign = Foreign(model, head, loaded.params, loaded.step, (), loaded.tokenizer)
        library = "transformers"
        recipe = _recipe(config, pooling, normalize=normalize, length=length)
        if recipe is not None and to == "tf1":
            raise UsageError(
                f"{source} makes vectors of texts with pooling {recipe.pooling}, which a TF1 "
                "checkpoint has no place for; export with `format` hf"
            )
        if recipe is not None:
            library = "sentence-transformers"
        elif (hub.located(source) / sentence_transformers.MODULES).is_file():
            note(
                f"{source}: pooling and later modules ({sentence_transformers.MODULES}) are not "
                "exported; set `pooling`, `normalize` and `length`"
            )
        if to == "tf1":
            tf1.write(output, foreign, tokenizer=loaded.tokenizer)
            model_type = "bert"
        else:
            model_type = huggingface.write(
                output,
                loaded.params,
                model,
                head=head,
                tokenizer=loaded.tokenizer,
                dtype=dtype,
                max_file_bytes=max_file_bytes,
                model_type=model_type,
            )
        if recipe is not None:
            sentence_transformers.write(output, recipe, width=model.hidden_size)
        if loaded.is_run:
            model_card.write_model_card(
                output,
                loaded.directory,
                config,
                step=loaded.step,
                parameters=sum(leaf.size for leaf in jax.tree.leaves(loaded.params)),
                library=None if to == "tf1" else library,
                model_type=model_type,
                license=license,
                data_sets=data_sets,
            )
    return foreign


def _recipe(
    config: TrainConfig, pooling: str | None, *, normalize: bool, length: int | None
) -> EmbeddingRecipe | None:
    """Returns how the exported model embeds, as requested or as the run learned it; None for other
    models.
    """
    limit = config.model.max_position_embeddings
    if length is not None and length > limit:
        raise UsageError(f"`length` {length}: the model has only {limit} positions")
    steps = (sentence_transformers.NORMALIZE,) * normalize
    if (recipe := sentence_transformers.recipe_of_run(config)) is not None:
        changed = {"length": length, "pooling": pooling, "steps": steps}
        return dataclasses.replace(recipe, **{n: value for n, value in changed.items() if value})
    if pooling is None:
        return None
    return EmbeddingRecipe(length=length or limit, pooling=pooling, steps=steps)
