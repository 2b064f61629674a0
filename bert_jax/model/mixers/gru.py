"""A gated recurrence in both directions as a mixer.

Dims: B batch, L length, R positions that are read, D width, H = D / 2 width of a direction, G = 3 H
gates.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.model.layer_spec import LayerSpec
from bert_jax.model.layers import Linear, gather_positions
from bert_jax.model.mask import Mask
from bert_jax.model.mixers.mixer import Mixer
from bert_jax.model.sharding import stack

_DIRECTIONS = ("forward", "backward")


class GRU(Mixer):
    """A bidirectional GRU (Cho et al. 2014), in the form of `torch.nn.GRU`: each direction has half
    of the width, and begins anew with each sequence of a row.

    One step follows the other, so that the tensor axis of a mesh does not cut it: each device would
    wait for the others at each token.
    """

    def problems(self, model: ModelConfig) -> Iterator[tuple[str, str]]:
        yield from super().problems(model)
        if model.hidden_size % 2:
            yield "hidden_size", f"is {model.hidden_size}; each of two directions has half of it"

    def build(
        self, config: ModelConfig, layer: LayerSpec, *, rngs: nnx.Rngs
    ) -> dict[str, nnx.Module]:
        width, half = config.hidden_size, config.hidden_size // 2
        return {
            f"{direction}_{name}": Linear(
                inputs, 3 * half, config=config, rngs=rngs, has_bias=config.linear_bias
            )
            for direction in _DIRECTIONS
            for name, inputs in (("input", width), ("hidden", half))
        }

    def __call__(
        self,
        block: Any,
        x_BLD: jax.Array,
        x_BRD: jax.Array,
        *,
        mask: Mask,
        read_BR: jax.Array | None,
        **rest: Any,
    ) -> jax.Array:
        # Both directions go through one loop: the second one reads the row from its end.
        gates_2BLG = jnp.stack(
            [block.forward_input(x_BLD), jnp.flip(block.backward_input(x_BLD), axis=1)]
        )
        goes_on_2BL = jnp.stack([mask.has_neighbour(-1), jnp.flip(mask.has_neighbour(1), axis=1)])
        hidden = [getattr(block, f"{direction}_hidden") for direction in _DIRECTIONS]
        kernel_2HG = stack([linear.kernel[...] for linear in hidden]).astype(x_BLD.dtype)
        bias_2G = None
        if hidden[0].bias is not None:
            bias_2G = jnp.stack([linear.bias[...] for linear in hidden])

        def step(state_2BH: jax.Array, token: Any) -> tuple[jax.Array, jax.Array]:
            gates_2BG, goes_on_2B = token
            state_2BH = jnp.where(goes_on_2B[..., None], state_2BH, 0)
            mapped_2BG = jnp.einsum(
                "cbh,chg->cbg",
                state_2BH.astype(kernel_2HG.dtype),
                kernel_2HG,
                preferred_element_type=jnp.float32,
            )
            if bias_2G is not None:
                mapped_2BG = mapped_2BG + bias_2G[:, None]
            reset, update, new = jnp.split(gates_2BG.astype(jnp.float32), 3, axis=-1)
            by_reset, by_update, by_new = jnp.split(mapped_2BG, 3, axis=-1)
            update = jax.nn.sigmoid(update + by_update)
            new = jnp.tanh(new + jax.nn.sigmoid(reset + by_reset) * by_new)
            state_2BH = (1 - update) * new + update * state_2BH
            return state_2BH, state_2BH.astype(x_BLD.dtype)

        tokens = jnp.moveaxis(gates_2BLG, 2, 0), jnp.moveaxis(goes_on_2BL, 2, 0)
        half = x_BLD.shape[-1] // 2
        first_2BH = jnp.zeros_like(gates_2BLG[:, :, 0, :half], dtype=jnp.float32)
        _, states_L2BH = jax.lax.scan(step, first_2BH, tokens)
        forward, backward = states_L2BH[:, 0], jnp.flip(states_L2BH[:, 1], axis=0)
        y_BLD = jnp.moveaxis(jnp.concatenate([forward, backward], axis=-1), 0, 1)
        return y_BLD if read_BR is None else gather_positions(y_BLD, read_BR)

    def flops(self, model: ModelConfig, layer: LayerSpec, *, length: int, queries: int) -> int:
        half = model.hidden_size // 2
        return 2 * length * 2 * 3 * half * (model.hidden_size + half)


RECURRENCE = GRU()
