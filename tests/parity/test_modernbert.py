"""ModernBERT against its class in transformers: every gradient, of single and of packed rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.interchange import huggingface
from bert_jax.interchange.modernbert import FAMILY
from bert_jax.model.mask import Mask
from tests.golden.make_modernbert import HEAD, MODEL, documents, params
from tests.interchange.test_rotary_families import logits_of, row_of
from tests.models import vocabulary

torch = pytest.importorskip("torch", reason="needs the 'parity' extra")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity


@pytest.mark.parametrize("is_packed", [False, True], ids=["alone", "packed"])
def test_logits_and_every_gradient(is_packed, tmp_path):
    first, *packed = documents()
    row = row_of(*packed, length=94) if is_packed else row_of(first, length=64)
    words = vocabulary(tmp_path / "words")
    huggingface.write(tmp_path / "hf", params(), MODEL, tokenizer=words, head=HEAD)
    theirs = transformers.ModernBertForMaskedLM.from_pretrained(
        tmp_path / "hf", attn_implementation="eager"
    )
    masks = {}
    for kind, window in (("full_attention", None), ("sliding_attention", MODEL.attention_window)):
        mask = Mask.of_rows(row["sequence_ids"], row["position_ids"], window=window)
        masks[kind] = torch.where(torch.tensor(mask.allowed())[:, None], 0.0, -1e30)
    expected = theirs(
        torch.tensor(row["input_ids"]).long(),
        attention_mask=masks,
        position_ids=torch.tensor(row["position_ids"]).long(),
    ).logits[0]
    expected.sin().mean().backward()

    def loss(tree):
        logits = logits_of(tree, row)
        return jnp.mean(jnp.sin(logits)), logits

    with jax.default_matmul_precision("highest"):
        run = jax.jit(jax.grad(loss, has_aux=True))
        gradients, logits = run(params())
    np.testing.assert_allclose(logits, expected.detach().numpy(), atol=1e-5, rtol=0)
    ours = FAMILY.to_tensors(gradients)
    named = {name: parameter.grad.numpy() for name, parameter in theirs.named_parameters()}
    assert ours.keys() == named.keys()
    for name, gradient in named.items():
        bound = 1e-5 * np.abs(gradient).max()
        np.testing.assert_allclose(ours[name], gradient, atol=bound, rtol=0, err_msg=name)
