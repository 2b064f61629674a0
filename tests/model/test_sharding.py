"""Arrays lie on the mesh as they should, and that changes nothing else."""

import dataclasses
import itertools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import (
    ComputeConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    PhaseConfig,
    TrainConfig,
)
from bert_jax.config_checks import validate
from bert_jax.errors import UsageError
from bert_jax.model import bert, layers, sharding
from bert_jax.model.dropout import DropoutKey, keep_mask
from bert_jax.objectives.mlm_nsp import MLM_NSP
from bert_jax.update.state import TrainState
from bert_jax.update.step import compile_lowered, lower_train_step, train_step
from tests.batches import mesh_of, random_batch

# slices x fsdp x tensor, and how many of fsdp are its second axis
_MESHES = [
    pytest.param((1, 8, 1), marks=pytest.mark.full),
    pytest.param((1, 8, 1, 2), marks=pytest.mark.full),
    (1, 4, 2, 2),
    pytest.param((1, 2, 4), marks=pytest.mark.full),
    pytest.param((2, 2, 2), marks=pytest.mark.core),
    pytest.param((2, 4, 1, 2), marks=[pytest.mark.core, pytest.mark.full]),
]

# The odd vocabulary (2 x 257) divides by 2 and not by 4; its embedding and the feed-forward
# kernels are large enough to be stored in pieces.
_CONFIG = TrainConfig(
    model=ModelConfig(
        vocab_size=514,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=32,
    ),
    compute=ComputeConfig(dtype="float32"),
    optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=5),
    phases=(PhaseConfig(sequence_length=32, steps=20, global_batch_size=16, max_predictions=5),),
)


def train(config: TrainConfig, shape, *, steps: int = 20):
    """The state after the last step, the rows of all, and the state after the sixth."""
    mesh = mesh_of(shape)
    rows = []
    sixth = None
    # Outside of the mesh: what it computes one operation at a time is compiled once for all meshes.
    state = TrainState.initial(config, mesh)
    with jax.set_mesh(mesh):
        layout = sharding.batch_sharding(mesh)
        step = None
        for number in range(steps):
            batch = random_batch(rows=16, length=32, predictions=5, vocab_size=514, seed=number)
            batch = jax.device_put(batch, layout)
            step = step or compile_lowered(
                lower_train_step(config, state, batch, objective=MLM_NSP)
            )
            state, row = step(state, batch)
            rows.append({name: float(value) for name, value in row.items()})
            if number == 5:
                sixth = jax.device_get(state)
    return jax.device_get(state), rows, sixth


def assert_same_run(one, other) -> None:
    (state, rows, sixth), (other_state, other_rows, _) = one, other
    state = state if len(other_rows) == 20 else sixth
    for a, b in zip(rows[: len(other_rows)], other_rows, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
        assert a["mlm_accuracy"] == pytest.approx(b["mlm_accuracy"], abs=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), state.params, other_state.params
    )


@pytest.fixture(scope="module")
def on_one_device():
    return train(_CONFIG, (1, 1, 1))


@pytest.mark.parametrize("shape", _MESHES, ids=str)
def test_training_is_the_same_on_every_mesh(on_one_device, shape):
    """With dropout and with weights stored in pieces (Adam's first steps magnify rounding)."""
    steps = 6 if shape[2] > 1 and shape[0] == 1 else 20
    # One of the meshes has its weights gathered by layer.
    gather = "per_layer" if shape == (1, 2, 4) else "per_step"
    compute = dataclasses.replace(_CONFIG.compute, weight_gather=gather)
    config = dataclasses.replace(_CONFIG, compute=compute)
    assert_same_run(on_one_device, train(config, shape, steps=steps))


@pytest.mark.parametrize(
    ("mesh", "compute"),
    [
        (MeshConfig(shard_weights=False), {}),
        (
            MeshConfig(),
            {"weight_gather": "per_layer", "layer_loop": "scan", "remat": "full", "loss_slices": 3},
        ),
    ],
    ids=["replicated", "fully sharded, scanned, rematerialised, loss in slices"],
)
def test_modes_change_nothing(on_one_device, mesh, compute):
    compute = dataclasses.replace(_CONFIG.compute, **compute)
    config = dataclasses.replace(_CONFIG, mesh=mesh, compute=compute)
    assert_same_run(on_one_device, train(config, (1, 4, 2), steps=6))


@pytest.mark.parametrize(
    "shape", [pytest.param((1, 8, 1, 2), marks=pytest.mark.full), (1, 4, 2)], ids=str
)
def test_gradients_as_gpus_add_and_multiply_them_change_nothing(on_one_device, shape, monkeypatch):
    """Copies of weights whose gradients are summed late take it, too. In bfloat16 a loss is as near
    as rounding lets it be.
    """
    asked = []
    monkeypatch.setattr(layers, "is_on_gpu", lambda: asked.append(True) or True)
    assert_same_run(on_one_device, train(_CONFIG, shape, steps=6))
    assert asked
    rounded = dataclasses.replace(_CONFIG, compute=ComputeConfig(dtype="bfloat16"))
    for row, wanted in zip(train(rounded, shape, steps=3)[1], on_one_device[1], strict=False):
        assert row["loss"] == pytest.approx(wanted["loss"], rel=2e-3)


@pytest.mark.parametrize(
    "shape", [pytest.param((1, 8, 1), marks=pytest.mark.full), (1, 4, 2)], ids=str
)
def test_a_vocabulary_gathered_by_rows_changes_nothing(on_one_device, shape, monkeypatch):
    """As TPUs gather one that does not divide; what is stored has the same shapes."""
    monkeypatch.setattr(sharding, "_gathers_rows", lambda: True)
    gathered, by_rows = [], sharding._cut_by_rows
    monkeypatch.setattr(
        sharding, "_cut_by_rows", lambda leaf: gathered.append(x := by_rows(leaf)) or x
    )
    assert_same_run(on_one_device, train(_CONFIG, shape, steps=6))
    (table,) = {x.shape for x in gathered}
    assert table == (576 if shape[1] == 8 else 544, 128)  # whole tiles of 8 rows on each device


@pytest.mark.parametrize("shape", _MESHES, ids=str)
@pytest.mark.parametrize("kind", ["cpu", "TPU v3"])  # one chip per hash
def test_dropout_masks_are_identical_on_every_mesh(shape, kind, monkeypatch):
    """The tensor axis cuts heads, the other axes cut rows."""
    monkeypatch.setattr("bert_jax.model.dropout.device_kind", lambda: kind)

    def mask(mesh):
        layout = sharding.batch_sharding(mesh)
        rows = jax.device_put(jnp.arange(16, dtype=jnp.uint32), layout)
        cut = jax.NamedSharding(mesh, sharding.batch_spec("tensor"))
        scores = jax.device_put(jnp.zeros((16, 4, 32, 32)), cut)

        def draw(rows, scores):
            key = DropoutKey.create(seed=3, step=jnp.int32(5), rows_B=rows)
            return keep_mask(key, scores, rate=0.1)

        with jax.set_mesh(mesh):
            drawn = jax.jit(draw)(rows, scores)
        assert drawn.sharding.is_equivalent_to(cut, 4)
        return np.asarray(drawn)

    np.testing.assert_array_equal(mask(mesh_of((1, 1, 1))), mask(mesh_of(shape)))


def test_what_does_not_divide_is_not_cut():
    """30,522 sub-words are 2 x 3 x 5,087: 64 devices share the width instead, or nothing."""
    mesh = jax.sharding.AbstractMesh((1, 8, 8, 1), sharding.AXES)
    path = tuple(map(jax.tree_util.DictKey, ("encoder", "embeddings", "word", "embedding")))

    def stored(shape):
        return sharding.param_spec(path, shape, mesh=mesh, shard_weights=True)

    assert stored((30522, 768)) == jax.P(None, sharding.FSDP)
    assert stored((30528, 768)) == jax.P(sharding.FSDP)
    assert stored((30522, 770)) == jax.P()


def test_columns_are_cut_where_nothing_else_divides():
    """A TPU adds up a gradient whole rather than scatter it in parts of a tile's columns."""
    mesh = jax.sharding.AbstractMesh((1, 8, 8, 1), sharding.AXES)
    path = tuple(map(jax.tree_util.DictKey, ("encoder", "layer_0", "intermediate", "kernel")))
    for shape, spec in (
        ((1024, 4096), jax.P(sharding.FSDP)),
        ((4096, 1024), jax.P(sharding.FSDP)),
        ((24, 1024, 4096), jax.P(None, sharding.FSDP)),
        ((1000, 4096), jax.P(None, sharding.FSDP)),
        ((65536,), jax.P(sharding.FSDP)),
    ):
        found = sharding.param_spec(path[1:], shape, mesh=mesh, shard_weights=True)
        assert found == spec, shape


def test_state_is_stored_in_pieces_and_small_parameters_whole():
    mesh = mesh_of((1, 4, 2))
    with jax.set_mesh(mesh):
        state = TrainState.initial(_CONFIG, mesh)
    layer = state.params["encoder"]["layer_0"]
    assert layer["intermediate"]["kernel"].sharding.spec == jax.P(sharding.FSDP, "tensor")
    assert layer["output"]["kernel"].sharding.spec == jax.P("tensor", sharding.FSDP)
    assert layer["query"]["kernel"].sharding.spec == jax.P(None, "tensor")  # small
    assert layer["output_norm"]["scale"].sharding.is_fully_replicated
    moments = jax.tree.leaves(state.opt_state)
    pieces = sum(leaf.addressable_shards[0].data.size for leaf in moments)
    assert pieces < 0.4 * sum(leaf.size for leaf in moments)


@pytest.mark.core
@pytest.mark.parametrize(("shape", "words"), [((1, 2, 4), 516), ((1, 8, 1), 576)], ids=str)
def test_extra_sub_words_of_a_mesh_have_no_probability(shape, words, monkeypatch):
    """Those that tensor parallelism adds, and a table that is gathered by rows."""
    monkeypatch.setattr(sharding, "_gathers_rows", lambda: True)
    mesh = mesh_of(shape)
    batch = random_batch(rows=16, length=32, predictions=5, vocab_size=514)
    with jax.set_mesh(mesh):
        params = TrainState.initial(_CONFIG, mesh).params
        batch = jax.device_put(batch, sharding.batch_sharding(mesh))
        outputs = jax.jit(
            lambda p, b: bert.apply(p, b, config=_CONFIG.model, compute=_CONFIG.compute)
        )(params, batch)
    logits = np.asarray(outputs["mlm_logits"])
    assert logits.shape == (16, 5, words)
    assert np.isneginf(logits[..., 514:]).all() and np.isfinite(logits[..., :514]).all()


@pytest.mark.parametrize(
    ("field", "shape"),
    [("num_attention_heads", {}), ("intermediate_size", {"num_attention_heads": 8})],
)
def test_a_tensor_axis_that_does_not_divide_is_refused(field, shape):
    model = dataclasses.replace(_CONFIG.model, intermediate_size=500, **shape)
    config = dataclasses.replace(_CONFIG, model=model, mesh=MeshConfig(tensor=8))
    with pytest.raises(UsageError, match=f"mesh.tensor is 8, which does not divide {field}"):
        validate(config)


def test_a_mesh_that_does_not_cover_the_devices_is_refused():
    with pytest.raises(ValueError, match=r"mesh\.slices=2 x mesh\.fsdp=3"):
        sharding.make_mesh(slices=2, fsdp=3, tensor=1)


@pytest.mark.parametrize(
    ("chips", "cores", "tensor", "expected"),
    [
        ((8, 8), 1, 1, 8),  # v5e, v6e
        ((4, 8), 1, 1, 4),
        ((4, 4, 4), 1, 1, 4),  # v4, v5p
        ((2, 2, 1), 1, 1, 2),
        ((2, 8), 2, 1, 1),  # v3: a device is a core
        ((8, 8), 1, 8, 1),  # one dimension is left
        ((4, 4, 4), 1, 4, 4),
        ((8, 8), 1, 2, 1),  # no dimension is `tensor`
        ((1,), 1, 1, 1),
    ],
)
def test_the_axes_of_fsdp_are_dimensions_of_the_slice(chips, cores, tensor, expected):
    places = itertools.product(*map(range, chips), range(cores))
    devices = [SimpleNamespace(coords=at, core_on_chip=core) for *at, core in places]
    assert sharding._second_axis(devices, tensor=tensor) == expected


def test_devices_that_are_no_grid_have_one_axis_of_fsdp():
    assert mesh_of(8).shape == {"slice": 1, "fsdp": 8, "fsdp_inner": 1, "tensor": 1}
    devices = [SimpleNamespace(coords=at, core_on_chip=0) for at in ((0, 0), (0, 1), (1, 0))]
    assert sharding._second_axis(devices, tensor=1) == 1


@pytest.mark.parametrize("shape", [(1, 8, 1, 2), (2, 4, 1, 2)], ids=str)
def test_a_gradient_is_summed_after_every_use_and_one_axis_after_the_other(shape):
    """The table is used twice. What is small, and a table of positions, is summed at once."""
    mesh = mesh_of(shape)
    with jax.set_mesh(mesh):
        state = TrainState.abstract(_CONFIG, mesh)
        batch = random_batch(rows=16, length=32, predictions=5, vocab_size=514)
        program = jax.make_jaxpr(lambda s, b: train_step(s, b, config=_CONFIG, objective=MLM_NSP))(
            state, jax.device_put(batch, sharding.batch_sharding(mesh))
        )
    table = (514, 128)
    sums = [
        (eqn.invars[0].aval.sharding.spec, eqn.outvars[0].aval.sharding.spec)
        for eqn in program.eqns
        if eqn.primitive.name == "reshard" and eqn.outvars[0].aval.shape == table
        if eqn.invars[0].aval.sharding.spec.unreduced
    ]
    left = [spec.unreduced for spec, _ in sums] + [sums[-1][1].unreduced]
    assert left == [
        {"slice", "fsdp", "fsdp_inner"}, {"slice", "fsdp_inner"}, {"slice"}, frozenset()
    ]  # fmt: skip
    stored = state.params["encoder"]["embeddings"]["word"]["embedding"].sharding.spec
    assert sums[-1][1].partitions == stored.partitions


def test_devices_share_a_batch_equally():
    mesh = mesh_of(8)
    assert sharding.rows_per_device(mesh, 24) == 3
    with pytest.raises(ValueError, match=r"8 devices .*20 rows"):
        sharding.rows_per_device(mesh, 20)
