"""Variations of published checkpoints: the logits of transformers from the same directory."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_jax.config import ComputeConfig, HeadConfig
from bert_jax.interchange import huggingface, huggingface_config
from bert_jax.model import bert, sharding
from tests.interchange.test_second_look import MODELS, output_names
from tests.models import batch

torch = pytest.importorskip("torch", reason="needs the 'parity' extra")
transformers = pytest.importorskip("transformers", reason="needs the 'parity' extra")
pytestmark = pytest.mark.parity

_HEAD = HeadConfig(parts=("mlm",))
_PAD = 1
each_family = pytest.mark.parametrize("family", ["bert", "roberta", "electra", "modernbert"])


def their_model(family: str, **changes):
    """Returns the class of transformers with random parameters."""
    model = dataclasses.replace(MODELS[family], **changes)
    described = huggingface_config.config_of(model, _HEAD, pad=_PAD, model_type=family)
    described.pop("model_type")
    config = transformers.AutoConfig.for_model(family, **described)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    theirs = transformers.AutoModelForMaskedLM.from_config(config).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return theirs


def their_logits(source) -> np.ndarray:
    """Returns the logits of a model, or of its directory, over one row without padding."""
    if isinstance(source, Path):
        kind = transformers.AutoModelForMaskedLM
        source = kind.from_pretrained(source, attn_implementation="eager").eval()
    ids = torch.tensor(batch(MODELS["bert"], rows=1)["input_ids"], dtype=torch.long)
    with torch.no_grad():
        return source(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.numpy()


def our_logits(directory: Path) -> np.ndarray:
    foreign = huggingface.read(directory)
    row = batch(MODELS["bert"], rows=1)
    row = {name: jax.numpy.asarray(array) for name, array in row.items()}
    row["token_type_ids"] *= 0
    with jax.set_mesh(sharding.make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])):
        outputs = bert.apply(
            foreign.params,
            row,
            config=foreign.model,
            head=foreign.head,
            compute=ComputeConfig(dtype="float32"),
        )
    return np.asarray(outputs["mlm_logits"])


def assert_same_logits(ours: np.ndarray, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(ours.reshape(theirs.shape), theirs, atol=1e-4, rtol=0)
    assert np.ptp(theirs) > 0.2, "logits that do not differ prove nothing"


@each_family
def test_the_files_of_save_model(tmp_path, family):
    """`save_model` stores tied tensors under the name that comes first in the alphabet."""
    from safetensors.torch import save_model

    theirs = their_model(family)
    theirs.save_pretrained(tmp_path)
    save_model(theirs, str(tmp_path / "model.safetensors"))
    table, decoder, *_ = output_names(family)
    assert (table in load_file(tmp_path / "model.safetensors")) == (table < decoder)
    expected = their_logits(tmp_path)
    assert_same_logits(expected, their_logits(theirs))
    assert_same_logits(our_logits(tmp_path), expected)


@each_family
@pytest.mark.parametrize("says_so", [True, False])
def test_an_output_matrix_that_is_not_tied(tmp_path, family, says_so):
    theirs = their_model(family, tie_word_embeddings=False)
    theirs.save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    described = json.loads(path.read_text()) | {"tie_word_embeddings": not says_so}
    path.write_text(json.dumps(described))
    expected = their_logits(tmp_path / "theirs")
    assert_same_logits(expected, their_logits(theirs))
    assert_same_logits(our_logits(tmp_path / "theirs"), expected)
    # And back.
    foreign, words = huggingface.read(tmp_path / "theirs"), tmp_path / "words"
    words.mkdir()
    rows = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"]
    (words / "vocab.txt").write_text("\n".join(rows) + "\n")
    huggingface.write(
        tmp_path / "ours", foreign.params, foreign.model, head=foreign.head, tokenizer=words,
        model_type=family,
    )  # fmt: skip
    assert_same_logits(their_logits(tmp_path / "ours"), expected)
