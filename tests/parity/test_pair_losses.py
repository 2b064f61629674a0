"""Losses of the vectors of texts and their gradients, against sentence-transformers on torch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import InfoNCE
from bert_jax.objectives.pair_losses import CoSENT, KullbackLeibler, MarginMSE, Texts

torch = pytest.importorskip("torch", reason="needs the 'parity' extra")
losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
pytestmark = pytest.mark.parity

_EXAMPLES, _DOCUMENTS, _WIDTH = 10, 3, 32
_DRAW = np.random.default_rng(0)
_QUERIES = _DRAW.standard_normal((_EXAMPLES, _WIDTH)).astype(np.float32)
_TEXTS = _DRAW.standard_normal((_EXAMPLES, _DOCUMENTS, _WIDTH)).astype(np.float32)
_SCORES = _DRAW.standard_normal((_EXAMPLES, _DOCUMENTS)).astype(np.float32)


class _Given(torch.nn.Module):
    """A model with these vectors as its outputs."""

    def get_embedding_dimension(self):
        return _WIDTH

    def forward(self, features):
        return {"sentence_embedding": features["vectors"]}


def theirs(make, *, documents: int, scores=None, dims=()):
    """Their loss, and the gradients of queries and documents."""
    queries = torch.tensor(_QUERIES, requires_grad=True)
    texts = torch.tensor(_TEXTS[:, :documents], requires_grad=True)
    columns = [{"vectors": queries}, *({"vectors": texts[:, c]} for c in range(documents))]
    model = _Given()
    loss = make(model)
    if dims:
        loss = losses.MatryoshkaLoss(model, loss, [_WIDTH, *dims])
    labels = torch.zeros(_EXAMPLES) if scores is None else torch.tensor(scores)
    value = loss(columns, labels)
    value.backward()
    return value.item(), queries.grad.numpy(), texts.grad.numpy()


def ours(options, *, documents: int, scores=None, dims=(), is_cosine: bool = True):
    def loss(queries, texts):
        whole = Texts(
            queries_ND=queries,
            documents_NCD=texts,
            weights_N=jnp.ones(_EXAMPLES),
            ids_NT=jnp.arange(_EXAMPLES * (documents + 1)).reshape(_EXAMPLES, -1),
            scores_NC=jnp.zeros(texts.shape[:2]) if scores is None else jnp.asarray(scores),
        )
        each = [whole.with_width(width, is_cosine=is_cosine) for width in (_WIDTH, *dims)]
        return sum(options.mean(found)[0] for found in each)

    value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(_QUERIES, _TEXTS[:, :documents])
    return float(value), *(np.asarray(x) for x in gradients)


def info_nce(model):
    return losses.MultipleNegativesRankingLoss(model, scale=20.0)


def symmetric(model):
    return losses.MultipleNegativesRankingLoss(
        model,
        scale=20.0,
        directions=("query_to_doc", "doc_to_query"),
        partition_mode="per_direction",
    )


def kl(model):
    return losses.DistillKLDivLoss(model, temperature=2.0, similarity_fct=_pairwise_cosine)


def _pairwise_cosine(one, other):
    return torch.nn.functional.cosine_similarity(one, other)


@pytest.mark.parametrize(
    ("options", "make", "arguments"),
    [
        (InfoNCE(), info_nce, {"documents": 1}),
        (InfoNCE(), info_nce, {"documents": 3}),
        (InfoNCE(), info_nce, {"documents": 2, "dims": (16, 8)}),
        (InfoNCE(symmetric=True), symmetric, {"documents": 1}),
        (CoSENT(), losses.CoSENTLoss, {"documents": 1, "scores": _SCORES[:, 0]}),
        (MarginMSE(), losses.MarginMSELoss, {"documents": 3, "scores": _SCORES}),
        (KullbackLeibler(temperature=2.0), kl, {"documents": 3, "scores": _SCORES}),
    ],
)
def test_a_loss_and_its_gradients_are_those_of_sentence_transformers(options, make, arguments):
    expected = theirs(make, **arguments)
    scores = arguments.get("scores")
    if scores is not None and scores.ndim == 1:
        arguments = arguments | {"scores": scores[:, None]}
    found = ours(options, is_cosine=not isinstance(options, MarginMSE), **arguments)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * np.abs(other).max())
