"""Blocks of other shapes than BERT's: everything that goes by the names of parameters."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import ComputeConfig, HeadConfig, ModelConfig, Optimizer
from bert_jax.config_loader import load_config
from bert_jax.errors import UsageError
from bert_jax.interchange import huggingface_config, tf1
from bert_jax.interchange.name_map import Foreign
from bert_jax.model import bert, sharding
from bert_jax.registry import FAMILIES, POSITIONS
from bert_jax.update.layer_rates import layer_rates
from bert_jax.update.muon import _labels
from bert_jax.update.optimizers import decay_mask, make
from tests.batches import mesh_of, random_batch
from tests.models import random_params

_MODEL = ModelConfig(
    vocab_size=50,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=16,
)
_MODERN = dataclasses.replace(
    _MODEL,
    norm_placement="pre",
    norm_bias=False,
    linear_bias=False,
    feed_forward="gated",
    position_embedding_type="rotary",
)
_MLM = HeadConfig(parts=("mlm",))


def paths(tree) -> dict[str, object]:
    leaves = jax.tree.leaves_with_path(tree)
    return {".".join(entry.key for entry in path): leaf for path, leaf in leaves}


def test_parameters_are_those_that_are_read():
    found = paths(bert.abstract_params(_MODERN, _MLM))
    assert not [name for name in found if name.endswith(".bias") and name != "mlm.bias"]
    assert found["encoder.final_norm.scale"].shape == (32,)
    assert found["encoder.layer_1.gate.kernel"].shape == (32, 48)
    assert "encoder.embeddings.position.embedding" not in found
    plain = paths(bert.abstract_params(_MODEL, _MLM))
    assert set(found) - set(plain) == {
        "encoder.final_norm.scale",
        *(f"encoder.layer_{number}.gate.kernel" for number in range(2)),
    }


def test_what_goes_by_names_knows_the_new_ones():
    relative = dataclasses.replace(_MODERN, position_embedding_type="relative_key")
    for model in (_MODERN, relative, dataclasses.replace(relative, position_embedding_type="t5")):
        params = bert.abstract_params(model, _MLM)
        decayed, labels = paths(decay_mask(params)), paths(_labels(params))
        rates = paths(layer_rates(params, decay=0.5, frozen_layers=1))
        for name in decayed:
            assert decayed[name] == name.endswith(("kernel", "embedding")), name
            is_hidden = ".layer_" in name and name.endswith("kernel")
            assert labels[name] == ("muon" if is_hidden else "adam"), name
        assert rates["encoder.final_norm.scale"] == rates["mlm.bias"] == 1
        assert rates["encoder.layer_1.gate.kernel"] == 0.25
        assert (
            rates["encoder.layer_0.gate.kernel"] == 0 == rates["encoder.embeddings.word.embedding"]
        )
        for kind in ("lamb", "stable_adamw", "muon"):
            jax.eval_shape(make(Optimizer.of_kind(kind)()).init, params)


# Blocks that differ from BERT's in every part, and each kind of table; how they are written out.
_ON_MESHES = {
    "modern": (_MODERN, "scan"),
    "t5": (dataclasses.replace(_MODEL, position_embedding_type="t5"), "unroll"),
    "relative": (
        dataclasses.replace(_MODEL, position_embedding_type="relative_key_query"),
        "scan",
    ),
}


@pytest.mark.parametrize("name", _ON_MESHES)
def test_loss_and_gradients_are_the_same_on_every_mesh(name, monkeypatch):
    """On one device unrolled; on eight, and on four times two, as the case has it. All matrices are
    stored in pieces.
    """
    monkeypatch.setattr(sharding, "_SMALL", 129)
    model, layers = _ON_MESHES[name]
    params = random_params(model, _MLM)
    batch = random_batch(rows=8, length=12, predictions=3, vocab_size=50)
    shapes = {1: "unroll", (1, 8, 1): layers, (1, 4, 2, 2): layers}
    if name == "t5":
        del shapes[(1, 8, 1)]
    first, *others = (_on_mesh(model, params, batch, *shape) for shape in shapes.items())
    for other in others:
        assert other[0] == pytest.approx(first[0], rel=1e-5)
        for path, ours in paths(other[1]).items():
            expected = paths(first[1])[path]
            # The gradient of a key's bias nearly cancels: it is rounded as its terms are.
            bound = max(np.abs(expected).max(), 2e-3)
            np.testing.assert_allclose(ours, expected, atol=1e-5 * bound, rtol=0, err_msg=path)


def _on_mesh(model: ModelConfig, params, batch, shape, layers: str):
    """Returns the loss and the gradients, with parameters stored as they are in training."""
    compute = ComputeConfig(dtype="float32", layer_loop=layers)
    mesh = mesh_of(shape)

    def loss(params, batch):
        found = bert.apply(params, batch, config=model, head=_MLM, compute=compute)
        logits = found["mlm_logits"][..., : model.vocab_size]
        return jnp.mean(jnp.sin(logits))

    with jax.set_mesh(mesh):
        stored = sharding.param_shardings(params, mesh=mesh, shard_weights=True)
        arrays = jax.device_put((params, batch), (stored, sharding.batch_sharding(mesh)))
        return jax.device_get(jax.jit(jax.value_and_grad(loss))(*arrays))


_NOT_BERT = [
    *(("norm_placement", "pre"), ("norm", "rmsnorm"), ("norm_bias", False), ("linear_bias", False)),
    *(("feed_forward", "gated"), ("embedding_norm", False), ("decoder_bias", False)),
    *(("tie_word_embeddings", False), ("type_vocab_size", 0)),
    *(("position_embedding_type", kind) for kind in POSITIONS._builtin if kind != "learned"),
]
# transformers' BERT has these, or an untied decoder.
_IN_TRANSFORMERS = ("relative_key", "relative_key_query")


@pytest.mark.parametrize(("name", "value"), _NOT_BERT)
def test_a_format_of_bert_refuses_what_it_cannot_say(name, value, tmp_path):
    model = dataclasses.replace(_MODEL, **{name: value})
    message = f"(?i)model.{name} is {value}, which this format does not support"
    with pytest.raises(UsageError, match=message):
        tf1.write(tmp_path / "out", Foreign(model, HeadConfig(), {}), tokenizer=tmp_path)
    if name != "tie_word_embeddings" and value not in _IN_TRANSFORMERS:
        with pytest.raises(UsageError, match=message):
            FAMILIES["bert"].require_expressible(model, HeadConfig())


def test_silu_is_bert_to_hugging_face_and_not_to_tf1(tmp_path):
    model = dataclasses.replace(_MODEL, hidden_act="silu")
    assert huggingface_config.config_of(model)["hidden_act"] == "silu"
    foreign = Foreign(model, HeadConfig(), {})
    with pytest.raises(UsageError, match=r"model\.hidden_act is silu"):
        tf1.write(tmp_path / "out", foreign, tokenizer=tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["norm=rmsnorm", "norm_bias=false"],
            "model.norm_bias is False, which has an effect with norm layernorm only",
        ),
        (["norm=batchnorm"], "expected one of layernorm, rmsnorm"),
        (["norm_placement=both"], "expected one of post, pre"),
        (["feed_forward=glu"], "expected one of dense, gated"),
    ],
)
def test_what_a_block_cannot_be(changes, message):
    with pytest.raises(UsageError) as caught:
        load_config("bert_base", [f"model.{change}" for change in changes])
    assert message in str(caught.value)
