"""The base of the mixers, by which the tokens of a sequence exchange what they know.

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
    """One entry of `registry.MIXERS`: its parameters, what it computes, and what that costs.

    A mixer is built into each block. The last block computes only the positions that are read.
    """

    # "MODULE.PARAMETER" of `build` -> role, where the last name does not say it: kernels and
    # embeddings are decayed, biases and scales are not, and all are whole on each device.
    roles: Mapping[str, Role] = MappingProxyType({})

    def problems(self, model: ModelConfig) -> Iterator[tuple[str, str]]:
        """Yields the name of each field that a model with this mixer cannot have so, and why."""
        kind = model.position_embedding_type
        if POSITIONS[kind].is_in_attention():
            yield (
                "position_embedding_type",
                f"is {kind}, which works in attention only, and the mixer is {model.mixer.kind}; "
                "choose learned, sinusoidal or none",
            )
        if model.attention_window:
            yield (
                "attention_window",
                f"is {model.attention_window}, which mixer {model.mixer.kind} does not read",
            )

    def build(
        self, config: ModelConfig, layer: LayerSpec, *, rngs: nnx.Rngs
    ) -> dict[str, nnx.Module]:
        """Returns the modules that hold its parameters: subtrees of the layer, initialised."""
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
        """Returns what is added to the tokens at `read_BR`, `[B, R, D]`; None reads all L.

        `block` has the modules of `build` and `config`. `x_BLD` are all tokens and `x_BRD` those
        read; queries of `mask` are those read. A token may depend on tokens of its own sequence
        only. `key=None` means evaluation.
        """
        raise NotImplementedError

    def flops(self, model: ModelConfig, layer: LayerSpec, *, length: int, queries: int) -> int:
        """Returns the FLOPs of its matrix products for one row, of which `queries` are read."""
        raise NotImplementedError
