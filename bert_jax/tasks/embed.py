"""Vectors of texts, from any layer of an encoder: one a text, or one a token."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from bert_jax.config import HeadConfig
from bert_jax.data.tasks.encode_rows import encode_texts
from bert_jax.data.tasks.tables import TextRow, read_text
from bert_jax.data.tokenizer.tokenizer import Tokenizer, load_tokenizer
from bert_jax.data.tokenizer.unknown import note_unknown_ids
from bert_jax.errors import UsageError
from bert_jax.model import sharding
from bert_jax.progress import Progress
from bert_jax.tasks.batch_inference import Forward
from bert_jax.workdir.load import LoadedCheckpoint, load_checkpoint

_BATCH = 64
_LENGTH = 128
POOLINGS = ("mean", "cls", "none")


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
    length: int | None = None,
    ignore_unexpected: Sequence[str] = (),
) -> dict[str, np.ndarray]:
    """Returns `vectors` of the lines of a file, and `offsets`, as `vectors_of` makes them.

    Lines without text have none; `lines` int64 `[N]` says which line, counted from 1, each is of,
    and `blank_lines` int64 `[]` how many have none.
    Raises UsageError for a file without lines.
    """
    # No other character ends a line, whatever str.splitlines says.
    split = read_text(texts).replace("\r\n", "\n").split("\n")
    numbers = [number for number, line in enumerate(split, 1) if line.strip()]
    lines = [split[number - 1] for number in numbers]
    if not lines:
        raise UsageError(f"{texts} has no lines")
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    with jax.set_mesh(mesh):
        source = load_checkpoint(
            checkpoint, mesh=mesh, allow_missing_heads=True, ignore_unexpected=ignore_unexpected
        )
    tokenizer = load_tokenizer(source.tokenizer)
    arrays = vectors_of(source, tokenizer, lines, layers=layers, pooling=pooling, length=length)
    # What follows the last line's end is no line.
    blank = len(split) - (split[-1] == "") - len(numbers)
    return arrays | {"lines": np.array(numbers, np.int64), "blank_lines": np.int64(blank)}


def forward_of(checkpoint: LoadedCheckpoint, layers: Sequence[int]) -> Forward:
    """Returns what computes the hidden states of some layers. Raises UsageError as `vectors_of`."""
    depth = checkpoint.config.model.num_hidden_layers
    return Forward(
        dataclasses.replace(checkpoint.config, head=HeadConfig(parts=())),
        "last_hidden_state",
        batch_size=_BATCH,
        layers=[_layer_number(layer, depth) for layer in layers],
        mesh=checkpoint.mesh,
    )


def vectors_of(
    checkpoint: LoadedCheckpoint,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    layers: Sequence[int] = (-1,),
    pooling: str = "mean",
    length: int | None = None,
    hidden: bool = False,
    forward: Forward | None = None,
) -> dict[str, np.ndarray]:
    """Returns vectors of texts: `vectors` float32 `[N, W]`, W = width x number of layers.

    `layers` count from 1 to the last one, 0 being the embeddings, negative ones from the end; the
    outputs of several are joined. "mean" is over all tokens of the text but padding, [CLS] and
    [SEP] included; "cls" takes the first; "none" gives `[tokens, W]` of all texts one after the
    other, and `offsets` int64 `[N + 1]`, where each begins. A text of more than `length` tokens is
    cut; by default that is 128, or what the model has positions for. `forward` is
    `forward_of(checkpoint, layers)`, which is compiled once for many calls. Raises UsageError for a
    layer that is not there, or a length that the model has no positions for. `hidden` shows no bar.
    """
    if pooling not in POOLINGS:
        raise UsageError(f"`pooling` {pooling}: choose one of {', '.join(POOLINGS)}")
    limit = checkpoint.config.model.max_position_embeddings
    length = min(_LENGTH, limit) if length is None else length
    if length > limit:
        raise UsageError(f"`length` {length}: the model has {limit} positions")
    forward = forward_of(checkpoint, layers) if forward is None else forward
    rows = [TextRow(f"text {i}", (text,), None, "") for i, text in enumerate(texts)]
    features = encode_texts(rows, tokenizer, length=length, truncation="longest_first")
    note_unknown_ids(features.input_ids, tokenizer.special)
    parts: list[np.ndarray] = []
    done = 0
    encoder = {"encoder": checkpoint.params["encoder"]}
    with Progress("embed", total=len(features), hidden=hidden) as progress:
        for hidden_NLW in forward.batches(encoder, features):
            lengths = features.lengths[done : done + len(hidden_NLW)]
            parts.append(_pooled(hidden_NLW, lengths, pooling))
            done += len(hidden_NLW)
            progress.advance(len(hidden_NLW))
    arrays = {"vectors": np.concatenate(parts)}
    if pooling == "none":
        arrays["offsets"] = np.concatenate([[0], np.cumsum(features.lengths)]).astype(np.int64)
    return arrays


def _layer_number(layer: int, depth: int) -> int:
    """Returns a layer's number from 0, the embeddings."""
    number = layer if layer >= 0 else depth + 1 + layer
    if not 0 <= number <= depth:
        raise UsageError(
            f"`layers` {layer}: the model has layers 1 to {depth}, and 0, the embeddings"
        )
    return number


def _pooled(hidden_NLW: np.ndarray, lengths_N: np.ndarray, pooling: str) -> np.ndarray:
    """Returns the part that is kept of some rows, whose hidden states are far larger."""
    if pooling == "cls":
        return hidden_NLW[:, 0].copy()
    is_token_NL = np.arange(hidden_NLW.shape[1]) < lengths_N[:, None]
    if pooling == "none":
        return hidden_NLW[is_token_NL]
    total = np.sum(hidden_NLW, axis=1, where=is_token_NL[..., None])
    return total / lengths_N[:, None].astype(np.float32)
