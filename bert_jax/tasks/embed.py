"""Vectors of texts, from any layer of an encoder: one a text, or one a token."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from bert_jax.config import HeadConfig
from bert_jax.data import tokenizer as tokenizers
from bert_jax.data.features import encode_texts
from bert_jax.data.task_files import TextRow, read_text
from bert_jax.errors import UsageError
from bert_jax.model import sharding
from bert_jax.progress import Progress
from bert_jax.tasks.forward import Forward
from bert_jax.training import workdir

_BATCH = 64


def save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """A NumPy archive that appears whole."""
    building = path.with_name(f"{path.name}.new.npz")
    np.savez(building, **arrays)  # pyright: ignore[reportArgumentType]
    building.replace(path)


def embed(
    checkpoint: Path | str,
    texts: Path,
    *,
    layers: Sequence[int] = (-1,),
    pooling: str = "mean",
    length: int = 128,
) -> dict[str, np.ndarray]:
    """Vectors of the lines of a file: `vectors` float32 `[N, W]`, W = width x number of layers.

    Lines without text have none; `lines` int64 `[N]` says which line, counted from 1, each is of.

    `layers` count from 1 to the last one, 0 being the embeddings, negative ones from the end; the
    outputs of several are joined. "mean" is over all tokens of the text but padding, [CLS] and
    [SEP] included; "cls" takes the first; "none" gives `[tokens, W]` of all texts one after the
    other, and `offsets` int64 `[N + 1]`, where each begins. Raises UsageError for a layer that is
    not there or a file without lines.
    """
    # No other character ends a line, whatever str.splitlines says.
    split = read_text(texts).replace("\r\n", "\n").split("\n")
    numbers = [number for number, line in enumerate(split, 1) if line.strip()]
    lines = [split[number - 1] for number in numbers]
    if not lines:
        raise UsageError(f"{texts} has no lines")
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    with jax.set_mesh(mesh):
        source = workdir.load_checkpoint(checkpoint, mesh=mesh, allow_missing_heads=True)
        config = dataclasses.replace(source.config, head=HeadConfig(parts=()))
        depth, limit = config.model.num_hidden_layers, config.model.max_position_embeddings
        if length > limit:
            raise UsageError(f"--length {length}: the model has {limit} positions")
        rows = [TextRow(f"{texts}", (line,), None, "") for line in lines]
        features = encode_texts(
            rows, tokenizers.load(source.tokenizer), length=length, truncation="longest_first"
        )
        runs = []
        for layer in layers:
            number = layer if layer >= 0 else depth + 1 + layer
            if not 0 <= number <= depth:
                raise UsageError(
                    f"--layers {layer}: the model has layers 1 to {depth}, and 0, the embeddings"
                )
            model = dataclasses.replace(config.model, num_hidden_layers=number)
            names = {f"layer_{i}" for i in range(number, depth)}
            encoder = {k: v for k, v in source.params["encoder"].items() if k not in names}
            cut = dataclasses.replace(config, model=model)
            forward = Forward(cut, "hidden_states", batch_size=_BATCH)
            runs.append(forward.batches({"encoder": encoder}, features))
        parts: list[np.ndarray] = []
        done = 0
        with Progress("embed", total=len(features)) as progress:
            for of_layers in zip(*runs, strict=True):
                hidden_NLW = np.concatenate(of_layers, axis=-1)
                lengths = features.lengths[done : done + len(hidden_NLW)]
                parts.append(_pooled(hidden_NLW, lengths, pooling))
                done += len(hidden_NLW)
                progress.advance(len(hidden_NLW))
    arrays = {"vectors": np.concatenate(parts), "lines": np.array(numbers, np.int64)}
    if pooling == "none":
        arrays["offsets"] = np.concatenate([[0], np.cumsum(features.lengths)]).astype(np.int64)
    return arrays


def _pooled(hidden_NLW: np.ndarray, lengths_N: np.ndarray, pooling: str) -> np.ndarray:
    """What is kept of some rows, whose hidden states are far larger than that."""
    if pooling == "cls":
        return hidden_NLW[:, 0].copy()
    is_token_NL = np.arange(hidden_NLW.shape[1]) < lengths_N[:, None]
    if pooling == "none":
        return hidden_NLW[is_token_NL]
    total = np.sum(hidden_NLW, axis=1, where=is_token_NL[..., None])
    return total / lengths_N[:, None].astype(np.float32)
