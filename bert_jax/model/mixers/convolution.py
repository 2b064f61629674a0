"""A convolution over the sequence as a mixer.

Dims: B batch, L length, R positions that are read, D width.
"""

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.config.entries import entry, options_of
from bert_jax.config.fields import SHAPE, setting
from bert_jax.model.layer_spec import LayerSpec
from bert_jax.model.layers import Linear, gather_positions
from bert_jax.model.mask import Mask
from bert_jax.model.mixers.mixer import Kept, Mixer
from bert_jax.model.roles import ROWS


@entry
class _Options:
    # ConvBERT's field of transformers.
    conv_kernel_size: int = setting(
        3, SHAPE, "Tokens that the convolution sees, itself in the middle: odd.", least=1
    )


class Convolution(Mixer):
    """A full convolution, as in table 1 of Vaswani et al. 2017: each token is a linear map of the
    tokens within half a kernel of it, which are zero beyond the ends of its sequence
    (`torch.nn.Conv1d` with padding).
    """

    Options = _Options
    # The kernel is a matrix of all inputs of all places, and the tensor axis cuts these.
    roles = MappingProxyType({"convolution.kernel": ROWS})

    def problems(self, model: ModelConfig) -> Iterator[tuple[str, str]]:
        yield from super().problems(model)
        size = options_of(model, self).conv_kernel_size
        if size % 2 == 0:
            yield "conv_kernel_size", f"is {size}; choose an odd number, with the token in between"

    def build(
        self, config: ModelConfig, layer: LayerSpec, *, rngs: nnx.Rngs
    ) -> dict[str, nnx.Module]:
        width, size = config.hidden_size, options_of(config, self).conv_kernel_size
        options = {"has_bias": config.linear_bias, "stddev": config.output_init}
        return {"convolution": Linear(size * width, width, config=config, rngs=rngs, **options)}

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
        side = options_of(block.config, self).conv_kernel_size // 2
        near = [
            jnp.where(mask.has_neighbour(ahead)[..., None], jnp.roll(x_BLD, -ahead, axis=1), 0)
            for ahead in range(-side, side + 1)
        ]
        near_BLE = jnp.concatenate(near, axis=-1)
        return block.convolution(
            near_BLE if read_BR is None else gather_positions(near_BLE, read_BR)
        )

    def flops(self, model: ModelConfig, layer: LayerSpec, *, length: int, queries: int) -> int:
        return 2 * queries * options_of(model, self).conv_kernel_size * model.hidden_size**2

    def kept(self, model: ModelConfig, *, length: int) -> Kept:
        return Kept(width=options_of(model, self).conv_kernel_size)


CONVOLUTION = Convolution()
