"""Every kind of position: rows that hold several sequences, and what each kind promises."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

from bert_jax.config import ComputeConfig, HeadConfig, ModelConfig
from bert_jax.config_loader import load_config
from bert_jax.errors import UsageError
from bert_jax.interchange import huggingface
from bert_jax.model.encoder import repeated
from bert_jax.model.positions import Position, distance_bias
from bert_jax.registry import ATTENTION, POSITIONS
from tests.golden import make_relative_positions
from tests.models import apply, assert_same, batch, random_params, vocabulary

_MODEL = ModelConfig(
    vocab_size=50,
    hidden_size=24,
    num_hidden_layers=1,
    num_attention_heads=3,
    intermediate_size=32,
    max_position_embeddings=16,
)
_FLOAT32 = ComputeConfig(dtype="float32")
each_kind = pytest.mark.parametrize("kind", list(POSITIONS._builtin))


# A block that differs from BERT's on every axis, to go through the same tests.
_MODERN = {
    "position_embedding_type": "rotary",
    "norm_placement": "pre",
    "norm": "rmsnorm",
    "linear_bias": False,
    "feed_forward": "gated",
    "hidden_act": "silu",
}


def model_of(kind: str) -> ModelConfig:
    changes = _MODERN if kind == "modern" else {"position_embedding_type": kind}
    return dataclasses.replace(_MODEL, **changes)


def outputs(kind: str, arrays: dict[str, np.ndarray], *, hidden_states: bool = False):
    model = model_of(kind)
    params = random_params(model, HeadConfig())
    options = {"config": model, "compute": _FLOAT32, "hidden_states": hidden_states}
    return jax.device_get(apply(params, arrays, **options))


# Two sequences and padding in the first row; each of them alone in the others.
_LENGTHS = (5, 7)
_WIDTH = 14


def packed_and_alone() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    ids = draw.integers(5, 50, sum(_LENGTHS))
    types = draw.integers(0, 2, sum(_LENGTHS))
    arrays = {
        name: np.zeros((3, _WIDTH), np.int32)
        for name in ("input_ids", "token_type_ids", "position_ids", "sequence_ids")
    }
    for number, (start, length) in enumerate(zip((0, _LENGTHS[0]), _LENGTHS, strict=True), 1):
        for row, column in ((0, start), (number, 0)):
            where = np.s_[row, column : column + length]
            arrays["input_ids"][where] = ids[start : start + length]
            arrays["token_type_ids"][where] = types[start : start + length]
            arrays["position_ids"][where] = np.arange(length)
            arrays["sequence_ids"][where] = number if row == 0 else 1
    first = _LENGTHS[0]
    reads = [[3, 0, 4, first + 6, first, first + 2], [3, 0, 4, 0, 0, 0], [6, 0, 2, 0, 0, 0]]
    return arrays | {
        "mlm_positions": np.array(reads, np.int32),
        "nsp_positions": np.array([[0, first], [0, 0], [0, 0]], np.int32),
    }


@pytest.mark.parametrize("kind", [*POSITIONS._builtin, "modern"])
def test_a_sequence_has_in_a_packed_row_what_it_has_alone(kind):
    """Both where the last block computes every position and where it computes those read."""
    arrays = packed_and_alone()
    first = _LENGTHS[0]
    whole, read = outputs(kind, arrays, hidden_states=True), outputs(kind, arrays)
    assert "last_hidden_state" not in read
    states = whole["last_hidden_state"]
    np.testing.assert_allclose(states[0, :first], states[1, :first], atol=1e-5)
    np.testing.assert_allclose(states[0, first:12], states[2, : _LENGTHS[1]], atol=1e-5)
    for found in (whole, read):
        logits, pairs = found["mlm_logits"], found["nsp_logits"]
        np.testing.assert_allclose(logits[0, :3], logits[1, :3], atol=1e-5)
        np.testing.assert_allclose(logits[0, 3:], logits[2, :3], atol=1e-5)
        np.testing.assert_allclose(pairs[0], pairs[1:, 0], atol=1e-5)
    np.testing.assert_allclose(whole["mlm_logits"], read["mlm_logits"], atol=1e-5)


@each_kind
def test_order_and_places(kind):
    """Tokens are moved among the positions, columns among themselves, positions all together."""
    arrays = packed_and_alone()
    arrays = {name: array[2:, : _LENGTHS[1]] for name, array in arrays.items()}
    arrays["mlm_positions"] = np.arange(_LENGTHS[1], dtype=np.int32)[None]
    states = outputs(kind, arrays, hidden_states=True)["last_hidden_state"]
    # The tokens in another order, with the positions left where they are.
    order = np.random.default_rng(3).permutation(_LENGTHS[1])
    moved = {n: arrays[n][:, order] for n in ("input_ids", "token_type_ids")}
    permuted = outputs(kind, arrays | moved, hidden_states=True)["last_hidden_state"]
    apart = np.abs(permuted - states[:, order]).max()
    assert apart < 1e-5 if kind == "none" else apart > 1e-2
    # All columns in another order, positions included: no kind looks at columns.
    carried = moved | {"position_ids": arrays["position_ids"][:, order]}
    carried = outputs(kind, arrays | carried, hidden_states=True)["last_hidden_state"]
    np.testing.assert_allclose(carried, states[:, order], atol=1e-5)
    # All positions farther away by as much: only what is added to the embeddings tells.
    shifted = arrays | {"position_ids": arrays["position_ids"] + 1000}
    shifted = outputs(kind, shifted, hidden_states=True)["last_hidden_state"]
    apart = np.abs(shifted - states).max()
    assert apart > 1e-2 if kind in ("learned", "sinusoidal") else apart < 1e-5


@pytest.mark.parametrize("kind", ["rotary", "relative_key_query"])
def test_in_bfloat16_angles_and_scores_are_float32(kind):
    """Neighbours far from the start are told apart, and a common shift changes nothing."""
    draw = np.random.default_rng(0)
    q, k = (jnp.asarray(draw.standard_normal((1, 2, 8, 6)), jnp.bfloat16) for _ in range(2))
    model = dataclasses.replace(model_of(kind), hidden_size=16, num_attention_heads=2)
    position = POSITIONS[kind](model, rngs=nnx.Rngs(0))

    def scores(shift):
        where = np.arange(6)[None] + shift
        both = {"query_positions_BL": where, "key_positions_BS": where}
        turned_q, turned_k = position.rotate(q, k, **both)
        assert turned_q.dtype == turned_k.dtype == jnp.bfloat16
        found = jnp.einsum(
            "bhkl,bhks->bhls", *(x.astype(jnp.float32) for x in (turned_q, turned_k))
        )
        added = position.scores(turned_q, turned_k, **both)
        return found if added is None else found + added

    np.testing.assert_allclose(scores(0), scores(4000), atol=0.05)
    assert np.abs(np.diff(scores(4000), axis=-1)).min() > 0


class _OnlyBias(Position):
    """Adds to the scores of the nearest keys, and says no more."""

    def bias(self, *, query_positions_BL, key_positions_BS, num_heads):
        distance_BLS = jnp.abs(query_positions_BL[:, :, None] - key_positions_BS[:, None, :])
        return jnp.where(distance_BLS < 2, 3.0, 0.0)[:, None]


class _OnlyRotate(Position):
    """Turns keys to the other side at every second position, and says no more."""

    def rotate(self, q_BHKL, k_BHKS, *, query_positions_BL, key_positions_BS):
        return q_BHKL, k_BHKS * (1 - 2 * (key_positions_BS % 2))[:, None, None]


@pytest.fixture
def kind_of_ones_own(monkeypatch):
    for table in (POSITIONS, ATTENTION):
        monkeypatch.setattr(table, "_entries", dict(table._entries))

    def register(kind: type) -> ModelConfig:
        # A name of its own each time: compiled models are kept by their configs.
        name = f"{kind.__name__}-{id(kind)}"
        POSITIONS.register(name, kind)
        return dataclasses.replace(_MODEL, position_embedding_type=name)

    return register


@pytest.mark.parametrize("kind", [_OnlyBias, _OnlyRotate])
def test_a_hook_that_is_overridden_is_used(kind, kind_of_ones_own):
    model, without = kind_of_ones_own(kind), model_of("none")
    params, arrays = random_params(without, HeadConfig(parts=())), packed_and_alone()

    def states(model, params=params):
        head, compute = HeadConfig(parts=()), _FLOAT32
        return apply(params, arrays, config=model, head=head, compute=compute)["last_hidden_state"]

    assert np.abs(states(model) - states(without)).max() > 1e-2
    sums = jax.jit(jax.grad(lambda params: jnp.sum(jnp.sin(states(model, params)))))(params)
    of_key_bias = np.abs(sums["encoder"]["layer_0"]["key"]["bias"]).max()
    assert of_key_bias > 1e-3 if kind is _OnlyRotate else of_key_bias == 0


@pytest.mark.parametrize(
    ("kinds", "stretches"),
    [
        ("", []),
        ("aaaa", [(0, 1, 4)]),
        ("abbabbabb", [(0, 3, 3)]),
        ("cbbabbabba", [(0, 1, 1), (1, 3, 3)]),
        ("aab", [(0, 1, 2), (2, 1, 1)]),
        ("abab" + "c", [(0, 2, 2), (4, 1, 1)]),
        ("aabaab", [(0, 3, 2)]),
    ],
)
def test_stretches_of_blocks_that_repeat(kinds, stretches):
    assert list(repeated(kinds)) == stretches


def test_slopes_of_heads():
    """Worked out by hand: 2^(-8k/n), and beyond a power of two every second one of 2n."""
    found = distance_bias.alibi_slopes(12)
    powers = [2.0**-k for k in range(1, 9)]
    np.testing.assert_allclose(found, [*powers, 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5], rtol=1e-6)
    np.testing.assert_array_equal(distance_bias.alibi_slopes(8), powers)
    np.testing.assert_allclose(distance_bias.alibi_slopes(3), [2**-4, 2**-8, 2**-2], rtol=1e-6)


def test_buckets_of_distances():
    far = np.array([-200, -128, -64, -16, -8, -7, 0, 7, 8, 16, 32, 64, 128])
    expected = [15, 15, 14, 10, 8, 7, 0, 23, 24, 26, 28, 30, 31]
    np.testing.assert_array_equal(distance_bias.t5_buckets(far), expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["rope_theta=500"], "model.rope_theta is 500.0, which has an effect with"),
        (
            ["position_embedding_type=rotary", "hidden_size=36"],
            "head size of 3 for a hidden_size of 36; rotary",
        ),
        (
            ["position_embedding_type=sinusoidal", "hidden_size=15", "num_attention_heads=3"],
            "model.hidden_size is 15; sinusoidal",
        ),
        (
            ["position_embedding_type=alibi", "max_position_embeddings=64"],
            "longer than the model allows (model.max_position_embeddings = 64); "
            "shorten the sequence or raise the limit",
        ),
    ],
)
def test_what_a_kind_cannot_be(changes, message):
    with pytest.raises(UsageError) as caught:
        load_config("bert_base", [f"model.{change}" for change in changes])
    assert message in str(caught.value)


def test_relative_positions_are_written_and_read_as_transformers_4_has_them(tmp_path):
    model, head = model_of("relative_key_query"), HeadConfig(parts=("pooler", "mlm", "nsp"))
    params, words = random_params(model, head), vocabulary(tmp_path / "words", size=50)
    huggingface.write(tmp_path / "hf", params, model, tokenizer=words, head=head)
    described = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert described["position_embedding_type"] == "relative_key_query"
    path = tmp_path / "hf" / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    name = "bert.encoder.layer.0.attention.self.distance_embedding.weight"
    assert tensors[name].shape == (2 * 16 - 1, 24 // 3)
    # Their class has a table of positions that it does not read: without one, transformers 4
    # reports each file.
    assert not tensors["bert.embeddings.position_embeddings.weight"].any()
    tensors["bert.embeddings.position_embeddings.weight"] = np.ones((16, 24), np.float32)
    safetensors.numpy.save_file(tensors, path, {"format": "pt"})
    found = huggingface.read(tmp_path / "hf")
    assert found.model == model
    assert_same(found.params, params)


@pytest.mark.parametrize("kind", make_relative_positions.KINDS)
def test_relative_positions_equal_transformers_4(kind):
    """Its own BertForMaskedLM on what we write (golden/make_relative_positions.py)."""
    model, head = make_relative_positions.model(kind), make_relative_positions.HEAD
    arrays = batch(model, rows=3)
    params = random_params(model, head)
    ours = apply(params, arrays, config=model, head=head, compute=_FLOAT32)["mlm_logits"]
    theirs = np.load(make_relative_positions.FILE)[kind]
    real = arrays["sequence_ids"] != 0
    assert not real.all()
    np.testing.assert_allclose(np.asarray(ours)[real], theirs[real], atol=1e-5, rtol=0)
