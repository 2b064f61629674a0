"""Attention by kernels for NVIDIA GPUs, in `jax.experimental.pallas.triton`.

Like FlashAttention (Dao 2023, arXiv 2307.08691), the kernels store no array of L x L. They drop
weights by the same bits as `fused` and `plain`, and skip the blocks of a packed row in which no
query and key belong to the same sequence. (cuDNN's kernels take the seed of dropout as a constant
of the program.)

This back end of Pallas is deprecated since jax 0.11.2 in favor of kernels for Hopper and later
GPUs only, and of `jax_triton`, which needs a GPU to be tested. All releases that `pyproject.toml`
allows have it; without it, `auto` chooses the next entry.

Dims: B batch, H heads, K head size, L length; in a block, R queries and S keys.
"""

import importlib.util
import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.model.attention.implementation import Call, Implementation
from bert_jax.model.attention.need import Need
from bert_jax.model.attention.plain import FORBIDDEN
from bert_jax.model.dropout import DropoutKey, hashed, key_words, threshold
from bert_jax.model.mask import Mask
from bert_jax.model.sharding import device_kind, index_along, on_each_device, spec_of

# Hopper, by device name prefix: faster than `fused` on an H200 (benchmarks/results/gpu.md).
_PAYS_ON = ("NVIDIA H100", "NVIDIA H200", "NVIDIA GH200")
_HEAD_SIZES = (16, 32, 64, 128)
# Exponentials are computed as powers of two, for which a GPU has an instruction.
_LOG2_E = math.log2(math.e)


class KernelBlocks(NamedTuple):
    """The queries and keys of one block, the warps of a program, and the blocks loaded ahead."""

    queries: int
    keys: int
    warps: int
    stages: int


# No other size that was tried on an H200, at 128 and at 512 tokens, is 3 % faster
# (benchmarks/gpu_attention.py).
_FORWARD = KernelBlocks(64, 32, 4, 3)
_BACKWARD_KEYS = KernelBlocks(32, 64, 4, 3)
_BACKWARD_QUERIES = KernelBlocks(64, 32, 4, 3)
_LENGTH_MULTIPLE = 64


class Triton(Implementation):
    """Supports rows without windows, in bfloat16 and float16, with every column as a query."""

    name = "triton"
    takes_dropout = True

    def problem(self, need: Need) -> str | None:
        kind = need.device_kind
        if kind and not kind.startswith("NVIDIA"):
            return f"needs an NVIDIA GPU, not {kind}: choose auto"
        if need.dtype not in ("", "bfloat16", "float16"):
            return f"does not support {need.dtype}: set compute.dtype=bfloat16, or choose auto"
        if need.window is not None or need.is_causal or not need.reads_all:
            return "does not support windows, causal masks or partly read rows: choose auto"
        if need.head_size not in _HEAD_SIZES:
            return (
                f"needs a head size of {', '.join(map(str, _HEAD_SIZES))}, not {need.head_size}: "
                "choose auto"
            )
        if need.length % _LENGTH_MULTIPLE:
            return (
                f"needs a sequence length that is a multiple of {_LENGTH_MULTIPLE}, not "
                f"{need.length}: choose auto"
            )
        if kind and importlib.util.find_spec("jax.experimental.pallas.triton") is None:
            return "needs jax.experimental.pallas.triton, which this JAX lacks: choose auto"
        return super().problem(need)

    def pays(self, need: Need) -> bool:
        return need.device_kind.startswith(_PAYS_ON)

    def attend(self, call: Call) -> jax.Array:
        # A kernel reads the layout that the matmul writes: the compiler removes the transposes.
        by_token: Any = (jnp.transpose(x, (0, 3, 1, 2)) for x in call[:3])
        key = call.key if call.rate else None
        out_BLHK: Any = _attend(*by_token, call.mask, key, call.rate)
        return jnp.transpose(out_BLHK, (0, 2, 3, 1))


TRITON = Triton()


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(q_BLHK, k_BLHK, v_BLHK, mask, key, rate):
    return _forward(q_BLHK, k_BLHK, v_BLHK, mask, key, rate)[0]


def _forward(q_BLHK, k_BLHK, v_BLHK, mask, key, rate) -> tuple[jax.Array, Any]:
    arrays = (q_BLHK, k_BLHK, v_BLHK)
    rows, _, heads, _ = spec_of(q_BLHK)
    kernel = on_each_device(
        partial(_forward_here, rate=rate, heads_axis=heads),
        takes=(jax.P(rows, None, heads), jax.P(rows), jax.P(rows)),
        gives=(jax.P(rows, None, heads), jax.P(rows, heads)),
    )
    out_BLHK, log_sums_BHL = kernel(arrays, _spans(mask), _words(key))
    return out_BLHK, (*arrays, mask, key, out_BLHK, log_sums_BHL)


def _backward(rate, residuals, g_BLHK) -> tuple:
    *arrays, mask, key, out_BLHK, log_sums_BHL = residuals
    rows, _, heads, _ = spec_of(g_BLHK)
    kernel = on_each_device(
        partial(_backward_here, rate=rate, heads_axis=heads),
        takes=(jax.P(rows, None, heads), jax.P(rows, heads), jax.P(rows), jax.P(rows)),
        gives=jax.P(rows, None, heads),
    )
    # The sum of gradient times weight, for the derivative of softmax (Dao et al. 2022, section
    # B.2).
    sums_BHL = jnp.einsum("blhk,blhk->bhl", g_BLHK, out_BLHK, preferred_element_type=jnp.float32)
    sums = (log_sums_BHL, sums_BHL * (1 - rate))
    return (*kernel((*arrays, g_BLHK), sums, _spans(mask), _words(key)), None, None)


_attend.defvjp(_forward, _backward)


def _spans(mask: Mask) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the ids, and for each column the first column and the end of its run of equal ids;
    int32 `[B, L]`.
    """
    ids_BL = jnp.asarray(mask.key_ids_BS)
    length = ids_BL.shape[1]
    column = jnp.arange(length, dtype=jnp.int32)[None]
    begins_BL = (ids_BL != jnp.roll(ids_BL, 1, axis=1)) | (column == 0)
    first_BL = jax.lax.cummax(jnp.where(begins_BL, column, 0), axis=1)
    ends_BL = (ids_BL != jnp.roll(ids_BL, -1, axis=1)) | (column == length - 1)
    end_BL = jax.lax.cummin(jnp.where(ends_BL, column + 1, length), axis=1, reverse=True)
    return ids_BL, first_BL, end_BL


def _words(key: DropoutKey | None) -> tuple[jax.Array, ...]:
    return () if key is None else key_words(key)


# --- on one device --------------------------------------------------------------------------------
# A program computes one block of queries (or keys) of one head of one row, and loops over the
# blocks of keys (or queries). `program_id` gives the numbers of the block, the head and the row.


def _forward_here(arrays, spans, words, *, rate, heads_axis):
    batch, length, heads, size = arrays[0].shape
    blocks, exponent = _FORWARD, size**-0.5 * _LOG2_E

    def kernel(q_ref, k_ref, v_ref, ids_ref, first_ref, end_ref, *refs):
        words_refs, (out_ref, log_sums_ref) = refs[:-2], refs[-2:]
        of_queries = _block(blocks.queries)
        q_RK, ids_R = q_ref[of_queries, :], ids_ref[of_queries]
        draw = _Draw.of_head(words_refs, rate, length)

        def body(block, carry):
            out_RK, highest_R, sum_R = carry
            of_keys = _block(blocks.keys, block)
            k_SK, v_SK, ids_S = k_ref[of_keys, :], v_ref[of_keys, :], ids_ref[of_keys]
            scores_RS = _product(q_RK, k_SK.T) * exponent
            scores_RS = jnp.where(ids_R[:, None] == ids_S[None], scores_RS, FORBIDDEN)
            higher_R = jnp.maximum(highest_R, jnp.max(scores_RS, axis=1))
            shrunk_R = jnp.exp2(highest_R - higher_R)
            exp_RS = jnp.exp2(scores_RS - higher_R[:, None])
            sum_R = sum_R * shrunk_R + jnp.sum(exp_RS, axis=1)
            places = {"queries": _places(of_queries)[:, None], "keys": _places(of_keys)[None]}
            (exp_RS,) = draw.kept([exp_RS], **places)
            out_RK = out_RK * shrunk_R[:, None] + _product(exp_RS.astype(v_SK.dtype), v_SK)
            return out_RK, higher_R, sum_R

        zeros_R = jnp.zeros(blocks.queries, jnp.float32)
        start = jnp.zeros((blocks.queries, size), jnp.float32), zeros_R + FORBIDDEN, zeros_R
        seen = _blocks_seen(first_ref, end_ref, of_queries, blocks.keys)
        out_RK, highest_R, sum_R = jax.lax.fori_loop(*seen, body, start)
        out_RK = out_RK / (sum_R * (1 - rate))[:, None]
        out_ref[of_queries, :] = out_RK.astype(out_ref.dtype)
        log_sums_ref[of_queries] = highest_R + jnp.log2(sum_R)

    in_head, in_scores, in_row = _specs(length, size)
    return _call(
        kernel,
        grid=(length // blocks.queries, heads, batch),
        operands=[*arrays, *spans, *_words_here(words, heads, heads_axis)],
        in_specs=[in_head] * 3 + [in_row] * 3 + _specs_of_words(words),
        out_shape=[arrays[0], jax.ShapeDtypeStruct((batch, heads, length), jnp.float32)],
        out_specs=[in_head, in_scores],
        blocks=blocks,
    )


def _backward_here(arrays, sums, spans, words, *, rate, heads_axis):
    batch, length, heads, size = arrays[0].shape
    in_head, in_scores, in_row = _specs(length, size)

    def gradients(blocks, *, is_of_keys: bool):
        """Returns the gradients of keys and values, or of queries. Dims: P the places of the
        program's own block, T the places of a block that it loops over.
        """
        own, other, outputs = blocks.queries, blocks.keys, 1
        if is_of_keys:
            own, other, outputs = other, own, 2

        def kernel(q_ref, k_ref, v_ref, g_ref, log_sums_ref, sums_ref, ids_ref, *refs):
            (first_ref, end_ref, *words_refs), gradient_refs = refs[:-outputs], refs[-outputs:]
            # The first arrays give the scores, the second arrays the gradients of the weights.
            own_refs, other_refs = (q_ref, g_ref), (k_ref, v_ref)
            if is_of_keys:
                own_refs, other_refs = other_refs, own_refs
            here = _block(own)
            x_PK, y_PK = (ref[here, :] for ref in own_refs)
            ids_P = ids_ref[here]
            sums_P = None if is_of_keys else (log_sums_ref[here], sums_ref[here])
            draw = _Draw.of_head(words_refs, rate, length)

            def body(block, gradients):
                there = _block(other, block)
                x_TK, y_TK = (ref[there, :] for ref in other_refs)
                if sums_P is None:
                    log_sums, sums = log_sums_ref[there][None], sums_ref[there][None]
                    places = {"queries": _places(there)[None], "keys": _places(here)[:, None]}
                else:
                    log_sums, sums = (each[:, None] for each in sums_P)
                    places = {"queries": _places(here)[:, None], "keys": _places(there)[None]}
                scores_PT = _product(x_PK, x_TK.T) * (size**-0.5 * _LOG2_E)
                scores_PT = jnp.where(ids_P[:, None] == ids_ref[there][None], scores_PT, FORBIDDEN)
                weights_PT = jnp.exp2(scores_PT - log_sums)
                dp_PT, kept_PT = draw.kept([_product(y_PK, y_TK.T), weights_PT], **places)
                ds_PT = weights_PT * (dp_PT - sums)
                factors = (ds_PT, x_TK), (kept_PT, y_TK)
                return tuple(
                    gradient_PK + _product(factor_PT.astype(z_TK.dtype), z_TK)
                    for gradient_PK, (factor_PT, z_TK) in zip(gradients, factors, strict=False)
                )

            zeros = (jnp.zeros((own, size), jnp.float32),) * outputs
            seen = _blocks_seen(first_ref, end_ref, here, other)
            found = jax.lax.fori_loop(*seen, body, zeros)
            # Constant factors that the loop omits: the scale of scores, and the share that dropout
            # keeps.
            scales = (size**-0.5 / (1 - rate), 1 / (1 - rate))
            for ref, gradient_PK, scale in zip(gradient_refs, found, scales, strict=False):
                ref[here, :] = (gradient_PK * scale).astype(ref.dtype)

        return _call(
            kernel,
            grid=(length // own, heads, batch),
            operands=[*arrays, *sums, *spans, *_words_here(words, heads, heads_axis)],
            in_specs=[in_head] * 4 + [in_scores] * 2 + [in_row] * 3 + _specs_of_words(words),
            out_shape=[arrays[0]] * outputs,
            out_specs=[in_head] * outputs,
            blocks=blocks,
        )

    dk, dv = gradients(_BACKWARD_KEYS, is_of_keys=True)
    (dq,) = gradients(_BACKWARD_QUERIES, is_of_keys=False)
    return dq, dk, dv


class _Draw(NamedTuple):
    """Dropout of the weights of one head of a row, in a kernel."""

    rate: float
    length: int
    # The key words of the row, and the index of the head's first query among all heads.
    words: tuple[jax.Array, jax.Array] | None = None
    first: Any = None

    @classmethod
    def of_head(cls, words_refs, rate: float, length: int) -> "_Draw":
        if not words_refs:
            return cls(rate, length)
        word_1, word_2, first_head = (ref[0] for ref in words_refs)
        head = first_head + _pallas().program_id(1).astype(jnp.uint32)
        return cls(rate, length, (word_1, word_2), head * jnp.uint32(length))

    def kept(self, arrays: list, *, queries: jax.Array, keys: jax.Array) -> list:
        """Returns arrays with a number per weight of a block, at the places of its queries and
        keys, with zeros where a weight is dropped.
        """
        if self.words is None:
            return arrays
        # The bits of `dropout.random_bits` on a GPU, at these places only.
        row_1, row_2 = self.words
        index = (self.first + queries) * jnp.uint32(self.length) + keys
        keep = hashed(index + row_1, row_2) >= threshold(self.rate)
        return [jnp.where(keep, x, 0.0) for x in arrays]


def _block(size: int, number: Any = None) -> Any:
    """Returns the columns of a block, by default the program's own block."""
    pl = _pallas()
    return pl.ds((pl.program_id(0) if number is None else number) * size, size)


def _places(columns: Any) -> jax.Array:
    """Returns the numbers of a block's columns, uint32."""
    place = columns.start + jnp.arange(columns.size, dtype=jnp.int32)
    return place.astype(jnp.uint32)


def _blocks_seen(first_ref, end_ref, columns: Any, size: int) -> tuple[Any, Any]:
    """Returns the range of blocks of `size` columns that share a sequence with `columns`."""
    if first_ref.shape[0] == size:
        return 0, 1
    last = columns.start + (columns.size - 1)
    return (
        jax.lax.div(first_ref[columns.start], size),
        jax.lax.div(end_ref[last] + (size - 1), size),
    )


def _product(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.dot(x, y, preferred_element_type=jnp.float32)


def _words_here(words, heads: int, heads_axis: Any) -> list[jax.Array]:
    """Returns the key words of each row, and the number of this device's first head."""
    first = index_along(heads_axis) * heads if heads_axis else 0
    return [*words, jnp.full(1, first, jnp.uint32)] if words else []


def _specs(length: int, size: int) -> tuple[Any, Any, Any]:
    """Returns the specs of arrays `[B, L, H, K]`, `[B, H, L]` and `[B, L]`: a program sees its head
    and row.
    """
    spec = _pallas().BlockSpec
    return (
        spec((None, length, None, size), lambda i, h, b: (b, 0, h, 0)),
        spec((None, None, length), lambda i, h, b: (b, h, 0)),
        spec((None, length), lambda i, h, b: (b, 0)),
    )


def _specs_of_words(words) -> list:
    spec = _pallas().BlockSpec
    of_row = spec((1,), lambda i, h, b: (b,))
    return [of_row, of_row, spec((1,), lambda i, h, b: (0,))] if words else []


def _call(kernel, *, grid, operands, in_specs, out_shape, out_specs, blocks: KernelBlocks) -> Any:
    from jax.experimental.pallas import triton

    return _pallas().pallas_call(
        kernel,
        grid=grid,
        in_specs=in_specs,
        out_specs=out_specs,
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in out_shape],
        interpret=not device_kind().startswith("NVIDIA"),
        compiler_params=triton.CompilerParams(num_warps=blocks.warps, num_stages=blocks.stages),
    )(*operands)


def _pallas() -> Any:
    # Imported on first use: the import takes a second.
    from jax.experimental import pallas

    return pallas
