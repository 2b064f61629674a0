"""A custom objective: predict which tokens were swapped with their neighbor.

bert-jax pretrain examples/extend/objective.py --corpus CORPUS --workdir RUN
bert-jax evaluate RUN --corpus CORPUS --extend examples/extend/objective.py
"""

import jax.numpy as jnp
import numpy as np

from bert_jax.config import TrainConfig
from bert_jax.config_loader import load_config
from bert_jax.data import counter_rng
from bert_jax.data.pretraining.batch import INPUTS, Field
from bert_jax.model.flops import encoder_flops
from bert_jax.model.heads.part import EVERY, Part
from bert_jax.model.layers import Linear
from bert_jax.model.losses import cross_entropy
from bert_jax.objectives.objective import Figure, Objective
from bert_jax.registry import OBJECTIVES, PARTS

SHARE = 0.15  # of the pairs of neighbors
LEARNED = {"labels": np.int32, "weights": np.float32}


class OrderHead(Part):
    """Classifies each token as moved or not."""

    def build(self, config, head, *, rngs):
        return Linear(config.hidden_size, 2, config=config, rngs=rngs)

    def positions(self, batch):
        return EVERY

    def __call__(self, module, x_BRD, context):
        return {"order_logits": module(x_BRD).astype(jnp.float32)}


class TokenOrder(Objective):
    name = "token-order"
    parts = ("token_order",)
    losses = {"order": 1.0}
    fields = INPUTS | {f"order_{n}": Field("L", t) for n, t in LEARNED.items()}
    figures = (
        Figure("order_loss", "order loss", "{:.3f} nats"),
        Figure("order_accuracy", "order accuracy", "{:.3f}", f"{1 - SHARE}: guessing"),
    )

    def collate(self, rows, draw):
        ids, length = rows["input_ids"].copy(), rows["input_ids"].shape[1]
        ends = draw.vocabulary.special
        special = np.isin(ids, (ends.cls, ends.sep, ends.pad))
        keys = counter_rng.bits(draw.key, draw.example_numbers)[:, None]
        chance = counter_rng.uniform(counter_rng.bits(keys, np.arange(length)))
        # Pairs of an even position and the next one, so that no token moves twice.
        swapped = (chance < SHARE) & (np.arange(length) % 2 == 0)
        swapped &= ~special & ~np.roll(special, -1, axis=1)
        row, first = np.nonzero(swapped)
        ids[row, first], ids[row, first + 1] = ids[row, first + 1], ids[row, first].copy()
        swapped[row, first + 1] = True
        found = {name: rows[name] for name in INPUTS} | {"input_ids": ids}
        found["order_labels"] = swapped.astype(np.int32)
        return found | {"order_weights": (~special).astype(np.float32)}

    def sums(self, outputs, batch):
        weights = batch["order_weights"]
        loss, hits = cross_entropy(outputs["order_logits"], batch["order_labels"])
        sums = {"loss": weights * loss, "hits": weights * hits, "count": weights}
        return {f"order_{name}": jnp.sum(values) for name, values in sums.items()}

    def forward_flops(self, model, phase):
        head = 2 * phase.sequence_length * 2 * model.hidden_size
        return encoder_flops(model, length=phase.sequence_length) + head


PARTS.register("token_order", OrderHead())
OBJECTIVES.register("token-order", TokenOrder())


def config() -> TrainConfig:
    return load_config("tiny_docs_cpu", ["name=token_order", "objective=token-order"])
