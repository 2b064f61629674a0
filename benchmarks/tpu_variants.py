"""Other ways to do parts of the step, put in its place for `tpu_cycles.py --variant NAME`.

None of them is in the product: docs/benchmarks.md says what each would bring.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax.model import dropout, encoder, sharding
from bert_jax.model.attention import fused
from bert_jax.registry import ATTENTION


def bits(number: int) -> None:
    """Dropout by `number` bits an element: one hash of 32 serves several places of a row.

    These lie a part of the second last dim apart, so that nothing is interleaved. Still the same on
    every mesh, as no mesh cuts that dim. (A rate is then a multiple of 2^-number.)
    """
    whole = dropout.random_bits
    share = 32 // number

    def keep_mask(key: Any, x: jax.Array, *, rate: float) -> jax.Array:
        cuts = sharding.spec_of(x)
        dim = x.ndim - 2
        if x.shape[dim] % share:  # the last block: as many rows as there are positions to predict
            return whole(key, x.shape, cuts) >= jnp.uint32(round(rate * 2**32))
        shape = (*x.shape[:dim], x.shape[dim] // share, *x.shape[dim + 1 :])
        hashed = whole(key, shape, cuts)
        mask = jnp.uint32(2**number - 1)
        parts = [(hashed >> jnp.uint32(number * i)) & mask for i in range(share)]
        return jnp.concatenate(parts, axis=dim) >= jnp.uint32(round(rate * 2**number))

    dropout.keep_mask = fused.keep_mask = keep_mask


def scan_unrolled(layers: int) -> None:
    """The loop of `compute.layers=scan` with so many layers in its body."""
    scan = jax.lax.scan
    encoder.jax.lax.scan = partial(scan, unroll=layers)


def gather_float32() -> None:
    """Weights gathered as they are stored, and cast afterwards."""

    def names(path: tuple) -> set:
        return {getattr(entry, "key", None) for entry in path}

    def gather(params: Any, *, dtype: Any) -> Any:
        mesh = jax.sharding.get_abstract_mesh()

        def copy(path, leaf):
            leaf = jax.reshard(leaf, sharding.compute_spec(path, leaf.shape, mesh=mesh))
            return leaf.astype(dtype) if {"kernel", "embedding"} & names(path) else leaf

        return jax.tree_util.tree_map_with_path(copy, params)

    encoder.to_compute_params = gather


def no_norm() -> None:
    """No global gradient norm, to see what it costs where it is."""
    optax.tree.norm = lambda tree: jnp.float32(1.0)


def flash_attention() -> None:
    """The fused kernel of `jax.experimental.pallas.ops.tpu`, which has no dropout.

    As `compute.attention=flash`, in every block but the last, whose queries are too few for its
    tiles. To be compared with `model.attention_probs_dropout_prob=0`. What states no FLOPs of its
    own is charged for its bytes alone, so the sum is a lower bound.
    """
    from jax.experimental.pallas.ops.tpu import flash_attention as kernels

    def attend(q_BHKL, k_BHKS, v_BHKS, *, mask, bias_BHLS, key, dropout_rate):
        length = q_BHKL.shape[3]
        if length != k_BHKS.shape[3]:
            options = {"mask": mask, "key": key, "dropout_rate": dropout_rate}
            return fused.FUSED(q_BHKL, k_BHKS, v_BHKS, bias_BHLS=bias_BHLS, **options)
        sizes = dict.fromkeys(
            (
                *("block_q", "block_k_major", "block_k"),
                *("block_q_major_dkv", "block_k_major_dkv", "block_k_dkv", "block_q_dkv"),
                *("block_k_major_dq", "block_k_dq", "block_q_dq"),
            ),
            length,
        )

        def local(q, k, v, q_ids, k_ids):
            out = kernels.flash_attention(
                *(jnp.swapaxes(x, 2, 3) for x in (q, k, v)),
                segment_ids=kernels.SegmentIds(q_ids, k_ids),
                sm_scale=q.shape[2] ** -0.5,
                block_sizes=kernels.BlockSizes(block_b=1, **sizes),
            )
            return jnp.swapaxes(out, 2, 3)

        rows = sharding.batch_spec()
        mapped = jax.shard_map(local, in_specs=(rows,) * 5, out_specs=rows, check_vma=False)
        return mapped(q_BHKL, k_BHKS, v_BHKS, mask.query_ids_BL, mask.key_ids_BS)

    ATTENTION.register("flash", attend)


VARIANTS: dict[str, Callable[[], None]] = {
    "bits-16": partial(bits, 16),
    "bits-8": partial(bits, 8),
    "scan-unrolled-2": partial(scan_unrolled, 2),
    "scan-unrolled-4": partial(scan_unrolled, 4),
    "gather-float32": gather_float32,
    "no-norm": no_norm,
    "flash-attention": flash_attention,
}
