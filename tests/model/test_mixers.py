"""The mixers and scores of the studies against a golden file of torch and their formulas."""

import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bert_jax import config_loader
from bert_jax.config import ComputeConfig, HeadConfig, Mixing, ModelConfig
from bert_jax.config.model import SelfAttentionOptions
from bert_jax.config_checks import validate_model
from bert_jax.errors import UsageError
from bert_jax.model import bert, sharding
from bert_jax.model.layer_spec import layer_specs
from bert_jax.model.mask import Mask
from bert_jax.registry import ATTENTION, POSITIONS, SCORES
from tests.batches import mesh_of, random_batch
from tests.golden import make_mixers
from tests.models import random_params
from tests.paths import ROOT

config_loader.execute(ROOT / "studies" / "extend" / "layer_types.py")
_CONVOLUTION, _GRU = Mixing.of_kind("convolution"), Mixing.of_kind("gru")


def _scored(name: str) -> SelfAttentionOptions:
    return SelfAttentionOptions(score=name)


_MODEL = ModelConfig(
    vocab_size=50,
    hidden_size=12,
    num_hidden_layers=1,
    num_attention_heads=3,
    intermediate_size=16,
    max_position_embeddings=16,
    position_embedding_type="none",
)


def _row(lengths: tuple[int, ...], *, padding: int = 3) -> Mask:
    """Returns the mask of one row with sequences of these lengths, and padding behind them."""
    ids = [number for number, length in enumerate(lengths, 1) for _ in range(length)]
    places = [place for length in lengths for place in range(length)]
    ends = [0] * padding
    return Mask.of_rows(np.array([ids + ends], np.int32), np.array([places + ends], np.int32))


def _theirs(name: str, gold, *, gradient: bool = False) -> dict[str, dict[str, np.ndarray]]:
    """Returns torch's parameters, or their gradients, as ours."""

    def get(each: str) -> np.ndarray:
        return gold[f"{name}/{'gradient_' if gradient else ''}{each}"]

    if name == "convolution":  # [outputs, inputs, places]
        kernel = np.transpose(get("weight"), (2, 1, 0)).reshape(-1, make_mixers.WIDTH)
        return {"convolution": {"kernel": kernel, "bias": get("bias")}}
    return {
        f"{direction}_{ours}": {
            "kernel": get(f"weight_{theirs}_l0{suffix}").T,
            "bias": get(f"bias_{theirs}_l0{suffix}"),
        }
        for direction, suffix in (("forward", ""), ("backward", "_reverse"))
        for ours, theirs in (("input", "ih"), ("hidden", "hh"))
    }


def _mixing(model: ModelConfig):
    """Returns a function of parameters, tokens, mask and read positions: the mixer of `model`."""
    (layer,) = layer_specs(model)
    mixer = model.mixer.entry()
    graphs = {
        name: nnx.split(module)
        for name, module in mixer.build(model, layer, rngs=nnx.Rngs(0)).items()
    }

    def apply(params, x_BLD, mask, read_BR=None, attend=ATTENTION["fused"]):
        modules = {}
        for name, (graph, state) in graphs.items():
            nnx.replace_by_pure_dict(state, params.get(name, {}))
            modules[name] = nnx.merge(graph, state)
        return mixer(
            SimpleNamespace(config=model, layer=layer, **modules),
            x_BLD,
            x_BLD if read_BR is None else jnp.take(x_BLD, read_BR[0], axis=1),
            mask=mask if read_BR is None else mask.at(read_BR),
            position=POSITIONS[model.position_embedding_type](model, rngs=nnx.Rngs(0)),
            attend=attend,
            key=None,
            read_BR=read_BR,
        )

    shapes = {name: nnx.to_pure_dict(state) for name, (_, state) in graphs.items()}
    return apply, {name: shape for name, shape in shapes.items() if shape}


@pytest.mark.parametrize("name", ["convolution", "gru"])
def test_a_mixer_is_that_of_torch(name):
    """The sequences lie in one row with padding; torch had each alone."""
    gold = np.load(make_mixers.FILE)
    options = {"conv_kernel_size": make_mixers.KERNEL_SIZE} if name == "convolution" else {}
    width, mixer = make_mixers.WIDTH, Mixing.of_kind(name)(**options)
    apply, _ = _mixing(dataclasses.replace(_MODEL, hidden_size=width, mixer=mixer))
    mask, total = _row(make_mixers.LENGTHS), sum(make_mixers.LENGTHS)
    rest = np.full((3, width), 7.0, np.float32)
    x_BLD = np.concatenate([gold["inputs"], rest])[None]
    params = _theirs(name, gold)

    def weighted(params, x_BLD):
        y_TD = apply(params, x_BLD, mask)[0, :total]
        return jnp.sum(y_TD * gold["weights"]), y_TD

    derived = jax.jit(jax.value_and_grad(weighted, argnums=(0, 1), has_aux=True))
    (_, found), gradients = derived(params, x_BLD)
    np.testing.assert_allclose(found, gold[f"{name}/outputs"], atol=1e-6)
    np.testing.assert_allclose(gradients[1][0, :total], gold[f"{name}/gradient_inputs"], atol=2e-6)
    assert not gradients[1][0, total:].any()
    theirs = _theirs(name, gold, gradient=True)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=5e-6), gradients[0], theirs)
    read_BR = np.array([[5, 0, 9]], np.int32)
    read = jax.jit(apply)(params, x_BLD, mask, read_BR)
    np.testing.assert_allclose(read[0], found[read_BR[0]], atol=1e-6)


def _softmax(scores: np.ndarray) -> np.ndarray:
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("attention", ["fused", "plain"])
@pytest.mark.parametrize("score", SCORES.names())
def test_a_score_is_its_formula(score, attention):
    """One head after the other, one query and one key after the other, in double precision."""
    model = dataclasses.replace(_MODEL, mixer=SelfAttentionOptions(score=score))
    apply, shapes = _mixing(model)
    draw = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: draw.normal(size=leaf.shape) / 2, shapes)
    lengths, heads, size = (4, 7), 3, 4
    mask, x_LD = _row(lengths, padding=0), draw.normal(size=(11, 12))
    query, key, value = (
        (x_LD @ params[name]["kernel"] + params[name]["bias"]).reshape(11, heads, size)
        for name in ("query", "key", "value")
    )
    own = params.get("score", {})

    def scored(head: int, q: np.ndarray, k: np.ndarray) -> float:
        if score == "additive":
            inner = q @ own["query_kernel"][head] + k @ own["key_kernel"][head]
            return own["vector"][head] @ np.tanh(inner)
        if score == "general":
            return q @ own["kernel"][head] @ k
        return q @ k / (size**0.5 if score == "scaled_dot_product" else 1)

    wanted = np.zeros((11, heads, size))
    for start, length in zip((0, 4), lengths, strict=True):
        here = range(start, start + length)
        for head in range(heads):
            scores = [[scored(head, query[i, head], key[j, head]) for j in here] for i in here]
            wanted[list(here), head] = _softmax(np.array(scores)) @ value[list(here), head]
    output = params["attention_output"]
    wanted = wanted.reshape(11, 12) @ output["kernel"] + output["bias"]
    narrow = jax.tree.map(np.float32, params)
    x_BLD = np.float32(x_LD)[None]
    mixed = jax.jit(functools.partial(apply, attend=ATTENTION[attention]))
    found = mixed(narrow, x_BLD, mask)
    np.testing.assert_allclose(found[0], wanted, atol=2e-5)
    read_BR = np.array([[5, 0, 9]], np.int32)
    read = mixed(narrow, x_BLD, mask, read_BR)
    np.testing.assert_allclose(read[0], wanted[read_BR[0]], atol=2e-5)


@pytest.mark.parametrize(
    "mixer",
    [_CONVOLUTION(), _GRU(), *map(_scored, ("general", "additive"))],
    ids=str,
)  # fmt: skip
def test_a_mesh_changes_nothing(mixer, monkeypatch):
    """Two layers in a loop, with a tensor axis; a convolution's inputs are cut, scores by heads."""
    model = dataclasses.replace(
        _MODEL, hidden_size=16, num_attention_heads=2, num_hidden_layers=3, mixer=mixer
    )
    head = HeadConfig(parts=("mlm",))
    params = random_params(model, head)
    batch = random_batch(rows=8, length=12, predictions=3, vocab_size=50)
    compute = ComputeConfig(dtype="float32", layer_loop="scan")

    def loss(params, batch):
        outputs = bert.apply(params, batch, config=model, head=head, compute=compute)
        return jnp.mean(jnp.square(outputs["mlm_logits"]))

    alone = jax.jit(jax.value_and_grad(loss))(params, batch)
    monkeypatch.setattr(sharding, "_SMALL", 129)  # else none of them is stored in pieces
    mesh = mesh_of((1, 4, 2, 2))
    with jax.set_mesh(mesh):
        where = sharding.param_shardings(params, mesh=mesh, shard_weights=True)
        placed = jax.device_put(params, where)
        rows = jax.device_put(batch, sharding.batch_sharding(mesh))
        meshed = jax.jit(jax.value_and_grad(loss))(placed, rows)
    for (path, a), b in zip(jax.tree.leaves_with_path(alone), jax.tree.leaves(meshed), strict=True):
        scale = np.abs(a).max()
        np.testing.assert_allclose(a, b, atol=1e-5 * scale, err_msg=jax.tree_util.keystr(path))


def test_additive_scores_are_made_one_column_after_the_other():
    """All columns at once would be an array [H, K, L, L], and what is kept for them as well."""
    model = dataclasses.replace(
        _MODEL, hidden_size=128, num_attention_heads=2, mixer=SelfAttentionOptions(score="additive")
    )
    apply, shapes = _mixing(model)
    length = 128
    mask = _row((length,), padding=0)
    x_BLD = jnp.zeros((1, length, 128))
    gradient = jax.jit(jax.grad(lambda params: jnp.sum(apply(params, x_BLD, mask))))
    bytes_used = gradient.lower(shapes).compile().memory_analysis().temp_size_in_bytes
    assert bytes_used < 16 * (4 * 2 * length**2)  # of 64, which all columns would be


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mixer": _CONVOLUTION(conv_kernel_size=4)}, "model.mixer.conv_kernel_size is 4"),
        ({"mixer": _CONVOLUTION(conv_kernel_size=0)}, "model.mixer.conv_kernel_size: expected"),
        ({"mixer": _GRU(), "hidden_size": 15}, "model.hidden_size is 15; each of two directions"),
        ({"mixer": _GRU(), "attention_window": 8},
         "model.attention_window is 8, which mixer gru ignores"),
        ({"mixer": _GRU(), "position_embedding_type": "rotary"},
         "model.position_embedding_type is rotary, which only attention"),
        ({"mixer": SelfAttentionOptions(score="additive"), "position_embedding_type": "rotary"},
         "model.position_embedding_type is rotary, which works on the product"),
        ({"mixer": SelfAttentionOptions(score="cosine")}, "model.mixer.score is 'cosine'; choose"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(changes, said):
    with pytest.raises(UsageError, match=said.replace("(", r"\(")):
        validate_model(dataclasses.replace(_MODEL, **changes), HeadConfig(parts=("mlm",)))
