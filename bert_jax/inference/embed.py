"""Embeddings from any layer of an encoder: one per text, or one per token."""

import dataclasses
import numbers
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh

from bert_jax.config import HeadConfig, TrainConfig
from bert_jax.data.sources.read import read_text
from bert_jax.data.tasks.encode_rows import LONGER, NO_MORE, Features, encode_texts
from bert_jax.data.tasks.tables import TextRow
from bert_jax.data.tokenizer.tokenizer import Tokenizer, load_tokenizer
from bert_jax.data.tokenizer.unknown import note_unknown_ids
from bert_jax.errors import UsageError, brief
from bert_jax.files import writing
from bert_jax.inference.forward import Forward, in_float32
from bert_jax.interchange import sentence_transformers
from bert_jax.interchange.sentence_transformers import EmbeddingRecipe
from bert_jax.pretrained.load import LoadedCheckpoint, load_checkpoint
from bert_jax.progress import Progress, note_once
from bert_jax.workdir.run_directory import TOKENIZER

_BATCH = 64
POOLINGS = (*sentence_transformers.POOLINGS, "none")


def save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes a NumPy archive atomically."""
    building = path.with_name(f"{path.name}.new.npz")
    try:
        with writing(path):
            np.savez(building, **arrays)  # pyright: ignore[reportArgumentType]
        building.replace(path)
    finally:
        building.unlink(missing_ok=True)  # left over if the disk is full


def embed(
    checkpoint: Path | str,
    texts: Path | str,
    *,
    ignore_unexpected: Sequence[str] = (),
    **options: Any,
) -> dict[str, np.ndarray]:
    """Returns `vectors` and `offsets` of the lines of a file; `options` are those of `vectors_of`.

    Blank lines have no vector: `lines` int64 `[N]` are the numbers of the other lines, counted from
    1, and `blank_lines` int64 `[]` is the number of blank lines. Raises UsageError for a file
    without lines.
    """
    # Unlike str.splitlines, only newlines end a line.
    split = read_text(texts).split("\n")
    numbers = [number for number, line in enumerate(split, 1) if line.strip()]
    lines = [split[number - 1] for number in numbers]
    if not lines:
        raise UsageError(f"{texts} is empty: expected one text per line")
    source = load_checkpoint(
        checkpoint, allow_missing_heads=True, ignore_unexpected=ignore_unexpected
    )
    arrays = vectors_of(source, load_tokenizer(source.tokenizer), lines, **options)
    # The empty text after the last newline is not a line.
    blank = len(split) - (split[-1] == "") - len(numbers)
    return arrays | {"lines": np.array(numbers, np.int64), "blank_lines": np.int64(blank)}


def forward_of(
    config: TrainConfig,
    *,
    mesh: Mesh,
    layers: Sequence[int] = (-1,),
    pooling: str = "none",
    batch_size: int = _BATCH,
) -> Forward:
    """Returns the forward pass that computes the states of some layers, or a pooling of them.

    Raises UsageError for a layer that the model lacks.
    """
    if not layers:
        raise UsageError("`layers` is empty; name at least one")
    depth = config.model.num_hidden_layers
    return Forward(
        dataclasses.replace(config, head=HeadConfig(parts=())),
        "last_hidden_state" if pooling == "none" else "embeddings",
        batch_size=batch_size,
        layers=[_layer_number(layer, depth) for layer in layers],
        pooling=pooling,
        mesh=mesh,
    )


def encode(
    texts: Sequence[str],
    tokenizer: Tokenizer,
    recipe: EmbeddingRecipe,
    *,
    length: int | None,
    limit: int,
) -> Features:
    """Returns texts, with the prompt of the recipe, as rows of at most `length` tokens: by default
    the recipe's. A note says how many are truncated.

    Raises UsageError for a length above `limit`, the positions of the model.
    """
    length = min(recipe.length or limit, limit) if length is None else length
    prepared = [recipe.prompt + text for text in texts]
    if recipe.lowercase:
        from tokenizers.normalizers import Lowercase

        prepared = [Lowercase().normalize_str(text) for text in prepared]
    rows = [TextRow(f"text {i}", (text,), None, "") for i, text in enumerate(prepared)]
    features = encode_rows(rows, tokenizer, length=length, limit=limit)
    note_unknown_ids(features.input_ids, tokenizer.special)
    return features


def encode_rows(
    rows: Sequence[TextRow], tokenizer: Tokenizer, *, length: int | None, limit: int
) -> Features:
    """Returns rows of at most `length` tokens, by default `limit`, the positions of the model.

    A note says how many are truncated. Raises UsageError for a length above `limit`.
    """
    length = limit if length is None else length
    if length > limit:
        raise UsageError(f"`length` {length}: the model has only {limit} positions")
    remedy = LONGER if length < limit else NO_MORE
    return encode_texts(rows, tokenizer, length=length, truncation="longest_first", remedy=remedy)


def vectors_of(
    checkpoint: LoadedCheckpoint,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    layers: Sequence[int] = (-1,),
    pooling: str | None = None,
    length: int | None = None,
    normalize: bool | None = None,
    prompt: str | None = None,
    dims: int | None = None,
    hidden: bool = False,
    forwards: MutableMapping[Any, Forward] | None = None,
) -> dict[str, np.ndarray]:
    """Returns embeddings of texts: `vectors` float32 `[N, W]`, W = width x number of layers.

    `layers` count from 1 to the last layer; 0 is the embedding layer, and negative numbers count
    from the end; several layers are concatenated. `pooling` is one of `POOLINGS` over all tokens of
    the text, including [CLS] and [SEP]; "none" returns the concatenated `[tokens, W]` of all texts
    and their starts, `offsets` int64 `[N + 1]`. `normalize` scales vectors to length 1. Texts of
    more than `length` tokens are truncated, with a note (default: the number of positions).

    A sentence-transformers directory, or a run that learned embeddings, sets the defaults of
    length, prompt, pooling and further steps; `layers` or `pooling` replace its pooling and steps.
    `prompt` names one of its prompts ("query", "document"). `dims` keeps the first columns of the
    vectors, like `truncate_dim` of sentence-transformers: they then have length 1 only with
    `normalize`. `forwards` keeps the compiled forward passes for later calls. `hidden` hides the
    progress bar.

    Raises UsageError for a layer that the model lacks, or a length beyond its positions.
    """
    if pooling not in (None, *POOLINGS):
        raise UsageError(f"`pooling` {pooling}: must be one of {', '.join(POOLINGS)}")
    is_own = pooling is not None or tuple(layers) != (-1,)
    recipe = recipe_of(checkpoint, is_own=is_own, pooling=pooling, normalize=normalize)
    width = checkpoint.config.model.hidden_size * len(layers)
    recipe = recipe.with_prompt(prompt).with_dims(dims, width=width)
    limit = checkpoint.config.model.max_position_embeddings
    features = encode(texts, tokenizer, recipe, length=length, limit=limit)
    forwards = {} if forwards is None else forwards
    key = (tuple(layers), recipe.pooling)
    if key not in forwards:
        config, mesh = in_float32(checkpoint.config), checkpoint.mesh
        forwards[key] = forward_of(config, mesh=mesh, layers=layers, pooling=recipe.pooling)
    encoder = {"encoder": checkpoint.params["encoder"]}
    arrays = {}
    if recipe.pooling != "none":
        found = forwards[key](encoder, features, title="" if hidden else "embed")
    else:
        # Cut batch by batch: the padding of all texts together may exceed the memory.
        parts: list[np.ndarray] = []
        done = 0
        with Progress("embed", total=len(features), hidden=hidden) as progress:
            for states in forwards[key].batches(encoder, features):
                lengths = features.lengths[done : done + len(states)]
                parts.append(states[np.arange(states.shape[1]) < lengths[:, None]])
                done += len(states)
                progress.advance(len(states))
        found = np.concatenate(parts)
        arrays["offsets"] = np.concatenate([[0], np.cumsum(features.lengths)]).astype(np.int64)
    found = recipe.finished(found)
    if recipe.dims is not None and normalize:
        found = sentence_transformers.normalized(found)
    return {"vectors": found, **arrays}


def _layer_number(layer: int, depth: int) -> int:
    """Returns a layer's number, with 0 for the embedding layer."""
    if not isinstance(layer, numbers.Integral):
        raise UsageError(f"`layers` {brief(layer)}: must be an integer")
    number = layer if layer >= 0 else depth + 1 + layer
    if not 0 <= number <= depth:
        raise UsageError(
            f"`layers` {layer}: the model has layers 1 to {depth}, and 0 for the embeddings"
        )
    return number


def recipe_of(
    checkpoint: LoadedCheckpoint,
    *,
    is_own: bool = False,
    pooling: str | None = None,
    normalize: bool | None = None,
) -> EmbeddingRecipe:
    """Returns the recipe of the checkpoint's directory or run, with the given values replaced.

    With `is_own`, `pooling` (None: mean) replaces the pooling and the steps after it.
    """
    directory, recipe = checkpoint.directory, EmbeddingRecipe()
    is_foreign = checkpoint.tokenizer != directory / TOKENIZER
    if is_foreign:
        recipe = sentence_transformers.read(directory, encoder_only=is_own)
    elif (of_run := sentence_transformers.recipe_of_run(checkpoint.config)) is not None:
        recipe = of_run
    if is_own and not is_foreign:
        recipe = dataclasses.replace(recipe, steps=())
    if is_own:
        recipe = dataclasses.replace(recipe, pooling=pooling or "mean")
    if normalize is not None:
        steps = tuple(step for step in recipe.steps if step != sentence_transformers.NORMALIZE)
        added = (sentence_transformers.NORMALIZE,) * normalize
        recipe = dataclasses.replace(recipe, steps=steps + added)
    if is_foreign and (directory / sentence_transformers.MODULES).is_file():
        note_once(f"{directory}: sentence-transformers model: {recipe.described()}")
    return recipe
