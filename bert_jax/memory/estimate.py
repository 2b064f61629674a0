"""Estimates, from shapes alone, how much memory a step takes: before it is compiled.

How many arrays a block keeps for the backward pass is counted in what the compilers of jax 0.10
made of such steps (`benchmarks/memory_estimate.py`, docs/plans.json), and rounded. The compiler's
own figure is exact, and comes later.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax.config import TrainConfig
from bert_jax.model import sharding
from bert_jax.model.attention.implementation import kept_scores
from bert_jax.model.attention.need import adds_to_scores
from bert_jax.model.heads.part import EVERY, Part
from bert_jax.registry import OBJECTIVES, PARTS
from bert_jax.update.state import TrainState


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Bytes on one device."""

    weights: int
    moments: int
    # Their sum over microbatches, and the working copies of the weights.
    gradients: int
    copies: int
    # What the blocks keep of a microbatch, and the scores of its predictions over the vocabulary.
    activations: int
    logits: int

    @property
    def total(self) -> int:
        return sum(vars(self).values())

    @property
    def beside_state(self) -> int:
        return self.total - self.weights - self.moments


class _Arrays(NamedTuple):
    """How many arrays [B, L, D], [B, L, F] and [B, H, L, L] there are."""

    width: float
    inner: float
    scores: float


# For the backward pass of one block, beside those of its mixer. What is cheap is not kept but
# computed again, by a TPU's compiler more than by a CPU's; in a loop all is kept that jax asks for.
_UNROLLED = {"cpu": _Arrays(11, 3, 2), "tpu": _Arrays(5, 2, 1)}
# Of GPUs, on which they were not counted: those of a TPU that still wrote scores in float32.
_UNROLLED_ELSEWHERE = _Arrays(8, 3, 0.5)
_LOOP = _Arrays(15, 5, 1)
_REMATERIALISED = {"dots": _Arrays(2, 1, 0), "full": _Arrays(1, 0, 0)}
# More arrays of scores, where the derivative is left to jax.
_PLAIN_ATTENTION = 2
# In one block, where nothing is kept for a backward pass.
_FORWARD = _Arrays(0, 3, 2)
_EMBEDDINGS = 3  # arrays [B, L, D]
_LOGITS = 2  # forward, and softmax or derivative
# Threads, programs and buffers of XLA; by benchmarks/memory_estimate.py.
_PROCESS = 64 * 2**20


def of_train_step(
    config: TrainConfig, state: TrainState, batch: Mapping[str, Any], *, mesh: Mesh, platform: str
) -> MemoryEstimate:
    """Returns the estimate for a state and a global batch of these arrays, or descriptions of them.

    `platform` is that of the devices.
    """
    compute, pieces = config.compute, config.optimizer.gradient_accumulation_steps
    networks = [
        _Sizes(network, batch, mesh=mesh, platform=platform, pieces=pieces)
        for network in OBJECTIVES[config.objective].networks(config)
    ]
    length = batch["input_ids"].shape[1]
    block, loop = (
        _of_model(arrays, config, length, mesh)
        for arrays in (_UNROLLED.get(platform, _UNROLLED_ELSEWHERE), _LOOP)
    )
    kept, again = loop if compute.layers == "scan" else block, 0.0
    if is_rematerialised(config, platform=platform):
        kept = _of_model(_REMATERIALISED[compute.remat], config, length, mesh)
        again = max(sizes.block(block) for sizes in networks)
    is_plain = compute.attention == "plain" or adds_to_scores(config.model)
    if is_plain and kept.scores and platform != "cpu":
        kept = kept._replace(scores=kept.scores + _PLAIN_ATTENTION)
    activations = again
    for sizes in networks:
        activations += sizes.blocks * sizes.block(kept) + sizes.last_block(kept)
        activations += sizes.block(_Arrays(_EMBEDDINGS, 0, 0))
    weights = sharding.bytes_per_device(state.params)
    table = max(map(sharding.bytes_per_device, jax.tree.leaves(state.params)))
    logits = _LOGITS * networks[0].logits
    # The gradients grow while the activations go; the word embedding has two, which are added, and
    # the first comes before all of the rest. A sum over microbatches is there all the time.
    gradients = table
    if pieces > 1:
        gradients += weights
    else:
        gradients += max(0, weights - table - int(activations + logits))
    return MemoryEstimate(
        weights=weights,
        moments=sharding.bytes_per_device(state.opt_state),
        gradients=gradients,
        copies=_copies(config, state.params, mesh=mesh, is_wide_too=platform == "cpu"),
        activations=int(activations),
        logits=int(logits),
    )


def _of_model(arrays: _Arrays, config: TrainConfig, length: int, mesh: Mesh) -> _Arrays:
    """Returns the arrays of a block with those of its mixer, and of the gate and what it gates."""
    model = config.model
    if not arrays.inner:  # nothing is kept but the block's input
        return arrays
    gated = min(arrays.inner, 2) if model.feed_forward == "gated" else 0
    mixer = model.mixer.entry().kept(model, length=length)
    distances = mixer.distances if arrays.scores else 0
    device = mesh.abstract_mesh.abstract_device
    kind = "" if device is None else device.device_kind
    compute = config.compute
    whole = kept_scores(
        compute.attention, model, length=length, device_kind=kind, dtype=compute.dtype
    )
    return _Arrays(
        arrays.width + mixer.width,
        arrays.inner + gated,
        arrays.scores * mixer.scores * whole + distances,
    )


def of_evaluation_step(
    config: TrainConfig, state: TrainState, batch: Mapping[str, Any], *, mesh: Mesh, platform: str
) -> MemoryEstimate:
    """Returns the same for a forward pass, which is made while the state is there."""
    # One network after the other, of which the encoder is the larger.
    sizes = _Sizes(config, batch, mesh=mesh, platform=platform, pieces=1)
    # The logits come when the last block has gone.
    arrays = _of_model(_FORWARD, config, batch["input_ids"].shape[1], mesh)
    block, logits = sizes.block(arrays), _LOGITS * sizes.logits
    return MemoryEstimate(
        weights=sharding.bytes_per_device(state.params),
        moments=sharding.bytes_per_device(state.opt_state),
        gradients=0,
        copies=_copies(config, state.params, mesh=mesh),
        activations=int(max(block - logits, 0)),
        logits=int(logits),
    )


def saved_bytes(state: TrainState, *, platform: str) -> int:
    """Returns the bytes for each device of the copy that a save in the background writes from.

    Devices but a CPU's have memory of their own, which it does not lie in.
    """
    return sharding.bytes_per_device(state) if platform == "cpu" else 0


def process_bytes(*, platform: str) -> int:
    """Returns what a process takes beside the arrays of its steps, whatever their shapes.

    Devices but a CPU's have memory of their own, which it does not lie in.
    """
    return _PROCESS if platform == "cpu" else 0


def is_rematerialised(config: TrainConfig, *, platform: str) -> bool:
    """Returns whether `compute.remat` has an effect.

    The CPU's compiler finds what is computed twice in layers that are written out, and keeps it
    after all; in a loop it cannot.
    """
    in_effect = platform != "cpu" or config.compute.layers == "scan"
    return config.compute.remat != "none" and in_effect


class _Sizes:
    """Bytes of the arrays of one microbatch on one device, in one network."""

    def __init__(
        self,
        config: TrainConfig,
        batch: Mapping[str, Any],
        *,
        mesh: Mesh,
        platform: str,
        pieces: int,
    ):
        model, tensor = config.model, mesh.shape["tensor"]
        self.blocks = model.num_hidden_layers - 1
        rows, self._length = batch["input_ids"].shape
        rows /= sharding.row_shards(mesh) * pieces
        # The CPU's back end has no products in bfloat16, and keeps what it makes in float32.
        item = 4 if platform == "cpu" else jnp.dtype(config.compute.dtype).itemsize
        self._width = rows * model.hidden_size * item
        self._inner = rows * model.intermediate_size * item / tensor
        self._scores = rows * model.num_attention_heads * self._length * item / tensor
        self._read = _positions_read(config, batch)
        predictions = batch["mlm_positions"].shape[1] if "mlm_positions" in batch else 0
        # The generator's scores are always whole.
        self.logits = rows * predictions * model.vocab_size * 4 / tensor
        self.logits /= config.compute.loss_slices

    def block(self, arrays: _Arrays, *, positions: int | None = None) -> float:
        """Returns the bytes of the arrays of a block that computes so many positions of a row."""
        positions = self._length if positions is None else positions
        width, inner, scores = (
            n * size
            for n, size in zip(arrays, (self._width, self._inner, self._scores), strict=True)
        )
        return positions * (width + inner + scores)

    def last_block(self, arrays: _Arrays) -> float:
        """Returns the same of the last block: keys and values of all positions, else those read."""
        read = self.block(arrays, positions=min(self._read, self._length))
        everywhere = 0 if self._read >= self._length else 2 * self._width * self._length
        return read + everywhere


def _positions_read(config: TrainConfig, batch: Mapping[str, Any]) -> int:
    """Returns how many positions of a row the parts read."""
    shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in batch.items()}
    read = 0
    for name in config.head.parts:
        part = PARTS[name].of(config.model)
        if part.needs is not None:
            continue
        found = jax.eval_shape(lambda batch, part=part: _where(part, batch), shapes)
        read += shapes["input_ids"].shape[1] if found is None else found.shape[1]
    return read


def _where(part: Part, batch: Any) -> Any:
    """Returns the positions that a part reads; None where that is every one."""
    where = part.positions(batch)
    if where is EVERY:
        return None
    return jnp.zeros((1, 0)) if where is None else where


def _copies(config: TrainConfig, params: Any, *, mesh: Mesh, is_wide_too: bool = False) -> int:
    """Returns the bytes of the working copies of the weights, where they are not as stored.

    `is_wide_too` says that for its products the compiler makes bfloat16 float32 again.
    """
    item = jnp.dtype(config.compute.dtype).itemsize
    if item == 2 and is_wide_too:
        item += 4

    def size(path: Any, leaf: Any) -> int:
        cut = sharding.compute_spec(path, leaf.shape, mesh=mesh) != jax.P()
        return math.prod(leaf.shape) * item // (mesh.shape["tensor"] if cut else 1)

    def all_of(tree: Any) -> int:
        return sum(jax.tree.leaves(jax.tree_util.tree_map_with_path(size, tree)))

    encoder = params["encoder"]
    networks = [encoder, *(part["encoder"] for part in params.values() if "encoder" in part)]
    blocks = sum(
        all_of({name: part for name, part in network.items() if name.startswith("layer_")})
        for network in networks
    )
    # In a loop they are stacked, and so are their gradients.
    stacked = 2 * blocks if config.compute.layers == "scan" else 0
    is_cut = config.mesh.shard_weights and sharding.fsdp_size(mesh) > 1
    if item == 4 and not is_cut:
        return stacked
    if config.compute.gather == "per_layer":
        # One is used while the next one comes.
        return stacked + all_of(params) - blocks + 2 * all_of(encoder["layer_0"])
    return stacked + all_of(params)
