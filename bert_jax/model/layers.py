"""Embeddings, linear layers and normalization: the layers of the encoder and its heads.

Dims: B batch, L length, D width, H heads, K head size, F feed-forward width, V vocabulary.
Parameters are float32 and named as in Flax (`kernel`, `bias`, `scale`, `embedding`); a matmul is
computed in the type of its input.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.model.dropout import DropoutKey, dropout
from bert_jax.model.sharding import (
    axes_summed_late,
    is_on_cpu,
    is_on_gpu,
    mesh_size,
    over_batch,
    reshaped,
    spec_of,
)
from bert_jax.registry import POSITIONS


def truncated_normal(rngs: nnx.Rngs, shape: tuple[int, ...], *, stddev: float) -> nnx.Param:
    """Returns BERT's initial weights: a normal distribution truncated at two standard deviations
    (TF's `truncated_normal_initializer`).

    As in the original, the truncation is not compensated: the actual standard deviation is 0.8796
    `stddev`.
    """
    return nnx.Param(stddev * jax.random.truncated_normal(rngs.params(), -2.0, 2.0, shape))


class Linear(nnx.Module):
    """A linear layer from `inputs` to `outputs` features, with three output layouts.

    The kernel has two dims, even if the outputs are heads: a TPU stores arrays in tiles of 8 x 128,
    and a last dim of 64 would leave half of each tile empty. For the same reason queries, keys and
    values are columns, with the length last (benchmarks/results/tpu-steps.md). The tensor axis
    shards the inputs or the outputs of a kernel.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        config: ModelConfig,
        rngs: nnx.Rngs,
        has_bias: bool = True,
        is_bias_trained: bool = True,
        stddev: float | None = None,
    ):
        """`stddev` replaces `config.initializer_range`."""
        self.is_bias_trained = is_bias_trained
        stddev = config.initializer_range if stddev is None else stddev
        self.kernel = truncated_normal(rngs, (inputs, outputs), stddev=stddev)
        self.bias = nnx.Param(jnp.zeros(outputs, jnp.float32)) if has_bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, ..., inputs]` to `[B, ..., outputs]`."""
        return self._mapped(x)

    def scores(self, x: jax.Array) -> jax.Array:
        """Maps `[B, ..., inputs]` to `[B, ..., outputs]` in float32, whatever the type of `x`."""
        return self._mapped(x, jnp.float32)

    def _mapped(self, x: jax.Array, dtype: Any = None) -> jax.Array:
        kernel = self.kernel[...].astype(x.dtype)
        cut_in, cut_out = spec_of(kernel)
        leading = x.shape[:-1]
        # XLA's CPU backend computes a product of two matrices 1.5 times as fast as the same product
        # with more dims.
        flat = reshaped(x, (math.prod(leading), x.shape[-1]), cut_in)
        cut = over_batch(cut_out)
        y = jnp.matmul(flat, kernel, out_sharding=cut, preferred_element_type=dtype)
        y = self._plus_bias(y)
        return reshaped(y, (*leading, y.shape[-1]), *(None,) * (len(leading) - 1), cut_out)

    def to_columns(self, x_BLD: jax.Array) -> jax.Array:
        """Maps `[B, L, inputs]` to `[B, outputs, L]`."""
        kernel = self.kernel[...].astype(x_BLD.dtype)
        cut = over_batch(spec_of(kernel)[1])
        y_BDL = jnp.einsum("bld,de->bel", x_BLD, kernel, out_sharding=cut)
        return self._plus_bias(y_BDL, (slice(None), None))

    def from_columns(self, x_BDL: jax.Array) -> jax.Array:
        """Maps `[B, inputs, L]` to `[B, L, outputs]`; sharded inputs are summed over devices."""
        kernel = self.kernel[...].astype(x_BDL.dtype)
        y_BLD = jnp.einsum("bdl,de->ble", x_BDL, kernel, out_sharding=over_batch())
        return self._plus_bias(y_BLD)

    def _plus_bias(self, y: jax.Array, dims: Any = ...) -> jax.Array:
        if self.bias is None:
            return y
        bias = self.bias[...].astype(y.dtype)
        return y + (bias if self.is_bias_trained else jax.lax.stop_gradient(bias))[dims]


class Norm(nnx.Module):
    """Normalizes the last dim in float32; returns the type of its input.

    LayerNorm (Ba et al. 2016), with or without bias, or RMSNorm (Zhang & Sennrich 2019), which does
    not subtract the mean.
    """

    def __init__(self, size: int, *, config: ModelConfig, kind: str | None = None):
        """`kind` replaces `config.norm`."""
        self.epsilon = config.layer_norm_eps
        self.is_centred = (kind or config.norm) == "layernorm"
        has_bias = self.is_centred and config.norm_bias
        self.scale = nnx.Param(jnp.ones(size, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(size, jnp.float32)) if has_bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        if self.is_centred:
            wide = wide - jnp.mean(wide, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        scaled = wide * jax.lax.rsqrt(variance + self.epsilon) * self.scale[...]
        return (scaled if self.bias is None else scaled + self.bias[...]).astype(x.dtype)


class Embed(nnx.Module):
    """A table of vectors for lookups and, with tied output weights, for the output matmul."""

    def __init__(self, rows: int, size: int, *, config: ModelConfig, rngs: nnx.Rngs):
        self.embedding = truncated_normal(rngs, (rows, size), stddev=config.initializer_range)

    def __call__(self, ids_BL: jax.Array) -> jax.Array:
        return look_up(self.embedding[...], ids_BL)

    def logits(self, x: jax.Array, bias_V: jax.Array) -> jax.Array:
        """Returns the float32 scores `[..., V]` of `x` `[..., D]` against every row, plus a bias.

        Tensor parallelism shards the rows, padded with zeros to a multiple of the devices.
        """
        table = self.columns(x.dtype)
        flat = reshaped(x, (math.prod(x.shape[:-1]), x.shape[-1]))
        cut = spec_of(table)[0]
        product: Any = _scores_on_gpu if is_on_gpu() else _scores
        scores: Any = product(flat, table, over_batch(cut))
        if is_on_cpu():
            ones_N1 = jnp.ones_like(flat[:, :1], jnp.float32)
            scores = _plus_on_cpu(scores, bias_V, ones_N1, over_batch(cut))
        else:
            scores += bias_V
        shape = (*x.shape[:-1], table.shape[0])
        return reshaped(scores, shape, *(None,) * (x.ndim - 2), cut)

    def columns(self, dtype: jnp.dtype) -> jax.Array:
        """Returns the table `[V, D]` that `logits` multiplies with."""
        return split_rows(self.embedding[...].astype(dtype), fill=0)


def _scores(
    x_ND: jax.Array, table_VD: jax.Array, sharding: Any, dtype: Any = jnp.float32
) -> jax.Array:
    """Returns the products of all pairs of rows, `[N, V]`."""
    dims = (((1,), (1,)), ((), ()))
    return jax.lax.dot_general(
        x_ND, table_VD, dims, preferred_element_type=dtype, out_sharding=sharding
    )


# For GPUs the derivative is written out, so that its matmuls are in the compute type as all others
# are: given float32 gradients, JAX would multiply in float32. A TPU rounds the factors of such a
# matmul itself.


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _scores_on_gpu(x_ND: jax.Array, table_VD: jax.Array, sharding: Any) -> jax.Array:
    return _scores(x_ND, table_VD, sharding)


def _scores_forward(x_ND, table_VD, sharding):
    return _scores_on_gpu(x_ND, table_VD, sharding), (x_ND, table_VD)


def _scores_backward(sharding, factors, gradient):
    x_ND, table_VD = factors
    product = partial(_scores, sharding=sharding, dtype=x_ND.dtype)
    gradient = gradient.astype(x_ND.dtype)
    (of_x_ND,) = jax.linear_transpose(lambda x: product(x, table_VD), x_ND)(gradient)
    (of_table_VD,) = jax.linear_transpose(lambda table: product(x_ND, table), table_VD)(gradient)
    return of_x_ND, of_table_VD


_scores_on_gpu.defvjp(_scores_forward, _scores_backward)


# On a CPU, XLA sums the columns of an array as wide as BERT's vocabulary many times slower than it
# multiplies them by ones.


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _plus_on_cpu(
    scores_NV: jax.Array, bias_V: jax.Array, ones_N1: jax.Array, sharding: Any
) -> jax.Array:
    return scores_NV + bias_V


def _plus_forward(scores_NV, bias_V, ones_N1, sharding):
    return _plus_on_cpu(scores_NV, bias_V, ones_N1, sharding), (bias_V, ones_N1)


def _plus_backward(sharding, kept, gradient_NV):
    bias_V, ones_N1 = kept

    def to_all_rows(bias_V):
        return _scores(ones_N1, bias_V[:, None], sharding)

    return gradient_NV, *jax.linear_transpose(to_all_rows, bias_V)(gradient_NV), None


_plus_on_cpu.defvjp(_plus_forward, _plus_backward)


def look_up(table: jax.Array, ids_BL: jax.Array) -> jax.Array:
    """Returns the rows `ids_BL` of a table: `[B, L, D]`."""
    dtype = table.dtype
    if is_on_gpu():
        # A GPU accumulates the gradient of a row in the lookup's type, one token after another: in
        # bfloat16 the later ones would be rounded away.
        table = table.astype(jnp.float32)
    return table.at[ids_BL].get(out_sharding=over_batch(), mode="clip").astype(dtype)


def split_rows(table: jax.Array, *, fill: float, rows: int = 0) -> jax.Array:
    """Returns `table`, with the vocabulary as its first dim, sharded over `tensor` and padded to at
    least `rows` and to a multiple of the devices.
    """
    size, rows = mesh_size("tensor"), max(rows, table.shape[0])
    extra = [(0, rows + -rows % size - table.shape[0])] + [(0, 0)] * (table.ndim - 1)
    if extra[0][1]:
        table = jnp.pad(table, extra, constant_values=fill)
    late = axes_summed_late(table)
    return table if size == 1 else jax.reshard(table, jax.P("tensor", reduced=late))


class Embeddings(nnx.Module):
    """The sum of word, position and segment embeddings, normalized, with dropout, and projected to
    the encoder's width if it differs. Norm and segments are optional.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        width = config.table_size
        self.dropout_rate = config.dropout_at("embeddings")
        self.word = Embed(config.vocab_size, width, config=config, rngs=rngs)
        kind = POSITIONS[config.position_embedding_type]
        # With positions in each block, the embeddings add none.
        self.position = (POSITIONS["none"] if kind.is_per_block else kind)(config, rngs=rngs)
        segments = config.type_vocab_size
        self.token_type = Embed(segments, width, config=config, rngs=rngs) if segments else None
        self.layer_norm = Norm(width, config=config) if config.embedding_norm else None
        if width != config.hidden_size:
            self.project = Linear(width, config.hidden_size, config=config, rngs=rngs)

    def __call__(
        self,
        *,
        input_ids: jax.Array,
        position_ids: jax.Array,
        token_type_ids: jax.Array,
        dtype: jnp.dtype,
        key: DropoutKey | None,
    ) -> jax.Array:
        x_BLD = self.position.add(self.word(input_ids), position_ids)
        if self.token_type is not None:  # in float32
            x_BLD = x_BLD.astype(jnp.float32) + self.token_type(token_type_ids)
        if self.layer_norm is not None:
            x_BLD = self.layer_norm(x_BLD)
        x_BLD = x_BLD.astype(dtype)
        x_BLD = dropout(x_BLD, key, rate=self.dropout_rate)
        return self.project(x_BLD) if hasattr(self, "project") else x_BLD


def activation(name: str, x: jax.Array) -> jax.Array:
    """Applies an activation: "gelu" (Hendrycks & Gimpel 2016; exact), "gelu_new" (its tanh
    approximation) or "silu" (x sigmoid(x)).

    Types narrower than float32 are computed in float32 and rounded once: in bfloat16 1 + erf(x)
    cancels to 0 below -3.1.
    """
    function = _ACTIVATIONS[name]
    return function(x) if x.dtype == jnp.float32 else _rounded_once(function, x)


def _gelu(x: jax.Array) -> jax.Array:
    """The exact form through erf, as in Hugging Face: on a CPU, `jax.nn.gelu` goes through erfc and
    costs as much as the two matmuls around it.
    """
    return 0.5 * x * (1 + jax.lax.erf(x * np.asarray(0.5**0.5, x.dtype)))


def _gelu_new(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=True)


_ACTIVATIONS = {"gelu": _gelu, "gelu_new": _gelu_new, "silu": jax.nn.silu}


# The derivative is written out, so that it stores only `x` and no float32 array.


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rounded_once(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    return function(x.astype(jnp.float32)).astype(x.dtype)


def _rounded_once_forward(function, x):
    return _rounded_once(function, x), x


def _rounded_once_backward(function, x, gradient):
    if is_on_gpu():
        # Otherwise XLA would store a float32 tanh or erf of the forward pass.
        x = jax.lax.optimization_barrier(x)
    wide = x.astype(jnp.float32)
    _, slope = jax.jvp(function, (wide,), (jnp.ones_like(wide),))
    return ((slope * gradient.astype(jnp.float32)).astype(x.dtype),)


_rounded_once.defvjp(_rounded_once_forward, _rounded_once_backward)


# Longest row for which a matmul picks the positions, without single-row moves on a TPU. Longer rows
# use a gather.
_LONGEST_PRODUCT = 1024


def gather_positions(x_BLD: jax.Array, positions_BR: jax.Array) -> jax.Array:
    """Returns the rows of `x_BLD` at `positions_BR`: `[B, R, D]`.

    Short rows use a matmul with one-hot rows: it is exact (one term is nonzero) and costs a
    hundredth of the encoder. In long rows its R x L matrix would be larger than all other arrays
    read here. Neither needs communication between devices.
    """
    if x_BLD.shape[1] > _LONGEST_PRODUCT:
        return jnp.take_along_axis(x_BLD, positions_BR[..., None], axis=1, mode="clip")
    onehot_BRL = jax.nn.one_hot(positions_BR, x_BLD.shape[1], dtype=x_BLD.dtype)
    return jnp.einsum("brl,bld->brd", onehot_BRL, x_BLD, precision=jax.lax.Precision.HIGHEST)


def gather_ids(numbers_BL: jax.Array, positions_BR: jax.Array) -> jax.Array:
    """Returns the integers of `numbers_BL` at `positions_BR`, `[B, R]`, like `gather_positions`."""
    if numbers_BL.shape[1] > _LONGEST_PRODUCT:
        return jnp.take_along_axis(numbers_BL, positions_BR, axis=1, mode="clip")
    onehot_BRL = jax.nn.one_hot(positions_BR, numbers_BL.shape[1], dtype=bool)
    return jnp.sum(jnp.where(onehot_BRL, numbers_BL[:, None], 0), axis=-1)
