"""A custom loss of text embeddings: the sigmoid loss of SigLIP (arXiv:2303.15343).

Each pair of a query and a document of the batch is a binary classification: they belong together or
not. The temperature and the bias are options instead of parameters.

    bert-jax pretrain examples/extend/loss.py --corpus CORPUS --workdir RUN
    bert-jax finetune --extend examples/extend/loss.py --task pairs MODEL --train pairs.jsonl \\
        --text-column query --text-column positive --workdir RUN --set embedding.loss=sigmoid
"""

import jax
import jax.numpy as jnp

from bert_jax.config import PairLoss, TrainConfig
from bert_jax.config.fields import Positive, section, setting
from bert_jax.config_loader import load_config
from bert_jax.model.sharding import on_every_device, over_batch
from bert_jax.objectives.pair_losses import Texts
from bert_jax.registry import PAIR_LOSSES


@section
class Sigmoid(PairLoss, kind="sigmoid"):
    """Binary cross-entropy of each query with all documents of the batch."""

    temperature: Positive = setting(0.1, "Similarities are divided by it.")
    bias: float = setting(-10.0, "Added to each logit; most pairs do not belong together.")

    def mean(self, texts: Texts) -> tuple[jax.Array, jax.Array]:
        # Queries are divided over the devices; all devices have all M documents.
        queries_ND, documents_MD = texts.queries_ND, texts.all_documents()
        products_NM = jnp.einsum("nd,md->nm", queries_ND, documents_MD, precision="highest")
        examples, count = texts.documents_NCD.shape[:2]
        number_N = jax.lax.broadcasted_iota(jnp.int32, (examples,), 0, out_sharding=over_batch())
        is_own_NM = number_N[:, None] * count == jnp.arange(examples * count)
        own_N = jnp.sum(jnp.where(is_own_NM, products_NM, 0.0), axis=1)
        # Examples of weight 0 fill up the batch.
        is_there_N = on_every_device(texts.weights_N.astype(jnp.int32))
        is_there_M = jnp.repeat(is_there_N, count)
        each_NM = jax.nn.softplus(products_NM / self.temperature + self.bias) * is_there_M
        # softplus(-x) of the own document is softplus(x) - x.
        loss_N = jnp.sum(each_NM, axis=1) - (own_N / self.temperature + self.bias)
        is_right_N = own_N >= jnp.max(jnp.where(is_there_M > 0, products_NM, -jnp.inf), axis=1)
        weights_N = texts.weights_N
        count = jnp.maximum(jnp.sum(weights_N), 1.0)
        return jnp.sum(weights_N * loss_N) / count, jnp.sum(weights_N * is_right_N) / count


PAIR_LOSSES.register("sigmoid", Sigmoid)


def config() -> TrainConfig:
    changes = ["name=sigmoid", "objective=contrastive", "data.sequence_format=adjacent"]
    return load_config("tiny_docs_cpu", [*changes, "embedding.loss=sigmoid"])
