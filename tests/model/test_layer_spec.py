"""Layers that are not alike: local and global ones, beside the formula in NumPy."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from bert_jax.config import ComputeConfig, HeadConfig, ModelConfig
from bert_jax.config_loader import load_config
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.errors import UsageError
from bert_jax.model import bert
from bert_jax.model.layer_spec import layer_specs
from bert_jax_lab.probes.attention import AttentionProbe
from bert_jax_lab.probes.attention_document import AttentionDocument
from tests.lab.probes.test_probe import checkpoint
from tests.models import random_params, vocabulary

_MODEL = ModelConfig(
    vocab_size=60,
    hidden_size=24,
    num_hidden_layers=8,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=64,
    hidden_act="silu",
    position_embedding_type="rotary",
    rope_theta=1_000.0,
    attention_window=16,
    global_attention_every_n_layers=3,
    local_rope_theta=100.0,
)
_BARE = HeadConfig(parts=())
_LENGTHS = (30, 22)  # of two packed sequences; padding follows
_WIDTH = 56


def rows() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    lengths = np.array([*_LENGTHS, _WIDTH - sum(_LENGTHS)])
    ids = np.repeat([1, 2, 0], lengths)
    tokens = np.where(ids > 0, draw.integers(5, 60, _WIDTH), 0)
    place = np.concatenate([np.arange(n) for n in (*_LENGTHS, 0)] + [np.zeros(lengths[2], int)])
    types = draw.integers(0, 2, _WIDTH)
    names = ("input_ids", "position_ids", "sequence_ids", "token_type_ids")
    arrays = (tokens, place, ids, types)
    return {n: a[None].astype(np.int32) for n, a in zip(names, arrays, strict=True)}


def formula(params, batch) -> tuple[np.ndarray, list[np.ndarray]]:
    """The last states `[L, D]` and each layer's weights `[H, L, L]`: ModernBERT's pattern."""
    tokens, place, ids, types = (
        batch[name][0] for name in ("input_ids", "position_ids", "sequence_ids", "token_type_ids")
    )
    tree = jax.tree.map(lambda x: np.asarray(x, np.float64), params["encoder"])

    def norm(x, p):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + _MODEL.layer_norm_eps)
        return x * p["scale"] + p["bias"]

    def mapped(x, p):
        return x @ p["kernel"] + p["bias"]

    tables = tree["embeddings"]
    x = tables["word"]["embedding"][tokens] + tables["token_type"]["embedding"][types]
    x, weights = norm(x, tables["layer_norm"]), []
    heads, size = 2, 12
    for number in range(_MODEL.num_hidden_layers):
        layer, is_global = tree[f"layer_{number}"], number % 3 == 0
        theta = 1_000.0 if is_global else 100.0
        angles = place[:, None] * theta ** (-np.arange(0, size, 2) / size)

        def turned(x, angles=angles):
            a, b = x[..., : size // 2], x[..., size // 2 :]
            cos, sin = np.cos(angles), np.sin(angles)
            return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

        def split(x):
            return x.reshape(len(x), heads, size).swapaxes(0, 1)

        query, key, value = (split(mapped(x, layer[n])) for n in ("query", "key", "value"))
        scores = turned(query) @ turned(key).swapaxes(1, 2) / np.sqrt(size)
        sees = ids[:, None] == ids[None]
        if not is_global:
            sees &= np.abs(place[:, None] - place[None]) <= 8
        scores = np.where(sees, scores, -np.inf)
        exponentials = np.exp(scores - scores.max(-1, keepdims=True))
        weights.append(exponentials / exponentials.sum(-1, keepdims=True))
        context = (weights[-1] @ value).swapaxes(0, 1).reshape(len(x), -1)
        x = norm(x + mapped(context, layer["attention_output"]), layer["attention_norm"])
        inner = mapped(x, layer["intermediate"])
        inner = inner / (1 + np.exp(-inner))
        x = norm(x + mapped(inner, layer["output"]), layer["output_norm"])
    return x, weights


@pytest.mark.parametrize("attention", ["fused", "plain"])
@pytest.mark.parametrize("layers", ["unroll", "scan"])
def test_alternating_layers_equal_the_formula(layers, attention):
    params, batch = random_params(_MODEL, _BARE), rows()
    compute = ComputeConfig(dtype="float32", layer_loop=layers, attention=attention)
    run = functools.partial(bert.apply, config=_MODEL, head=_BARE, compute=compute)
    found = np.asarray(jax.jit(run)(params, batch)["last_hidden_state"])[0]
    expected, _ = formula(params, batch)
    is_token = batch["sequence_ids"][0] > 0
    np.testing.assert_allclose(found[is_token], expected[is_token], atol=1e-5, rtol=0)


def test_layers_read_at_some_positions_equal_those_read_everywhere():
    """A global layer, and a local one that computes only the positions that are read."""
    model = dataclasses.replace(_MODEL, num_hidden_layers=2)
    head, compute = HeadConfig(parts=("mlm",)), ComputeConfig(dtype="float32")
    params, batch = random_params(model, head), rows()
    batch["mlm_positions"] = np.array([[40, 3, 29, 31]], np.int32)
    run = functools.partial(bert.apply, config=model, head=head, compute=compute)
    whole = functools.partial(run, hidden_states=True)
    read, everywhere = (jax.jit(f)(params, batch)["mlm_logits"] for f in (run, whole))
    np.testing.assert_allclose(read, everywhere, atol=1e-5)


def test_the_attention_page_has_the_weights_of_local_layers(tmp_path):
    words = vocabulary(tmp_path / "words", size=60)
    source = checkpoint("rotary", words)
    source = dataclasses.replace(
        source,
        config=dataclasses.replace(source.config, model=_MODEL),
        params=jax.device_put(
            random_params(_MODEL, _BARE), jax.NamedSharding(source.mesh, jax.P())
        ),
    )
    draw = np.random.default_rng(1)
    texts = [" ".join(f"w{n}" for n in draw.integers(0, 55, size)) for size in (28, 20)]
    found = AttentionProbe(source, load_tokenizer(words))(texts, packed=True)
    batch = rows()
    ids = load_tokenizer(words).encode_sentences(texts)
    special = load_tokenizer(words).special
    tokens = [[special.cls, *sentence, special.sep] for sentence in ids]
    batch = {name: array[:, : sum(_LENGTHS)] for name, array in batch.items()}
    batch["input_ids"] = np.array([np.concatenate(tokens)], np.int32)
    batch["token_type_ids"] = batch["token_type_ids"] * 0
    _, weights = formula(source.params, batch)
    for layer, expected in enumerate(weights):
        np.testing.assert_allclose(found.weights(layer), expected, atol=1e-5)
    seen = AttentionDocument(found, about={}).compact()["seen"]
    assert seen["layers"] == [seen["layers"][layer % 3] for layer in range(8)]
    for layer, expected in enumerate(weights):
        kind = seen["kinds"][seen["layers"][layer]]
        np.testing.assert_array_equal(
            [[letter == "1" for letter in row] for row in kind], expected[0] > 0
        )


def test_specs_by_the_fields():
    assert {layer.window for layer in layer_specs(ModelConfig())} == {None}
    local = layer_specs(ModelConfig(attention_window=4))
    assert {(layer.window, layer.rope_theta) for layer in local} == {(4, 10_000.0)}
    windows = [layer.window for layer in layer_specs(_MODEL)]
    assert windows == [None, 16, 16, None, 16, 16, None, 16]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("global_attention_every_n_layers=3", "has an effect with attention_window only"),
        ("local_rope_theta=100", "has an effect with position_embedding_type rotary"),
        ("first_global_layer=2", "has an effect with global_attention_every_n_layers"),
        ("mixer=attentoin", "Did you mean 'attention'?"),
    ],
)
def test_what_nothing_reads_is_refused(change, message):
    with pytest.raises(UsageError, match=message):
        load_config("bert_base", [f"model.{change}"])
