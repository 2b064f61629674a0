"""Outputs for texts of different lengths."""

import dataclasses

import jax
import pytest

from bert_jax.config import HeadConfig
from bert_jax.data.tasks.encode_rows import NO_MORE, encode_texts
from bert_jax.data.tasks.tables import text_row
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.inference.forward import Forward
from bert_jax.model import bert
from tests.batches import mesh_of
from tests.tiny_corpus import tiny_config


@pytest.mark.parametrize("order", [1, -1], ids=["short_first", "long_first"])
def test_the_scores_of_tokens_lie_at_their_tokens(corpus, order):
    head = HeadConfig(parts=("generator", "discriminator"))
    config = dataclasses.replace(tiny_config(), head=head)
    tokenizer = load_tokenizer(corpus / "tokenizer")
    texts = ["An owl.", "The horse of Ada eats hay every day, and " * 2][::order]
    rows = [text_row(text, number=i) for i, text in enumerate(texts)]
    mesh = mesh_of((1, 1, 1))
    with jax.set_mesh(mesh):
        params = bert.init_params(config.model, head, seed=0)
    features = encode_texts(rows, tokenizer, length=32, truncation="only_first", remedy=NO_MORE)
    forward = Forward(config, "replaced_logits", batch_size=1, mesh=mesh)
    found = forward(params, features)
    assert found.shape == features.input_ids.shape
    assert all(row[:n].all() for row, n in zip(found, features.lengths, strict=True))
    assert not found[::order][0, 8:].any(), "the short text came alone, in a batch of 8 tokens"
