"""A checkpoint that Google's code wrote in TF1: `data/checkpoints/tf1_tiny_bert` in
BERT_JAX_SHARED. Where it is absent these tests skip.
"""

import json
import os
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.config import ComputeConfig, HeadConfig
from bert_jax.interchange import huggingface, tf1
from bert_jax.model import bert, sharding
from tests.interchange.test_tf1 import variables
from tests.paths import ROOT

pytestmark = pytest.mark.parity

_SHARED = Path(os.environ.get("BERT_JAX_SHARED", ROOT.parent / "shared"))


@pytest.fixture(scope="module")
def tf1_tiny() -> Path:
    directory = _SHARED / "data/checkpoints/tf1_tiny_bert"
    if not directory.is_dir():
        pytest.skip("needs data/checkpoints/tf1_tiny_bert in BERT_JAX_SHARED")
    return directory


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="needs the 'parity' extra")


def outputs(foreign, arrays) -> dict[str, np.ndarray]:
    mesh = sharding.make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])
    compute = ComputeConfig(dtype="float32")
    with jax.set_mesh(mesh):
        return jax.device_get(
            jax.jit(
                lambda p, b: bert.apply(
                    p,
                    b,
                    config=foreign.model,
                    head=foreign.head,
                    compute=compute,
                )
            )(foreign.params, arrays)
        )


def test_google_tiny_bert_is_written_as_it_was(tmp_path, tf1_tiny):
    def run(*arguments):
        assert main([str(a) for a in arguments]) == 0

    run("export", tf1_tiny, "--output-dir", tmp_path / "hf")
    original = variables(tf1_tiny / "bert_model.ckpt")
    assert original["global_step"] == 20 and len(original) == 3 * 46 + 1
    weights = {name: value for name, value in original.items() if "/adam_" not in name}
    for source, name, expected in (
        (tf1_tiny, "direct", weights),
        (tmp_path / "hf", "through-hf", {n: v for n, v in weights.items() if n != "global_step"}),
    ):
        back = tmp_path / name
        run("export", source, "--format", "tf1", "--output-dir", back)
        found = variables(back / "bert_model.ckpt")
        assert found.keys() == expected.keys()
        for variable, value in expected.items():
            assert found[variable].dtype == value.dtype
            assert found[variable].tobytes() == value.tobytes(), variable


def test_google_tiny_bert_gives_their_logits(tmp_path, tf1_tiny, torch):
    """Their model filled from the variables by hand, and by loading what we export."""
    from transformers import BertConfig, BertForPreTraining

    foreign = tf1.read(tf1_tiny)
    assert foreign.head == HeadConfig() and foreign.step == 20
    huggingface.write(tmp_path / "hf", foreign.params, foreign.model, tokenizer=tf1_tiny)
    loaded = BertForPreTraining.from_pretrained(tmp_path / "hf").eval()

    described = json.loads((tf1_tiny / "bert_config.json").read_text())
    config = BertConfig(**(described | {"hidden_act": "gelu_new"}))
    by_hand = BertForPreTraining(config).eval()
    values = variables(tf1_tiny / "bert_model.ckpt")
    with torch.no_grad():
        for name, parameter in by_hand.named_parameters():
            parameter.copy_(torch.tensor(by_rule(name, values)))

    draw = np.random.default_rng(0)
    length = described["max_position_embeddings"]
    ids = draw.integers(0, 15, (8, length)).astype(np.int32)
    real = np.arange(length)[None] < (length - np.arange(8))[:, None]
    segments = ((np.arange(length)[None] >= 6) & real).astype(np.int32)
    places = np.tile(np.arange(length, dtype=np.int32), (8, 1))
    ours = outputs(
        foreign,
        {
            "input_ids": ids,
            "token_type_ids": segments,
            "position_ids": places,
            "sequence_ids": real.astype(np.int32),
            "mlm_positions": places,
            "nsp_positions": np.zeros((8, 1), np.int32),
        },
    )
    arguments = {"input_ids": ids, "token_type_ids": segments, "attention_mask": real}
    for theirs in (loaded, by_hand):
        with torch.no_grad():
            found = theirs(**{k: torch.tensor(v, dtype=torch.long) for k, v in arguments.items()})
        expected = found.prediction_logits.numpy()
        np.testing.assert_allclose(ours["mlm_logits"][real], expected[real], atol=1e-5, rtol=0)
        expected = found.seq_relationship_logits.numpy()
        np.testing.assert_allclose(ours["nsp_logits"][:, 0], expected, atol=1e-5, rtol=0)
    assert np.ptp(ours["mlm_logits"]) > 0.01


def by_rule(name: str, values: dict[str, np.ndarray]) -> np.ndarray:
    """The variable of a parameter of theirs, by its spelling: no table of ours."""
    variable = name.replace("layer.", "layer_").replace(".", "/")
    variable = variable.replace("LayerNorm/weight", "LayerNorm/gamma")
    variable = variable.replace("LayerNorm/bias", "LayerNorm/beta")
    variable = variable.replace("seq_relationship/weight", "seq_relationship/output_weights")
    variable = variable.replace("seq_relationship/bias", "seq_relationship/output_bias")
    variable = variable.replace("predictions/bias", "predictions/output_bias")
    if variable.endswith("embeddings/weight"):
        return values[variable.removesuffix("/weight")]
    if variable.endswith("/weight"):
        return values[variable.removesuffix("weight") + "kernel"].T
    return values[variable]
