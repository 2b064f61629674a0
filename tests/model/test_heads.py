"""An encoder with any of its parts: which parameters, which outputs, and where dropout is."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import ComputeConfig, HeadConfig, ModelConfig, TrainConfig
from bert_jax.config_checks import validate
from bert_jax.errors import UsageError
from bert_jax.interchange import huggingface
from bert_jax.model import bert, sharding
from bert_jax.model.dropout import DropoutKey

_MODEL = ModelConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=12,
)
_FLOAT32 = ComputeConfig(dtype="float32")
_LABELS = ("no", "yes", "perhaps")
HEADS = {
    "encoder": HeadConfig(parts=()),
    "pooled": HeadConfig(parts=("pooler",)),
    "masked": HeadConfig(parts=("mlm",)),
    "next": HeadConfig(parts=("pooler", "nsp")),
    "pretraining": HeadConfig(),
    "sequence": HeadConfig(parts=("pooler", "sequence_classifier"), labels=_LABELS),
    "regression": HeadConfig(parts=("pooler", "sequence_classifier")),
    "tokens": HeadConfig(parts=("token_classifier",), labels=_LABELS),
    "spans": HeadConfig(parts=("span_classifier",)),
}


def batch(rows: int = 8, length: int = 12) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    return {
        "input_ids": draw.integers(5, 50, (rows, length)).astype(np.int32),
        "token_type_ids": np.zeros((rows, length), np.int32),
        "position_ids": np.tile(np.arange(length, dtype=np.int32), (rows, 1)),
        "sequence_ids": np.ones((rows, length), np.int32),
    }


def params_of(model: ModelConfig, head: HeadConfig, mesh: jax.sharding.Mesh):
    """Layers have the same numbers, however many follow them."""
    # Outside of the mesh: its operations are compiled one by one, for each mesh.
    params = bert.init_params(model, head, seed=0)
    return jax.device_put(params, jax.NamedSharding(mesh, jax.P()))


@partial(jax.jit, static_argnames=("config", "head", "compute", "hidden_states"))
def _apply(params, arrays, step, **options):
    """The outputs, with dropout in training where there is a step."""
    key = None
    if step is not None:
        rows = jax.lax.broadcasted_iota(jnp.uint32, (8,), 0, out_sharding=sharding.batch_spec())
        key = DropoutKey.create(seed=1, step=step, rows_B=rows)
    return bert.apply(params, arrays, key=key, **options)


def outputs_of(
    head: HeadConfig,
    *,
    step: int | None = None,
    extra=None,
    model: ModelConfig = _MODEL,
    compute: ComputeConfig = _FLOAT32,
    **options,
) -> dict:
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    params = params_of(model, head, mesh)
    with jax.set_mesh(mesh):
        arrays = jax.device_put(batch() | (extra or {}), sharding.batch_sharding(mesh))
        step = None if step is None else jnp.int32(step)
        found = _apply(params, arrays, step, config=model, head=head, compute=compute, **options)
        return jax.device_get(found)


def test_one_pooler_for_the_classifier_and_for_next_sentence():
    """Both read the first token, unless the batch says where the pairs of a row begin."""
    spoken = outputs_of(HEADS["next"], extra={"nsp_positions": np.zeros((8, 1), np.int32)})
    silent = outputs_of(HEADS["next"])
    for name in ("pooled", "nsp_logits"):
        np.testing.assert_array_equal(spoken[name], silent[name])
    elsewhere = outputs_of(HEADS["next"], extra={"nsp_positions": np.full((8, 1), 3, np.int32)})
    assert not np.allclose(elsewhere["nsp_logits"], silent["nsp_logits"])


@pytest.mark.parametrize("kind", HEADS)
def test_a_part_is_a_subtree(kind):
    params = bert.abstract_params(_MODEL, HEADS[kind])
    assert set(params) == {"encoder", *HEADS[kind].parts}
    shared = bert.init_params(_MODEL, HEADS["encoder"], seed=0)["encoder"]
    own = bert.init_params(_MODEL, HEADS[kind], seed=0)["encoder"]
    assert jax.tree.all(jax.tree.map(np.array_equal, shared, own))


@pytest.mark.parametrize("kind", ["pretraining", "sequence"])
@pytest.mark.parametrize("layers", ["unroll", "scan"])
def test_the_last_block_computes_what_is_read(kind, layers):
    """The same outputs and the same gradients as where it computes every position."""
    positions = np.tile(np.array([[3, 11, 5, 0]], np.int32), (8, 1))
    # Two texts in a row, and padding: a position that is read sees those of its own text.
    sequences = np.tile(np.repeat(np.array([1, 2, 0], np.int32), [4, 6, 2]), (8, 1))
    extra = {"nsp_positions": np.full((8, 1), 4, np.int32), "sequence_ids": sequences}
    if "mlm" in HEADS[kind].parts:
        extra["mlm_positions"] = positions
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    params = params_of(_MODEL, HEADS[kind], mesh)
    with jax.set_mesh(mesh):
        arrays = jax.device_put(batch() | extra, sharding.batch_sharding(mesh))

        def run(params, hidden_states):
            outputs = bert.apply(
                params,
                arrays,
                config=_MODEL,
                head=HEADS[kind],
                compute=dataclasses.replace(_FLOAT32, layer_loop=layers),
                hidden_states=hidden_states,
            )
            for name in ("hidden_states", "last_hidden_state"):
                assert (outputs.pop(name, None) is not None) == hidden_states
            return sum(jnp.sum(jnp.sin(x)) for x in outputs.values()), outputs

        found, expected = (
            jax.device_get(
                jax.jit(jax.value_and_grad(partial(run, hidden_states=every), has_aux=True))(params)
            )
            for every in (False, True)
        )
    assert found[0][1].keys() == expected[0][1].keys()
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), found, expected)


@pytest.mark.parametrize(
    ("compute", "step"),
    [
        (_FLOAT32, 1),
        (ComputeConfig(dtype="float32", layer_loop="scan"), 1),
        (ComputeConfig(layer_loop="scan"), None),
    ],
    ids=["unrolled, dropout", "scanned, dropout", "scanned, bfloat16"],
)
def test_hidden_states_of_one_pass_are_those_of_a_model_cut_short(compute, step):
    """The embeddings, and the output of each block, also of the last one of the shorter model."""
    # Far enough from the beginning for layers to differ.
    model = dataclasses.replace(_MODEL, num_hidden_layers=3, initializer_range=0.3)
    # Padding too: what it holds is of no use, and yet the same.
    extra = {"sequence_ids": np.tile(np.repeat(np.array([1, 0], np.int32), [9, 3]), (8, 1))}
    options = {"step": step, "extra": extra, "hidden_states": True, "compute": compute}
    whole = outputs_of(HEADS["encoder"], model=model, **options)
    states = whole["hidden_states"]
    assert len(states) == 4
    assert {(s.shape, s.dtype) for s in states} == {((8, 12, 16), np.dtype(compute.dtype))}
    np.testing.assert_array_equal(states[-1], whole["last_hidden_state"])
    cut = dataclasses.replace(model, num_hidden_layers=2)
    short = outputs_of(HEADS["encoder"], model=cut, **options)["hidden_states"]
    tolerance = 2e-2 if compute.dtype == "bfloat16" else 1e-5
    for pair in zip(states[:3], short, strict=True):
        np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in pair), atol=tolerance)
    assert all(np.abs(states[depth] - states[depth - 1]).max() > 0.5 for depth in (1, 2))


@pytest.mark.parametrize(
    "kind, under, drops",
    [
        ("sequence", "pooled", True),
        ("tokens", "last_hidden_state", True),
        ("spans", "last_hidden_state", False),
    ],
)
def test_where_heads_have_dropout(kind, under, drops):
    """With the key of a step, logits are the affine map of what lies under them, or not."""
    part = HEADS[kind].parts[-1]
    affine = bert.init_params(_MODEL, HEADS[kind], seed=0)[part]
    for step, expected in ((None, True), (1, not drops), (2, not drops)):
        found = outputs_of(HEADS[kind], step=step)
        logits = found[under] @ affine["kernel"] + affine["bias"]
        name = part.replace("_classifier", "_logits")
        assert np.allclose(found[name], logits, atol=1e-5) == expected


@pytest.mark.parametrize(
    "head, message",
    [
        (HeadConfig(parts=("pooler", "decoder")), "head.parts is 'decoder'; choose one of pooler"),
        (
            HeadConfig(parts=("pooler", "sequence_classifier", "token_classifier")),
            "at most one classifier",
        ),
        (HeadConfig(parts=("mlm", "mlm")), "each once"),
        (HeadConfig(parts=("sequence_classifier",)), "needs pooler"),
        (HeadConfig(parts=("nsp", "mlm")), "needs pooler"),
        (HeadConfig(parts=("token_classifier",), labels=("a", "a")), "each label once"),
    ],
)
def test_heads_that_cannot_be(head, message):
    with pytest.raises(UsageError) as caught:
        validate(TrainConfig(head=head))
    assert message in str(caught.value)


@pytest.mark.parametrize("pooling", ["mean", "late"])
def test_a_text_is_the_mean_of_its_own_tokens(pooling):
    """Rows hold two texts and padding; one of padding alone has no NaN."""
    model = dataclasses.replace(_MODEL, classifier_pooling=pooling)
    ids = np.repeat([[1] * 5 + [2] * 4 + [0] * 3], 8, axis=0)
    ids[7] = 0
    places = np.tile(np.array([[0, 5]], np.int32), (8, 1))
    extra = {"sequence_ids": ids.astype(np.int32), "text_positions": places}
    found = outputs_of(HEADS["pooled"], model=model, extra=extra, hidden_states=True)
    dense = bert.init_params(model, HEADS["pooled"], seed=0)["pooler"]["dense"]
    assert found["pooled"].shape == (8, 2, 16) and np.isfinite(found["pooled"]).all()

    def mapped(x):
        return np.tanh(x @ dense["kernel"] + dense["bias"])

    for row in range(7):
        states = found["last_hidden_state"][row]
        for number, text in enumerate((states[:5], states[5:9])):
            mean = text.mean(axis=0)
            expected = mapped(mean) if pooling == "mean" else mapped(text).mean(axis=0)
            np.testing.assert_allclose(found["pooled"][row, number], expected, atol=1e-5)


def test_what_no_format_reads_is_not_exported():
    model = dataclasses.replace(_MODEL, classifier_pooling="mean")
    assert "model.classifier_pooling is mean" in huggingface.refusal(model, HEADS["sequence"])
    assert not huggingface.refusal(model, HEADS["pretraining"])


@pytest.mark.parametrize("kind", ["sequence", "tokens", "spans"])
def test_scores_are_not_rounded_to_bfloat16(kind):
    (name,) = (n for n in outputs_of(HEADS[kind]) if n.endswith("_logits"))
    found = outputs_of(HEADS[kind], compute=ComputeConfig(dtype="bfloat16"))[name]
    assert found.dtype == np.float32
    assert np.any(found != found.astype(jnp.bfloat16).astype(np.float32))
