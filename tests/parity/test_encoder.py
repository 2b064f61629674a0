"""Every kind of position and block against torch: outputs, and the gradient of every parameter."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import ComputeConfig, HeadConfig, ModelConfig
from bert_jax.model import bert
from bert_jax.registry import POSITIONS
from tests.models import random_params

torch = pytest.importorskip("torch", reason="needs the 'parity' extra")
pytestmark = pytest.mark.parity

_MLM = HeadConfig(parts=("mlm",))
_MODEL = ModelConfig(
    vocab_size=61,
    hidden_size=48,
    num_hidden_layers=3,
    num_attention_heads=6,
    intermediate_size=56,
    max_position_embeddings=40,
    hidden_act="gelu",
    layer_norm_eps=1e-5,
)
_LENGTH = 40


def batch() -> dict[str, np.ndarray]:
    """A row of three sequences, one of a single sequence, one of two; padding in two of them."""
    draw = np.random.default_rng(0)
    starts = ((0, 11, 25, 36), (0, 40), (0, 20, 33))
    arrays = {
        "input_ids": draw.integers(5, 61, (3, _LENGTH)),
        "token_type_ids": draw.integers(0, 2, (3, _LENGTH)),
        "position_ids": np.zeros((3, _LENGTH)),
        "sequence_ids": np.zeros((3, _LENGTH)),
        "mlm_positions": np.array(
            [[0, 3, 10, 11, 24, 35], [0, 1, 39, 20, 5, 6], [0, 19, 20, 32, 1, 2]]
        ),
    }
    for row, ends in enumerate(starts):
        for number, (start, stop) in enumerate(itertools.pairwise(ends), 1):
            arrays["position_ids"][row, start:stop] = np.arange(stop - start)
            arrays["sequence_ids"][row, start:stop] = number
    return {name: array.astype(np.int32) for name, array in arrays.items()}


def compare(model: ModelConfig, *, layers: str = "unroll") -> None:
    """Logits within 1e-5 of their largest, gradients within 1e-5 of the largest of each tensor."""
    from tests.torch_encoder import masked_lm_logits, tensors_of

    params, arrays = random_params(model, _MLM, seed=1), batch()
    compute = ComputeConfig(dtype="float32", layer_loop=layers)

    def loss(params):
        outputs = bert.apply(params, arrays, config=model, compute=compute, head=_MLM)
        logits = outputs["mlm_logits"]
        return jnp.mean(jnp.sin(logits)), logits

    with jax.default_matmul_precision("highest"):
        run = jax.jit(jax.value_and_grad(loss, has_aux=True))
        (_, logits), gradients = run(params)
    theirs = tensors_of(params)
    everywhere = masked_lm_logits(theirs, model, arrays)
    places = torch.tensor(arrays["mlm_positions"]).long()
    read = torch.take_along_dim(everywhere, places[:, :, None], dim=1)
    read.sin().mean().backward()
    expected = read.detach().numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-5 * np.abs(expected).max(), rtol=0)
    largest = max(np.abs(t.grad.numpy()).max() for t in jax.tree.leaves(theirs))
    for (path, ours), tensor in zip(
        jax.tree.leaves_with_path(gradients), jax.tree.leaves(theirs), strict=True
    ):
        reference = tensor.grad.numpy()
        # A key's bias that softmax does not see has a gradient of rounding there, and none here.
        bound = max(np.abs(reference).max(), 1e-6 * largest)
        where = jax.tree_util.keystr(path)
        np.testing.assert_allclose(ours, reference, atol=1e-5 * bound, rtol=0, err_msg=where)
        is_idle = path[-2].key == "key" and path[-1].key == "bias"
        is_idle &= not POSITIONS[model.position_embedding_type].sees_key_bias()
        assert (np.abs(reference).max() > 1e-6 * largest) == (not is_idle), where


@pytest.mark.parametrize("kind", [name for name in POSITIONS._builtin if name != "rotary"])
def test_positions_equal_torch(kind):
    compare(dataclasses.replace(_MODEL, position_embedding_type=kind))


@pytest.mark.parametrize("theta", [100.0, 10_000.0])
def test_rotary_positions_equal_modernbert(theta):
    compare(dataclasses.replace(_MODEL, position_embedding_type="rotary", rope_theta=theta))


_BLOCKS = {
    "pre": {"norm_placement": "pre"},
    "rmsnorm": {"norm": "rmsnorm"},
    "norm without bias": {"norm_bias": False},
    "maps without bias": {"linear_bias": False},
    "gated": {"feed_forward": "gated"},
    "silu": {"hidden_act": "silu"},
    "like ModernBERT": {
        "norm_placement": "pre",
        "norm_bias": False,
        "linear_bias": False,
        "feed_forward": "gated",
        "position_embedding_type": "rotary",
    },
    "like NeoBERT": {
        "norm_placement": "pre",
        "norm": "rmsnorm",
        "linear_bias": False,
        "feed_forward": "gated",
        "hidden_act": "silu",
        "position_embedding_type": "rotary_interleaved",
    },
    "pre, gated, biases": {
        "norm_placement": "pre",
        "feed_forward": "gated",
        "hidden_act": "gelu_new",
        "position_embedding_type": "relative_key_query",
    },
}


@pytest.mark.parametrize("name", _BLOCKS)
def test_blocks_equal_torch(name):
    layers = "scan" if name.startswith("like") else "unroll"
    compare(dataclasses.replace(_MODEL, **_BLOCKS[name]), layers=layers)
