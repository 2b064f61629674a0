"""A convolution over the sequence as a mixer.

Dims: B batch, L length, R positions that are read, D width.
"""

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import Mixing, ModelConfig
from bert_jax.config.fields import Count, section, setting
from bert_jax.model.layer_spec import LayerSpec
from bert_jax.model.layers import Linear, gather_positions
from bert_jax.model.mask import Mask
from bert_jax.model.mixers.mixer import Mixer
from bert_jax.model.roles import ROWS


@section
class ConvolutionOptions(Mixing, kind="convolution"):
    """The options of a convolution."""

    # ConvBERT's field of transformers.
    conv_kernel_size: Count = setting(
        3, "Tokens that the convolution sees, with its own in the middle: odd."
    )


class Convolution(Mixer):
    """A full convolution, as in table 1 of Vaswani et al. 2017: each token is a linear map of the
    tokens within half a kernel of it, which are zero beyond the ends of its sequence
    (`torch.nn.Conv1d` with padding).
    """

    # The kernel is a matrix of all inputs of all places, and the tensor axis cuts these.
    roles = MappingProxyType({"convolution.kernel": ROWS})

    def problems(self, model: ModelConfig) -> Iterator[tuple[str, str]]:
        yield from super().problems(model)
        size = _size(model)
        if size % 2 == 0:
            yield (
                "mixer.conv_kernel_size",
                f"is {size}; choose an odd number, with the token in between",
            )

    def build(
        self, config: ModelConfig, layer: LayerSpec, *, rngs: nnx.Rngs
    ) -> dict[str, nnx.Module]:
        width, size = config.hidden_size, _size(config)
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
        side = _size(block.config) // 2
        near = [
            jnp.where(mask.has_neighbour(ahead)[..., None], jnp.roll(x_BLD, -ahead, axis=1), 0)
            for ahead in range(-side, side + 1)
        ]
        near_BLE = jnp.concatenate(near, axis=-1)
        return block.convolution(
            near_BLE if read_BR is None else gather_positions(near_BLE, read_BR)
        )

    def flops(self, model: ModelConfig, layer: LayerSpec, *, length: int, queries: int) -> int:
        return 2 * queries * _size(model) * model.hidden_size**2


def _size(model: ModelConfig) -> int:
    assert isinstance(model.mixer, ConvolutionOptions)
    return model.mixer.conv_kernel_size


CONVOLUTION = Convolution()
