"""More positions than a checkpoint has: what its tables become, and what stays as it was."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from bert_jax.config import ComputeConfig, HeadConfig, ModelConfig
from bert_jax.config_loader import load_config
from bert_jax.data.corpus.store import open_corpus
from bert_jax.model import bert, sharding
from bert_jax.model.positions.position import lengthened
from bert_jax.pretrained.load import load_checkpoint
from bert_jax.training import preflight
from bert_jax.training.initialization import Initialization
from bert_jax.training.pretrain import Pretraining
from bert_jax.workdir import run_directory
from tests.batches import mesh_of
from tests.models import apply, batch, random_params
from tests.tiny_corpus import tiny_config

_FEW = ModelConfig(
    vocab_size=60,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=12,
)
_MLM = HeadConfig(parts=("mlm",))


@pytest.mark.parametrize("kind", ["relative_key_query", "rotary"])
def test_relative_positions_go_on_as_they_were(kind):
    """Rows are longer than the old table, too: beyond it all distances were alike."""
    few = dataclasses.replace(_FEW, position_embedding_type=kind)
    many = dataclasses.replace(few, max_position_embeddings=30)
    params, arrays = random_params(few, _MLM), batch(few, rows=2, length=28)
    longer = lengthened(params, many)
    shapes = jax.tree.map(np.shape, longer)
    assert shapes == jax.tree.map(lambda leaf: leaf.shape, bert.abstract_params(many, _MLM))
    compute = ComputeConfig(dtype="float32")
    first, second = (
        apply(p, arrays, config=model, head=_MLM, compute=compute)["mlm_logits"]
        for p, model in ((params, few), (longer, many))
    )
    # Tables of other lengths are other products: float32 sums them in another order.
    np.testing.assert_allclose(first, second, rtol=1e-5, atol=5e-6)


def test_a_run_begins_from_a_checkpoint_of_fewer_positions(
    tmp_path, trained, corpus, capsys, eight_devices
):
    """Because a phase is longer, or --set asks for more; a config with more alone does not."""
    fewer = load_config(str(trained / "config.json")).model.max_position_embeddings
    more = 64  # the length of the second phase
    changes = [f"model.max_position_embeddings={more}", "mesh.tensor=2"]
    wanted = load_config("tiny_docs_cpu", [*changes, "phases.1.sequence_length=32"])
    asked_for = ["model.max_position_embeddings"]
    for config, own, expected in (
        (wanted, [], fewer),
        (wanted, asked_for, more),
        (load_config("tiny_docs_cpu", changes), [], more),
    ):
        beginning = Initialization(trained)
        found = beginning.config_of(config, tmp_path / "run", own_fields=own)
        assert found.model.max_position_embeddings == expected
        said = f"its {fewer} positions become {more}" in capsys.readouterr().err
        assert said == (expected == more)
    mesh = mesh_of((1, 4, 2))
    with jax.set_mesh(mesh):
        state = beginning.state(found, open_corpus(corpus), mesh)
        old = load_checkpoint(trained, mesh=mesh).params
    tables = [p["encoder"]["embeddings"]["position"]["embedding"] for p in (old, state.params)]
    repeated = np.asarray(tables[0])[np.arange(more) % fewer]
    np.testing.assert_array_equal(np.asarray(tables[1]), repeated)


def test_the_checkpoint_of_a_beginning_may_be_written_in_another_way(tmp_path, corpus, monkeypatch):
    """runs/base and /home/me/runs/base were two checkpoints, and the run was refused."""
    opened, config, home = open_corpus(corpus), tiny_config(), tmp_path / "run"
    run_directory.create(home, config, opened, init_from="runs/base")
    monkeypatch.chdir(tmp_path)

    def changes(init_from):
        return run_directory.input_changes(
            json.loads((home / "config.json").read_text()),
            opened,
            init_from=init_from,
            has_steps=False,
        )

    for written in ("runs/base", str(tmp_path / "runs" / "base"), "run/../runs/base"):
        assert changes(written) == []
        # Nothing lies there any more: the model is that of the run.
        assert Initialization(written).config_of(config, home).model == config.model
    assert [field for field, *_ in changes("runs/other")] == ["`init_from`"]
    assert [field for field, *_ in changes(None)] == ["`init_from`"]


def test_processes_that_begin_with_other_parameters_differ_in_a_fact(trained, corpus):
    """Two steps of one run have the config, the program and the path in common."""
    config = load_config(str(trained / "config.json"))
    mesh = preflight.mesh_of(config)
    found = []
    for step in ("160", "160", "200"):
        beginning = Initialization(trained / "checkpoints" / step)
        job = Pretraining(config, open_corpus(corpus), mesh, peak=1.0, initialization=beginning)
        resumed = job.facts()
        with jax.set_mesh(mesh):
            job.initial_state()
        found.append(job.facts())
        assert resumed.items() < found[-1].items(), "a run that goes on has no beginning"
    assert found[0] == found[1] != found[2]


def test_a_table_that_lies_in_pieces_becomes_longer():
    table = np.arange(2.0**16, dtype=np.float32).reshape(512, 128)
    mesh = mesh_of((1, 8, 1))
    tree = {"position": {"embedding": table}}
    with jax.set_mesh(mesh):
        stored = sharding.param_shardings(tree, mesh=mesh, shard_weights=True)
        placed = jax.device_put(tree, stored)
        assert not placed["position"]["embedding"].sharding.is_fully_replicated
        many = dataclasses.replace(_FEW, max_position_embeddings=700)
        longer = lengthened(placed, many)["position"]["embedding"]
    np.testing.assert_array_equal(np.asarray(longer), table[np.arange(700) % 512])
