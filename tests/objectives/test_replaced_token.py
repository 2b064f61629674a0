"""Replaced-token detection: shapes, samples, labels, the first loss, and a run that is cut."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bert_jax import config_loader
from bert_jax.__main__ import main
from bert_jax.config import ComputeConfig, DataConfig, ModelConfig, PhaseConfig, TrainConfig
from bert_jax.config_checks import complete, validate
from bert_jax.data.pretraining.batch import Draw
from bert_jax.data.tokenizer.tokenizer import SpecialIds, Vocabulary
from bert_jax.errors import UsageError
from bert_jax.model import bert, sharding
from bert_jax.model.heads.replaced_token import GENERATOR_HEAD, generator_params, own_params
from bert_jax.model.sampling import sample
from bert_jax.objectives.replaced_token import REPLACED_TOKEN, auc, corrupt
from tests import tiny_corpus
from tests.batches import mesh_of, random_batch
from tests.models import assert_same, random_params
from tests.states import arrays_of, assert_same_bits

TINY = ModelConfig(
    vocab_size=97,
    embedding_size=12,
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=48,
    max_position_embeddings=24,
    hidden_act="gelu",
    generator_size=0.5,
)


def tiny_config(**changes) -> TrainConfig:
    values = {"objective": "rtd", "model": TINY, "compute": ComputeConfig(dtype="float32")}
    return complete(TrainConfig(**(values | changes)))


def batch_of(*, rows: int = 8, vocab_size: int = 97, seed: int = 0) -> dict[str, np.ndarray]:
    batch = random_batch(rows=rows, length=24, predictions=5, vocab_size=vocab_size, seed=seed)
    draw = np.random.default_rng(seed)
    batch |= {
        "rtd_weights": (batch["sequence_ids"] > 0).astype(np.float32),
        "rtd_noise_1": draw.integers(-(2**31), 2**31, (rows, 5)).astype(np.int32),
        "rtd_noise_2": draw.integers(-(2**31), 2**31, (rows, 5)).astype(np.int32),
    }
    return {name: batch[name] for name in REPLACED_TOKEN.fields}


def draw_of(numbers, *, key: int = 7) -> Draw:
    return Draw(
        vocabulary=Vocabulary(SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4), 97),
        options=DataConfig(mask_token_prob=0.85, random_token_prob=0.0),
        max_predictions=5,
        key=key,
        example_numbers=np.asarray(numbers),
    )


# --- shapes --------------------------------------------------------------------------------------


def test_the_published_sizes():
    """ElectraForPreTraining's parameters, and what its generator adds to them."""
    small = config_loader.load_config("electra_small")
    params = bert.abstract_params(small.model, small.head)
    generator = params.pop("generator")
    assert bert.parameter_count(params) == 13_549_057
    assert bert.parameter_count(generator) == 647_162
    base = config_loader.load_config("electra_base").model.generator()
    assert (base.hidden_size, base.num_attention_heads, base.intermediate_size) == (256, 4, 1024)
    assert base.embedding_size == 768 and base.num_hidden_layers == 12


@pytest.mark.parametrize("sharing", ["all", "embeddings", "none"])
def test_what_is_shared_is_there_once(sharing):
    model = dataclasses.replace(TINY, embedding_sharing=sharing)
    params = random_params(model, tiny_config().head)
    there = set(params["generator"]["encoder"]["embeddings"])
    tables = {"word", "position", "token_type"}
    expected = {"all": set(), "embeddings": {"layer_norm"}, "none": {*tables, "layer_norm"}}
    assert there == expected[sharing] | {"project"}
    whole = generator_params(params, model)
    shapes = bert.abstract_params(model.generator(), GENERATOR_HEAD)
    assert jax.tree.map(np.shape, whole) == jax.tree.map(lambda leaf: leaf.shape, shapes)
    assert_same(own_params(whole, sharing), params["generator"])


def test_fields_that_nothing_reads_and_shapes_that_cannot_be():
    with pytest.raises(UsageError, match=r"model\.generator_size is 0\.5, which only a model"):
        validate(
            complete(TrainConfig(model=dataclasses.replace(ModelConfig(), generator_size=0.5)))
        )
    odd = ModelConfig(hidden_size=780, generator_size=200 / 780)
    with pytest.raises(UsageError, match="a generator of width 200 with 3 heads"):
        validate(complete(TrainConfig(objective="rtd", model=odd)))
    with pytest.raises(UsageError, match=r"mesh\.tensor is 2, which does not divide a generator"):
        config_loader.load_config("electra_small", ["mesh.tensor=2"])


# --- samples and labels --------------------------------------------------------------------------


def test_samples_have_the_chances_of_the_softmax():
    """100,000 draws for one row of scores: 1,000 rows of a batch, 100 positions each."""
    scores = 1.5 * np.random.default_rng(3).standard_normal(60)
    positions = np.tile(np.arange(100), (1000, 1))
    noise = draw_of(np.arange(1000)).position_keys(1, positions)[..., None].view(np.int32)
    logits = jnp.broadcast_to(jnp.float32(scores), (1000, 100, 60))
    drawn = jax.jit(sample, static_argnames="vocab_size")(
        logits, keys=(noise[..., 0], noise[..., 1]), vocab_size=60
    )
    expected = np.exp(scores) / np.exp(scores).sum() * drawn.size
    found = np.bincount(np.ravel(drawn), minlength=60)
    assert stats.chisquare(found, expected).pvalue > 1e-3
    # Neighbours in a row, and the same place of neighbouring rows, agree as often as chance has it.
    chance = np.sum(np.square(expected / drawn.size))
    for one, other in ((drawn[:, 1:], drawn[:, :-1]), (drawn[1:], drawn[:-1])):
        same = np.mean(np.asarray(one) == np.asarray(other))
        assert abs(same - chance) < 5 * np.sqrt(chance / one.size)


def test_the_corrupted_row_is_the_original_with_samples():
    batch = batch_of()
    draw = np.random.default_rng(1)
    originals, samples = batch["input_ids"].copy(), batch["mlm_targets"].copy()
    expected_ids, expected_labels = originals, np.zeros(originals.shape, bool)
    masked = originals.copy()
    for row, column in zip(*np.nonzero(batch["mlm_weights"]), strict=True):
        place, target = batch["mlm_positions"][row, column], batch["mlm_targets"][row, column]
        if draw.random() < 0.5:
            samples[row, column] = (target + 1) % 97
        masked[row, place] = 4 if draw.random() < 0.85 else target
        expected_ids[row, place] = samples[row, column]
        expected_labels[row, place] = samples[row, column] != target
    # What stands in slots that are not used does nothing.
    samples = np.where(batch["mlm_weights"] > 0, samples, 50)
    given = jax.tree.map(jnp.asarray, batch | {"input_ids": masked})
    ids, labels = corrupt(given, jnp.asarray(samples))
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_array_equal(labels, expected_labels)
    assert 0 < expected_labels.sum() < batch["mlm_weights"].sum()


def test_the_area_under_the_curve_is_that_of_all_pairs():
    draw = np.random.default_rng(0)
    bins, kind = draw.integers(0, 9, 200), draw.random(200) < 0.3
    pairs = [(a > b) + (a == b) / 2 for a in bins[kind] for b in bins[~kind]]
    counted = [jnp.asarray(np.bincount(bins[which], minlength=9)) for which in (kind, ~kind)]
    assert float(auc(*counted)) == pytest.approx(np.mean(pairs), abs=1e-6)
    assert float(auc(jnp.zeros(9), counted[1])) == 0.5


def test_noise_is_the_examples_and_not_the_batches():
    rows = {**batch_of(), "lengths": np.full(8, 24)}
    rows["input_ids"] = np.random.default_rng(0).integers(5, 97, (8, 24)).astype(np.int32)

    def noise(numbers, key=7):
        chosen = {name: array[: len(numbers)] for name, array in rows.items()}
        batch = REPLACED_TOKEN.collate(chosen, draw_of(numbers, key=key))
        is_used = batch["mlm_weights"] > 0
        return [
            np.stack([batch["rtd_noise_1"], batch["rtd_noise_2"]], -1)[row, is_used[row]]
            for row in range(len(numbers))
        ]

    whole = noise(range(8))
    for one, other in zip(noise([5, 6, 7]), whole[5:], strict=True):
        np.testing.assert_array_equal(one, other)
    words = np.concatenate([*whole, *noise(range(8), key=8)])
    assert len(set(words.ravel().tolist())) == words.size > 64


# --- the loss ------------------------------------------------------------------------------------


def sums_of(params, batch, config, shape):
    mesh = mesh_of(shape)
    with jax.set_mesh(mesh):
        layout = sharding.param_shardings(params, mesh=mesh, shard_weights=True)
        placed = jax.device_put(params, layout)
        rows = jax.device_put(batch, sharding.batch_sharding(mesh))
        step = jax.jit(lambda p, b: REPLACED_TOKEN.forward(p, b, config=config, key=None))
        return jax.device_get(step(placed, rows))


def test_the_first_loss_is_that_of_guessing():
    """ln 30,522 + 50 ln 2."""
    model = dataclasses.replace(TINY, vocab_size=30522)
    config = tiny_config(model=model)
    params = bert.init_params(model, config.head, seed=0)
    sums = sums_of(params, batch_of(vocab_size=30522), config, 1)
    loss = float(REPLACED_TOKEN.metrics(sums)["loss"])
    assert abs(loss - 44.98) < 0.5
    assert REPLACED_TOKEN.uniform_loss(model) == pytest.approx(44.983, abs=1e-3)


def test_every_mesh_draws_the_same():
    """Also where `tensor` cuts the vocabulary of 97, which is padded by a row."""
    model = dataclasses.replace(TINY, hidden_size=128, generator_size=1.0)
    config = tiny_config(model=model)
    params = random_params(model, config.head)
    batch = batch_of(seed=7)  # one sample is right
    alone = sums_of(params, batch, config, 1)
    counts = ("sampled_hits", "mlm_count", "rtd_replaced", "rtd_count")
    assert 0 < alone["rtd_replaced"] < alone["mlm_count"]
    for shape in ((2, 2, 2),):
        found = sums_of(params, batch, config, shape)
        for name, value in alone.items():
            if name in counts:
                assert found[name] == value, name
            elif np.ndim(value):
                assert found[name].sum() == value.sum(), name
        for name in ("mlm_loss", "rtd_loss"):
            np.testing.assert_allclose(found[name], alone[name], rtol=1e-5)


def test_the_discriminators_loss_does_not_reach_the_generator():
    config = tiny_config()
    params = random_params(TINY, config.head)
    batch = jax.tree.map(jnp.asarray, batch_of())

    def loss(params):
        return REPLACED_TOKEN.forward(params, batch, config=config, key=None)["rtd_loss"]

    gradients = jax.jit(jax.grad(loss))(params)
    assert not any(leaf.any() for leaf in jax.tree.leaves(gradients["generator"]))
    assert all(leaf.any() for leaf in jax.tree.leaves(gradients["discriminator"]))


# --- a run ---------------------------------------------------------------------------------------

_KEPT = ("loss", "rtd_auc", "sampled_accuracy", "replaced_share", "grad_norm")


def test_a_run_is_cut_and_goes_on_to_the_same_bits(corpus, tmp_path, monkeypatch, capsys):
    config = tiny_corpus.tiny_config(
        name="rtd",
        objective="rtd",
        model=dataclasses.replace(TINY, vocab_size=240),
        data=DataConfig(mask_token_prob=0.85, random_token_prob=0.0),
        optimizer=dataclasses.replace(tiny_corpus.tiny_config().optimizer, warmup_steps=4),
        phases=(PhaseConfig(sequence_length=24, steps=12, global_batch_size=8, max_predictions=4),),
        evaluation=dataclasses.replace(tiny_corpus.tiny_config().evaluation, num_examples=16),
        checkpoint=dataclasses.replace(tiny_corpus.tiny_config().checkpoint, every_steps=4),
    )
    path = tiny_corpus.write_config(tmp_path / "rtd.json", config)
    whole, cut = tmp_path / "whole", tmp_path / "cut"

    def pretrain(workdir):
        command = ["pretrain", str(path), "--corpus", str(corpus), "--workdir", str(workdir)]
        return main(command)

    def rows(workdir):
        lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
        return [{name: row.get(name) for name in ("step", "split", *_KEPT)} for row in lines]

    assert pretrain(whole) == 0
    with monkeypatch.context() as patch:
        from bert_jax.runtime.stop import Preemption

        asked = iter(range(1000))
        patch.setattr(Preemption, "requested", lambda self: next(asked) >= 7)
        assert pretrain(cut) == 42
    assert pretrain(cut) == 0
    assert rows(cut) == rows(whole)
    assert_same_bits(arrays_of(whole, 12), arrays_of(cut, 12))
    figures = [row for row in rows(whole) if row["split"]]
    assert len(figures) == 1 and all(0 < row["rtd_auc"] < 1 for row in figures)

    capsys.readouterr()
    assert main(["evaluate", "--json", str(whole), "--corpus", str(corpus)]) == 0
    again = json.loads(capsys.readouterr().out)
    for name in ("loss", "rtd_auc", "sampled_accuracy"):
        assert again[name] == pytest.approx(figures[-1][name], rel=1e-6), name
    assert {figure.name for figure in REPLACED_TOKEN.figures} <= set(again)
