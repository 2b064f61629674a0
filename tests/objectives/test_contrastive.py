"""Vectors of texts from pairs: the same loss for any microbatches, mesh and packing, and a run."""

import dataclasses
import functools
import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.config import (
    ComputeConfig,
    DataConfig,
    EmbeddingConfig,
    EvaluationConfig,
    HeadConfig,
    HookConfig,
    InfoNCE,
    ModelConfig,
    OptimizerConfig,
    PhaseConfig,
    TrainConfig,
)
from bert_jax.config_checks import complete, validate
from bert_jax.data.pretraining.batch import signature
from bert_jax.data.pretraining.pipeline import Pipeline
from bert_jax.data.tokenizer.tokenizer import Vocabulary
from bert_jax.errors import UsageError
from bert_jax.model import bert
from bert_jax.model.flops import encoder_flops
from bert_jax.objectives.contrastive import CONTRASTIVE, pair_sums
from bert_jax.objectives.pair_losses import Texts
from bert_jax.pretrained.load import load_checkpoint
from bert_jax.tasks.vector_scores import VectorScores
from bert_jax.update.state import TrainState
from bert_jax.update.step import lower_train_step, train_step
from bert_jax.workdir import log_reader
from tests import tiny_corpus
from tests.batches import mesh_of
from tests.states import arrays_of, assert_same_bits
from tests.synthetic_corpus import SPECIAL, random_split

MODEL = ModelConfig(
    vocab_size=100,
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=48,
    hidden_dropout_prob=0.2,
)
SPLIT = random_split(60, mean_sentences=5, mean_tokens=9, vocab_size=100)


def config_of(**changes) -> TrainConfig:
    values = {
        "objective": "contrastive",
        "model": MODEL,
        "compute": ComputeConfig(dtype="float32"),
        "data": DataConfig(sequence_format="crops"),
        "embedding": EmbeddingConfig(loss=InfoNCE(symmetric=True), dims=(16, 8)),
        "phases": (PhaseConfig(sequence_length=32, steps=4, global_batch_size=16),),
    }
    config = complete(TrainConfig(**(values | changes)))
    optimizer = dataclasses.replace(config.optimizer, warmup_steps=1, learning_rate=1e-3)
    return validate(dataclasses.replace(config, optimizer=optimizer))


def in_microbatches(config: TrainConfig, number: int) -> TrainConfig:
    optimizer = dataclasses.replace(config.optimizer, gradient_accumulation_steps=number)
    return dataclasses.replace(config, optimizer=optimizer)


def pipeline_of(config: TrainConfig, split=SPLIT) -> Pipeline:
    return Pipeline(
        split,
        collator=CONTRASTIVE,
        vocabulary=Vocabulary(SPECIAL, 100),
        options=config.data,
        phases=config.phases,
        seed=config.seed,
    )


def losses(config: TrainConfig, shape=1, *, steps: int = 4) -> tuple[list[float], list]:
    """The loss of each step, and the parameters after the last."""
    pipeline, found = pipeline_of(config), []
    # Outside of the mesh: its operations are compiled one by one, for each mesh.
    state = TrainState.create(config).to_mesh(mesh := mesh_of(shape), shard_weights=True)
    with jax.set_mesh(mesh):
        rows = jax.NamedSharding(mesh, jax.P(("slice", "fsdp", "fsdp_inner")))
        step = jax.jit(lambda s, b: train_step(s, b, config=config, objective=CONTRASTIVE))
        for number in range(steps):
            batch = pipeline.batch_at(number, range(config.phases[0].global_batch_size))
            state, metrics = step(state, jax.device_put(batch, rows))
            found.append([float(metrics[name]) for name in ("loss", "grad_norm")])
    return found, jax.tree.map(np.asarray, jax.tree.leaves(state.params))


def test_the_batch_is_that_of_its_fields():
    config = config_of(data=DataConfig(sequence_format="crops", packing="best_fit"))
    batch = pipeline_of(config).batch_at(0, range(16))
    phase = config.phases[0].resolved(0.15, packing="best_fit")
    expected = signature(CONTRASTIVE.fields, phase, rows=16)
    assert {n: (a.shape, a.dtype) for n, a in batch.items()} == {
        n: (spec.shape, np.dtype(spec.dtype)) for n, spec in expected.items()
    }
    assert batch["weights"].sum() > 16  # rows with several pairs
    assert batch["sequence_ids"].max() == 2 * batch["weights"].sum(axis=1).max()


@pytest.fixture(scope="module")
def alone() -> tuple[list[float], list]:
    """One device and one microbatch."""
    return losses(config_of())


@pytest.mark.parametrize(
    ("shape", "microbatches"), [(1, 2), (1, 16), (8, 1), (8, 2), ((2, 2, 2), 2)]
)
def test_microbatches_and_meshes_change_no_number(alone, shape, microbatches):
    """With dropout: the backward pass draws what the forward pass drew."""
    expected, params = alone
    found, moved = losses(in_microbatches(config_of(), microbatches), shape)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for one, other in zip(moved, params, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_packed_pairs_have_the_loss_of_one_pair_per_row():
    model = dataclasses.replace(MODEL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    packed = config_of(model=model, data=DataConfig(sequence_format="crops", packing="best_fit"))
    batch = pipeline_of(packed).batch_at(0, range(16))
    params = bert.init_params(model, packed.head, seed=0)
    forward = functools.partial(CONTRASTIVE.forward, config=packed, key=None)
    found = jax.jit(forward)(params, batch)
    # One text of the batch per row, each pair in two rows that follow each other.
    alone = {name: [] for name in ("input_ids", "position_ids")}
    ids = []
    for row, weights in enumerate(batch["weights"]):
        for text in range(2 * int(weights.sum())):
            is_own = batch["sequence_ids"][row] == text + 1
            for name, rows in alone.items():
                values = batch[name][row][is_own]
                rows.append(np.pad(values, (0, 32 - len(values))))
            ids.append(batch["text_ids"][row, text])
    arrays = {name: np.array(rows, np.int32) for name, rows in alone.items()}
    arrays["token_type_ids"] = np.zeros_like(arrays["input_ids"])
    arrays["sequence_ids"] = (arrays["input_ids"] > 0).astype(np.int32)
    encode = functools.partial(bert.apply, config=model, head=packed.head, compute=packed.compute)
    vectors = jax.jit(encode)(params, arrays)["embeddings"].reshape(-1, 2, 32)
    texts = Texts(
        queries_ND=vectors[:, 0],
        documents_NCD=vectors[:, 1:],
        weights_N=np.ones(len(vectors), np.float32),
        ids_NT=np.array(ids, np.int32).reshape(-1, 2),
        scores_NC=np.zeros((len(vectors), 1)),
    )
    expected = jax.jit(functools.partial(pair_sums, options=packed.embedding))(texts)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5)


def test_memory_does_not_follow_the_batch():
    """A microbatch has the same rows in both."""
    model = dataclasses.replace(MODEL, num_hidden_layers=2)

    def temporary(rows: int, microbatches: int) -> int:
        phase = PhaseConfig(sequence_length=32, steps=4, global_batch_size=rows)
        config = in_microbatches(config_of(model=model, phases=(phase,)), microbatches)
        batch = pipeline_of(config).batch_at(0, range(rows))
        lowered = lower_train_step(config, TrainState.create(config), batch, objective=CONTRASTIVE)
        return lowered.compile().memory_analysis().temp_size_in_bytes

    assert temporary(256, 16) <= 1.2 * temporary(128, 8)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("embedding.dims", {"embedding": EmbeddingConfig(dims=(8, 16))}),
        ("embedding.dims", {"embedding": EmbeddingConfig(dims=(32,))}),
        ("head.labels", {"head": HeadConfig(parts=("embedding",), labels=("a", "b"))}),
        ("optimizer.z_loss", {"optimizer": OptimizerConfig(z_loss=1e-4)}),
        ("embedding.query_prompt", {"embedding": EmbeddingConfig(query_prompt="query: ")}),
        ("data.sequence_format", {"data": DataConfig(sequence_format="documents")}),
        (
            "data.sequence_format",
            {
                "data": DataConfig(sequence_format="same"),
                "model": dataclasses.replace(
                    MODEL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
                ),
            },
        ),
        ("global_batch_size", {"phases": (PhaseConfig(steps=4, global_batch_size=1),)}),
    ],
)
def test_impossible_settings_are_refused(field, changes):
    with pytest.raises(UsageError, match=field):
        config_of(**changes)


def test_a_model_without_segments_learns_from_pairs():
    config = config_of(model=dataclasses.replace(MODEL, type_vocab_size=0))
    assert config.head.parts == ("embedding",)


def test_the_section_needs_the_objective():
    config = TrainConfig(embedding=EmbeddingConfig(dims=(8,)))
    with pytest.raises(UsageError, match="embedding is set"):
        validate(complete(config))


@pytest.fixture(scope="module")
def retrieval_set(tmp_path_factory):
    """Each document is found by its first sentence."""
    folder, found = tmp_path_factory.mktemp("beir"), tiny_corpus.documents(number=20)
    tables = {"corpus": found, "queries": [text.split(".")[0] for text in found]}
    for name, texts in tables.items():
        rows = (json.dumps({"_id": f"{name}{n}", "text": t}) for n, t in enumerate(texts))
        (folder / f"{name}.jsonl").write_text("\n".join(rows))
    judged = "".join(f"queries{n}\tcorpus{n}\t1\n" for n in range(len(found)))
    (folder / "qrels.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    return folder


def test_a_run_is_cut_and_resumes_with_the_same_bits(
    corpus, retrieval_set, tmp_path, monkeypatch, capsys
):
    """It is scored on a retrieval set as it goes: with the scores of its checkpoints."""
    tiny = tiny_corpus.tiny_config()
    config = config_of(
        name="vectors",
        model=dataclasses.replace(MODEL, vocab_size=240),
        phases=(PhaseConfig(sequence_length=32, steps=8, global_batch_size=8),),
        evaluation=dataclasses.replace(
            tiny.evaluation, every_steps=2, num_examples=12, batch_size=8
        ),
        hooks=(
            HookConfig.of_kind("vector_scores")(retrieval=str(retrieval_set), share=0.9),
            HookConfig.of_kind("best_checkpoint")(figure="nDCG@10"),
        ),
        checkpoint=dataclasses.replace(tiny.checkpoint, every_steps=4),
    )
    path = tiny_corpus.write_config(tmp_path / "vectors.json", config)
    whole, cut = tmp_path / "whole", tmp_path / "cut"

    def pretrain(workdir):
        return main(["pretrain", str(path), "--corpus", str(corpus), "--workdir", str(workdir)])

    assert pretrain(whole) == 0
    with monkeypatch.context() as patch:
        from bert_jax.runtime.stop import Preemption

        asked = iter(range(1000))
        patch.setattr(Preemption, "requested", lambda self: next(asked) >= 5)
        assert pretrain(cut) == 42
    assert pretrain(cut) == 0
    assert_same_bits(arrays_of(whole, 8), arrays_of(cut, 8))

    capsys.readouterr()
    assert main(["evaluate", "--json", str(whole), "--corpus", str(corpus)]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert 0 < figures["contrastive_loss"] < 20 and 0 <= figures["contrastive_accuracy"] <= 1

    split = f"retrieval/{retrieval_set.name}"
    rows, again = (
        [row for row in log_reader.read_rows(run) if row.get("split") == split]
        for run in (whole, cut)
    )
    figures = ("step", "nDCG@10", "MRR@10", "recall@10", "recall@100")
    assert [[row[n] for n in figures] for row in rows] == [
        [row[n] for n in figures] for row in again
    ]
    found = {}
    for devices in (1, 8):
        checkpoint = load_checkpoint(whole, mesh=(mesh := mesh_of(devices)))
        hook = VectorScores(retrieval=str(retrieval_set), similarity="", share=0.9)
        job = SimpleNamespace(
            config=config, mesh=mesh, begins_trained=True, tokenizer=corpus / "tokenizer"
        )
        hook.prepare(job, whole)
        hook.begin(SimpleNamespace(job=job), 0, [])
        found[devices] = hook.evaluate(8, checkpoint.params, cut_short=lambda: False)
        assert hook.evaluate(8, checkpoint.params, cut_short=lambda: True) is None
        assert found[devices] == {
            split: pytest.approx({n: rows[-1][n] for n in figures[1:]}, abs=1e-12)
        }
    assert main(["evaluate", "--json", str(whole), "--retrieval", str(retrieval_set)]) == 0
    best = json.loads(capsys.readouterr().out.splitlines()[0])
    assert best["nDCG@10"] == pytest.approx(rows[-1]["nDCG@10"], abs=1e-12)


def test_scores_during_a_run_keep_to_their_share_of_the_flops(retrieval_set, corpus, capsys):
    config = config_of(
        model=dataclasses.replace(MODEL, vocab_size=240),
        phases=(PhaseConfig(sequence_length=32, steps=80, global_batch_size=16),),
        evaluation=EvaluationConfig(every_steps=5),
    )
    training = 3 * 80 * 16 * encoder_flops(config.model, length=32)
    run, steps = SimpleNamespace(job=SimpleNamespace(config=config, mesh=mesh_of(1))), {}
    job = run.job
    job.begins_trained, job.tokenizer = True, corpus / "tokenizer"
    for share in (1.0, 0.1, 1e-9):
        hook = VectorScores(retrieval=str(retrieval_set), similarity="", share=share)
        hook.prepare(job, corpus)
        hook.begin(run, 0, [])
        steps[share] = sorted(hook._steps)
        (lists,) = hook._encoded.values()
        lengths = [n for parts in lists for _, rows in parts for n in rows.lengths]
        cost = sum(encoder_flops(config.model, length=int(n)) for n in lengths)
        assert share < 0.1 or len(steps[share]) * cost <= share * training
    assert steps[1.0] == [*range(0, 81, 5)] and steps[1e-9] == [80]
    assert 1 < len(steps[0.1]) < 17 and steps[0.1][-1] == 80
    assert "only the last step has one" in capsys.readouterr().err
    with pytest.raises(UsageError, match="neither `retrieval` nor `similarity`"):
        VectorScores(retrieval="", similarity="", share=0.1).prepare(job, corpus)
