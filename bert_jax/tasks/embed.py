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

    `layers` count from 1 to the last one, 0 being the embeddings, negative ones from the end; the
    outputs of several are joined. "mean" is over all tokens of the text but padding, [CLS] and
    [SEP] included; "cls" takes the first; "none" gives `[tokens, W]` of all texts one after the
    other, and `offsets` int64 `[N + 1]`, where each begins. Raises UsageError for a layer that is
    not there or a file without lines.
    """
    lines = [line for line in read_text(texts).splitlines() if line.strip()]
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
        found = []
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
            found.append(forward({"encoder": encoder}, features))
    hidden_NLW = np.concatenate(found, axis=-1)
    is_token_NL = np.arange(length) < features.lengths[:, None]
    if pooling == "none":
        offsets = np.concatenate([[0], np.cumsum(features.lengths)]).astype(np.int64)
        return {"vectors": hidden_NLW[is_token_NL], "offsets": offsets}
    if pooling == "cls":
        return {"vectors": hidden_NLW[:, 0]}
    total = np.sum(hidden_NLW, axis=1, where=is_token_NL[..., None])
    return {"vectors": total / features.lengths[:, None].astype(np.float32)}
