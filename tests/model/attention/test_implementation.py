"""Each implementation beside the plain one, what serves which layer, and what is refused."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import config_checks, config_loader
from bert_jax.config import (
    ComputeConfig,
    Mixing,
    ModelConfig,
    OptimizerConfig,
    PhaseConfig,
    TrainConfig,
)
from bert_jax.errors import UsageError
from bert_jax.model import bert
from bert_jax.model.attention import Call, chunked
from bert_jax.model.attention.implementation import serving
from bert_jax.model.mask import Mask
from bert_jax.model.sharding import batch_sharding
from bert_jax.registry import ATTENTION
from bert_jax_lab.planning.topologies import CHIPS
from tests.batches import mesh_of
from tests.paths import ROOT

pytestmark = pytest.mark.core

_NAMES = ("fused", "local", "chunked")
_ROWS, _HEADS, _SIZE, _LENGTH = 2, 2, 16, 150
# Two sequences; padding follows.
_PACKED = (80, 50)
_READ = (3, 79, 81, 129)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Rows of 150 in three chunks, the last of them not full, and one head after the other."""
    monkeypatch.setattr(chunked, "_QUERIES", 64)
    monkeypatch.setattr(chunked, "_SCORES", 1)


def _mask(window: int | None) -> Mask:
    lengths = [*_PACKED, _LENGTH - sum(_PACKED)]
    ids = np.repeat([1, 2, 0], lengths).astype(np.int32)
    place = np.concatenate([np.arange(n) for n in lengths]).astype(np.int32)
    return Mask.of_rows(*(np.tile(x, (_ROWS, 1)) for x in (ids, place)), window=window)


def _heads(count: int, dtype: Any = np.float32) -> list[jax.Array]:
    draw = np.random.default_rng(0)
    shape = (_ROWS, _HEADS, _SIZE, _LENGTH)
    return [jnp.asarray(draw.normal(size=shape), dtype) for _ in range(count)]


def _attend(name: str, q, k, v, mask: Mask) -> jax.Array:
    return ATTENTION[name].attend(Call(q, k, v, mask))


def _with_gradients(name: str, mask: Mask, dtype: Any) -> list[np.ndarray]:
    """Returns the outputs at real tokens, and the gradients of queries, keys and values."""
    q, k, v, weights = _heads(4, dtype)
    real = jnp.asarray(mask.query_ids_BL > 0)[:, None, None]

    def outputs(q, k, v):
        return jnp.where(real, _attend(name, q, k, v, mask), 0)

    out, pull = jax.vjp(jax.jit(outputs), q, k, v)
    return [np.asarray(x, np.float32) for x in (out, *pull(weights))]


def _cases():
    for window in (None, 16, 60):
        yield from ((name, window) for name in _NAMES if window or name != "local")


@pytest.mark.parametrize(("name", "window"), [*_cases()])
def test_each_equals_the_plain_one(name, window):
    """In float32; in bfloat16 it is as near to float32 as the plain one. A key or a value of
    padding has no gradient: real tokens do not see it.
    """
    mask = _mask(window)
    exact, rounded = (_with_gradients("plain", mask, t) for t in (jnp.float32, jnp.bfloat16))
    for found, wanted in zip(_with_gradients(name, mask, jnp.float32), exact, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    for found, plain, wanted in zip(
        _with_gradients(name, mask, jnp.bfloat16), rounded, exact, strict=True
    ):
        assert not found[..., sum(_PACKED) :].any()
        scale = np.abs(wanted).max()
        assert np.abs(found - wanted).max() < max(2 * np.abs(plain - wanted).max(), scale * 2**-7)


@pytest.mark.parametrize("window", [None, 16])
@pytest.mark.parametrize("name", ["fused", "chunked"])
def test_queries_that_are_read_get_what_they_get_among_all(name, window):
    q, k, v = _heads(3)
    mask, read = _mask(window), np.tile(np.array(_READ, np.int32), (_ROWS, 1))
    everywhere = _attend("plain", q, k, v, mask)
    found = _attend(name, q[..., read[0]], k, v, mask.at(jnp.asarray(read)))
    np.testing.assert_allclose(found, everywhere[..., read[0]], atol=1e-5)


def test_a_mesh_changes_nothing():
    """Rows and heads are cut; no device asks another."""
    q, k, v = _heads(3)
    mask, mesh = _mask(None), mesh_of((1, 2, 2))
    wanted = _with_gradients("plain", mask, jnp.float32)[0]
    real = mask.query_ids_BL[0] > 0
    with jax.set_mesh(mesh):
        rows = batch_sharding(mesh)
        by_heads = jax.NamedSharding(mesh, jax.P(rows.spec[0], "tensor", None, None))
        program = jax.jit(lambda q, k, v, mask: _attend("chunked", q, k, v, mask))
        placed = *(jax.device_put(x, by_heads) for x in (q, k, v)), jax.device_put(mask, rows)
        found = program(*placed)
        text = str(program.lower(*placed).compile().as_text())
    np.testing.assert_allclose(found[..., real], wanted[..., real], atol=1e-5)
    assert not re.search(r"all-(gather|to-all|reduce)|collective-permute", text)


# --- what serves ----------------------------------------------------------------------------------

_MODERN = ModelConfig(
    position_embedding_type="rotary",
    attention_probs_dropout_prob=0.0,
    attention_window=128,
    global_attention_every_n_layers=3,
    num_hidden_layers=4,
)
_KINDS = ["cpu", "NVIDIA H100 80GB HBM3", *(chip.device_kind for chip in CHIPS.values())]


def test_names_are_those_of_the_table():
    assert {name: ATTENTION[name].name for name in ATTENTION.names()} == {
        name: name for name in ATTENTION.names() if ATTENTION.is_builtin(name)
    }


@pytest.mark.parametrize("kind", _KINDS)
def test_what_serves_each_kind_of_layer(kind):
    def layers(model, length, name="auto"):
        return serving(name, model, length=length, device_kind=kind, dtype="bfloat16")

    bert_base = dataclasses.replace(_MODERN, attention_window=0)
    # On a GPU a kernel takes short rows, and all that drop weights.
    kernel = "triton" if kind.startswith("NVIDIA") else "fused"
    for length in (128, 512):
        assert layers(ModelConfig(), length) == {"global": kernel, "last": "fused"}
        assert layers(bert_base, length)["global"] == kernel
    assert layers(_MODERN, 128)["local"] == "fused"
    # Two kinds of chips have the fast memory for chunks at 1,024.
    whole = "chunked" if kind in ("TPU v4", "TPU v5 lite", "TPU v6 lite") else "fused"
    # NVIDIA's library serves the layers of which every column is a query.
    library = "cudnn" if kind.startswith("NVIDIA") else None
    assert layers(_MODERN, 1024) == {"global": library or whole, "local": "local", "last": whole}
    whole = library or "chunked"
    assert layers(_MODERN, 8192) == {"global": whole, "local": "local", "last": "chunked"}
    # Dropout of weights has no chunks, and what is added to scores is of L x S already.
    assert layers(ModelConfig(), 8192)["global"] == kernel
    alibi = dataclasses.replace(_MODERN, position_embedding_type="alibi")
    assert {*layers(alibi, 8192).values()} == {"plain"}
    # A name is what serves whole rows; plain serves all.
    assert layers(_MODERN, 8192, "fused") == {"global": "fused", "local": "local", "last": "fused"}
    assert {*layers(_MODERN, 8192, "plain").values()} == {"plain"}
    config_loader.execute(ROOT / "studies" / "extend" / "layer_types.py")
    assert layers(dataclasses.replace(_MODERN, mixer=Mixing.of_kind("gru")()), 128) == {}


def test_a_function_of_ones_own_serves_everything(monkeypatch):
    monkeypatch.setitem(ATTENTION._entries, "mine", ATTENTION["plain"].attend)
    found = serving("mine", _MODERN, length=8192, device_kind="cpu", dtype="float32")
    assert {*found.values()} == {"mine"}


def test_long_rows_make_nothing_of_length_times_length():
    """The whole train step: embeddings, blocks, last block, head, loss and their derivatives."""
    length, model = 4096, dataclasses.replace(
        _MODERN,
        vocab_size=97,
        hidden_size=16,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=4096,
        type_vocab_size=0,
    )  # fmt: skip
    head = config_loader.load_config("modernbert_base").head
    params = bert.abstract_params(model, head)
    ids = jax.ShapeDtypeStruct((1, length), jnp.int32)
    read = jax.ShapeDtypeStruct((1, 614), jnp.int32)
    names = ("input_ids", "token_type_ids", "position_ids", "sequence_ids")
    batch = {**dict.fromkeys(names, ids), "mlm_positions": read}

    def loss(params, batch, attention):
        compute = ComputeConfig(dtype="float32", attention=attention)
        outputs = bert.apply(params, batch, config=model, compute=compute, head=head)
        return jnp.sum(outputs["mlm_logits"])

    def has_square(attention):
        step = jax.jit(jax.grad(loss), static_argnums=2)
        shapes = re.findall(
            r"tensor<([\dx]+)x[a-z]\w*>", step.lower(params, batch, attention).as_text()
        )
        return any(shape.split("x").count(str(length)) > 1 for shape in shapes)

    assert not has_square("auto")
    assert has_square("fused")


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("chunked", {"attention_probs_dropout_prob": 0.1}, "attention_probs_dropout_prob=0"),
        ("chunked", {"position_embedding_type": "alibi"}, "choose auto or plain"),
        ("local", {"attention_window": 0, "global_attention_every_n_layers": 0},
         "set model.attention_window"),
    ],
)  # fmt: skip
def test_a_config_is_refused_by_name_with_the_remedy(name, changes, said):
    config = TrainConfig(
        name="mine",
        model=dataclasses.replace(_MODERN, **changes),
        compute=ComputeConfig(attention=name),
        phases=(PhaseConfig(sequence_length=512, steps=9, global_batch_size=8),),
        optimizer=OptimizerConfig(warmup_steps=1),
    )
    with pytest.raises(UsageError, match=rf"compute.attention is {name}, which .*{said}"):
        config_checks.validate(config_checks.complete(config))
    config_checks.validate(
        config_checks.complete(dataclasses.replace(config, compute=ComputeConfig()))
    )
