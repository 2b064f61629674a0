"""The mixers and scores of the studies of layer types, which the core does not have.

`studies/layer_types.py` trains with them. To use one in another run, name this file with
`--extend`, and the entry with `--set model.mixer=gru` or `--set model.mixer.score=additive`.

Dims: B batch, L length of the queries or of a row, S length of the keys, R positions that are read,
D width, H heads (in a GRU D / 2, the width of a direction), K head size, G = 3 H gates.
"""

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax import config_loader
from bert_jax.config import Mixing, ModelConfig, TrainConfig
from bert_jax.config.fields import Count, section, setting
from bert_jax.model.layer_spec import LayerSpec
from bert_jax.model.layers import Linear, gather_positions, truncated_normal
from bert_jax.model.mask import Mask
from bert_jax.model.mixers import Mixer
from bert_jax.model.mixers.scores import Score
from bert_jax.model.roles import ROWS, Role
from bert_jax.model.sharding import stack
from bert_jax.registry import MIXERS, SCORES


def config() -> TrainConfig:
    """Returns the config of the demo, as the base of the studies."""
    return config_loader.load_config("tiny_docs_cpu")


# --- mixers --------------------------------------------------------------------------------------


def _has_neighbor(mask: Mask, ahead: int) -> jax.Array:
    """Returns bool `[B, L]`: whether the column `ahead` of a token, or before it if negative, has a
    token of the same sequence at that distance. Columns beyond an end are read from the other end.
    """
    ids, positions = (
        jnp.roll(x_BS, -ahead, axis=1) for x_BS in (mask.key_ids_BS, mask.key_positions_BS)
    )
    return (ids == mask.key_ids_BS) & (positions - mask.key_positions_BS == ahead)


@section
class ConvolutionOptions(Mixing, kind="convolution"):
    """The options of a convolution."""

    # ConvBERT's field of transformers.
    conv_kernel_size: Count = setting(
        3, "Tokens that the convolution reads, the token itself in the middle: odd."
    )


class Convolution(Mixer):
    """A full convolution, as in table 1 of Vaswani et al. 2017: each token is a linear map of the
    tokens within half a kernel, with zeros beyond the ends of its sequence (`torch.nn.Conv1d` with
    padding).
    """

    # The kernel is a matrix of all inputs of all places; the tensor axis cuts the inputs.
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
            jnp.where(_has_neighbor(mask, ahead)[..., None], jnp.roll(x_BLD, -ahead, axis=1), 0)
            for ahead in range(-side, side + 1)
        ]
        near_BLE = jnp.concatenate(near, axis=-1)
        return block.convolution(
            near_BLE if read_BR is None else gather_positions(near_BLE, read_BR)
        )

    def flops(self, model: ModelConfig, layer: LayerSpec, *, length: int, queries: int) -> int:
        return 2 * queries * _size(model) * model.hidden_size**2


def _size(model: ModelConfig) -> int:
    options: Any = model.mixer
    return options.conv_kernel_size


MIXERS.register("convolution", Convolution())


_DIRECTIONS = ("forward", "backward")


class GRU(Mixer):
    """A bidirectional GRU (Cho et al. 2014), in the form of `torch.nn.GRU`: each direction has half
    of the width, and restarts with each sequence of a row.

    The tensor axis of a mesh does not cut it: each device would wait for the others at each token.
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
        # One loop computes both directions: the second direction reads the row from its end.
        gates_2BLG = jnp.stack(
            [block.forward_input(x_BLD), jnp.flip(block.backward_input(x_BLD), axis=1)]
        )
        continues_2BL = jnp.stack(
            [_has_neighbor(mask, -1), jnp.flip(_has_neighbor(mask, 1), axis=1)]
        )
        hidden = [getattr(block, f"{direction}_hidden") for direction in _DIRECTIONS]
        kernel_2HG = stack([linear.kernel[...] for linear in hidden]).astype(x_BLD.dtype)
        bias_2G = None
        if hidden[0].bias is not None:
            bias_2G = jnp.stack([linear.bias[...] for linear in hidden])

        def step(state_2BH: jax.Array, token: Any) -> tuple[jax.Array, jax.Array]:
            gates_2BG, continues_2B = token
            state_2BH = jnp.where(continues_2B[..., None], state_2BH, 0)
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

        tokens = jnp.moveaxis(gates_2BLG, 2, 0), jnp.moveaxis(continues_2BL, 2, 0)
        half = x_BLD.shape[-1] // 2
        first_2BH = jnp.zeros_like(gates_2BLG[:, :, 0, :half], dtype=jnp.float32)
        _, states_L2BH = jax.lax.scan(step, first_2BH, tokens)
        forward, backward = states_L2BH[:, 0], jnp.flip(states_L2BH[:, 1], axis=0)
        y_BLD = jnp.moveaxis(jnp.concatenate([forward, backward], axis=-1), 0, 1)
        return y_BLD if read_BR is None else gather_positions(y_BLD, read_BR)

    def flops(self, model: ModelConfig, layer: LayerSpec, *, length: int, queries: int) -> int:
        half = model.hidden_size // 2
        return 2 * length * 2 * 3 * half * (model.hidden_size + half)


MIXERS.register("gru", GRU())


# --- scores --------------------------------------------------------------------------------------

# A matrix or vector per head; the tensor axis cuts between heads.
_BY_HEADS = Role(is_decayed=True, in_compute_type=True, tensor_dim=0)


class DotProduct(Score):
    """q k, not scaled (Luong et al. 2015)."""

    def __call__(
        self, q_BHKL: jax.Array, k_BHKS: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        return q_BHKL * q_BHKL.shape[2] ** 0.5, k_BHKS, None


class General(DotProduct):
    """q W k with a matrix for each head, not scaled (Luong et al. 2015, "general")."""

    roles = MappingProxyType({"score.kernel": _BY_HEADS})

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.kernel = _matrix(config, rngs=rngs)

    def __call__(
        self, q_BHKL: jax.Array, k_BHKS: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        return super().__call__(_mapped(self.kernel, q_BHKL), k_BHKS)

    @staticmethod
    def flops(model: ModelConfig, *, length: int, queries: int, keys: int) -> int:
        maps = 2 * queries * model.hidden_size * _head_size(model)
        return maps + Score.flops(model, length=length, queries=queries, keys=keys)


class Additive(Score):
    """v tanh(W q + U k) with two matrices and a vector for each head (Bahdanau et al. 2015)."""

    roles = MappingProxyType(
        {f"score.{name}": _BY_HEADS for name in ("query_kernel", "key_kernel", "vector")}
    )
    is_added = True

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.query_kernel = _matrix(config, rngs=rngs)
        self.key_kernel = _matrix(config, rngs=rngs)
        shape = (config.num_attention_heads, _head_size(config))
        self.vector = truncated_normal(rngs, shape, stddev=config.initializer_range)

    def __call__(
        self, q_BHKL: jax.Array, k_BHKS: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        queries = _mapped(self.query_kernel, q_BHKL).astype(jnp.float32)
        keys = _mapped(self.key_kernel, k_BHKS).astype(jnp.float32)
        vector_HK = self.vector[...].astype(jnp.float32)

        # One column at a time, computed again in the backward pass: all columns together are an
        # array [B, H, K, L, S].
        @jax.checkpoint
        def term(q_BHL: jax.Array, k_BHS: jax.Array, v_H: jax.Array) -> jax.Array:
            return v_H[:, None, None] * jnp.tanh(q_BHL[..., None] + k_BHS[..., None, :])

        def add(scores_BHLS, column):
            return scores_BHLS + term(*column), None

        columns = jnp.moveaxis(queries, 2, 0), jnp.moveaxis(keys, 2, 0), vector_HK.T
        first = jnp.zeros_like(queries[:, :, 0, :, None] + keys[:, :, 0, None])
        scores_BHLS, _ = jax.lax.scan(add, first, columns)
        # The whole score is in the added term.
        return jnp.zeros_like(q_BHKL[:, :, :1]), jnp.zeros_like(k_BHKS[:, :, :1]), scores_BHLS

    @staticmethod
    def flops(model: ModelConfig, *, length: int, queries: int, keys: int) -> int:
        maps = 2 * (queries + length) * model.hidden_size * _head_size(model)
        return maps + Score.flops(model, length=length, queries=queries, keys=keys)


def _head_size(model: ModelConfig) -> int:
    return model.hidden_size // model.num_attention_heads


def _matrix(config: ModelConfig, *, rngs: nnx.Rngs) -> nnx.Param:
    shape = (config.num_attention_heads, _head_size(config), _head_size(config))
    return truncated_normal(rngs, shape, stddev=config.initializer_range)


def _mapped(kernel: nnx.Param, x_BHKL: jax.Array) -> jax.Array:
    """Returns the product of the vectors of each head and its matrix `[H, K, K]`, inputs first."""
    return jnp.einsum("hkj,bhkl->bhjl", kernel[...].astype(x_BHKL.dtype), x_BHKL)


SCORES.register("dot_product", DotProduct)
SCORES.register("general", General)
SCORES.register("additive", Additive)
