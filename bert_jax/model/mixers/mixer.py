"""The base of the mixers, which exchange information between the tokens of a sequence.

Dims: B batch, L length, R positions that are read, D width, H heads, K head size.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.model.dropout import DropoutKey
from bert_jax.model.layer_spec import LayerSpec
from bert_jax.model.mask import Mask
from bert_jax.model.positions import Position
from bert_jax.model.roles import Role
from bert_jax.registry import POSITIONS


class Mixer:
    """One entry of `registry.MIXERS`: its parameters, computation and FLOPs.

    A mixer is built into each block. The last block computes only the positions that are read.
    """

    # "MODULE.PARAMETER" of `build` -> role, if the last name does not determine it: by default
    # kernels and embeddings are decayed, biases and scales are not, and none is sharded.
    roles: Mapping[str, Role] = MappingProxyType({})

    def problems(self, model: ModelConfig) -> Iterator[tuple[str, str]]:
        """Yields the name of each field with a value that this mixer does not support, and why."""
        kind = model.position_embedding_type
        if POSITIONS[kind].is_in_attention():
            yield (
                "position_embedding_type",
                f"is {kind}, which only attention supports, but the mixer is {model.mixer.kind}; "
                "choose learned, sinusoidal or none",
            )
        if model.attention_window:
            yield (
                "attention_window",
                f"is {model.attention_window}, which mixer {model.mixer.kind} ignores; unset it",
            )

    def build(
        self, config: ModelConfig, layer: LayerSpec, *, rngs: nnx.Rngs
    ) -> dict[str, nnx.Module]:
        """Returns the modules with its parameters, initialized: subtrees of the layer."""
        raise NotImplementedError

    def __call__(
        self,
        block: Any,
        x_BLD: jax.Array,
        x_BRD: jax.Array,
        *,
        mask: Mask,
        position: Position,
        attend: Callable[..., jax.Array],
        key: DropoutKey | None,
        read_BR: jax.Array | None,
    ) -> jax.Array:
        """Returns the term to add to the tokens at `read_BR`, `[B, R, D]`; None reads all L.

        `block` has the modules of `build` and `config`. `x_BLD` are all tokens and `x_BRD` those
        read, which are the queries of `mask`. A token may only depend on tokens of the same
        sequence. `key=None` means evaluation.
        """
        raise NotImplementedError

    def flops(self, model: ModelConfig, layer: LayerSpec, *, length: int, queries: int) -> int:
        """Returns the FLOPs of its matmuls for one row with `queries` positions that are read."""
        raise NotImplementedError
