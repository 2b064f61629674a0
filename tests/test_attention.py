"""Attention's own derivative beside what jax derives from the formula, with dropout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model import sharding
from bert_jax.model.attention import attend
from bert_jax.model.dropout import DropoutKey, keep_mask

pytestmark = pytest.mark.core

_ROWS, _HEADS, _SIZE, _LENGTH = 8, 2, 4, 9


def formula(q_BHKL, k_BHKS, v_BHKS, *, ids_BL, key, rate):
    """softmax(q k^T / sqrt(K)) v with dropout of the probabilities (Vaswani et al. 2017)."""
    scores_BHLS = jnp.einsum("bhkl,bhks->bhls", q_BHKL, k_BHKS) / _SIZE**0.5
    allowed_BLS = ids_BL[:, :, None] == ids_BL[:, None, :]
    probs_BHLS = jax.nn.softmax(jnp.where(allowed_BLS[:, None], scores_BHLS, -jnp.inf), axis=-1)
    kept_BHLS = keep_mask(key, probs_BHLS, rate=rate) * probs_BHLS / (1 - rate)
    return jnp.einsum("bhls,bhks->bhkl", kept_BHLS, v_BHKS)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
def test_outputs_and_derivatives_are_the_formulas(rate):
    draw = np.random.default_rng(0)
    shape = (_ROWS, _HEADS, _SIZE, _LENGTH)
    q, k, v, weights = (draw.normal(size=shape).astype(np.float32) for _ in range(4))
    # Two sequences of 4 and 3 tokens, and padding.
    ids = np.tile(np.array([1] * 4 + [2] * 3 + [0] * 2, np.int32), (_ROWS, 1))
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    with jax.set_mesh(mesh):
        layout = sharding.batch_sharding(mesh)
        q, k, v, weights, ids, rows = jax.device_put(
            (q, k, v, weights, ids, np.arange(_ROWS, dtype=np.uint32)), layout
        )
        key = DropoutKey.create(seed=3, step=jnp.int32(5), rows_B=rows)

        def ours(q, k, v):
            out = attend(
                q, k, v, query_ids_BL=ids, key_ids_BS=ids, key=key, dropout_rate=rate
            )  # fmt: skip
            return jnp.sum(out * weights), out

        def theirs(q, k, v):
            out = formula(q, k, v, ids_BL=ids, key=key, rate=rate)
            return jnp.sum(out * weights), out

        found, expected = (
            jax.jit(jax.grad(function, argnums=(0, 1, 2), has_aux=True))(q, k, v)
            for function in (ours, theirs)
        )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected
    )
