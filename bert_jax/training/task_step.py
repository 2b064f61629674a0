"""The step of fine-tuning: one for every task, which differ in the head and so in the loss.

Dims: B batch, L length, C classes, P texts of a row.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax.config import TrainConfig
from bert_jax.model import heads
from bert_jax.model.dropout import DropoutKey
from bert_jax.model.losses import Sums, cross_entropy
from bert_jax.model.sharding import batch_spec
from bert_jax.training.optimizer import adamw, learning_rate
from bert_jax.training.state import TrainState
from bert_jax.training.step import accumulate

# What a part of the head calls its outputs.
LOGITS = {
    "sequence_classifier": "sequence_logits",
    "token_classifier": "token_logits",
    "span_classifier": "span_logits",
}


def outputs_of(head_parts: tuple[str, ...]) -> str:
    """The name of a task head's outputs."""
    return next(LOGITS[part] for part in head_parts if part in LOGITS)


def task_sums(outputs: dict[str, jax.Array], batch: dict[str, jax.Array]) -> Sums:
    """Weighted sums of loss and hits, and the weights' sum, of whichever task head there is.

    A class, of a text or of a token: cross-entropy. A batch has one text a row, or where it says
    their positions, P (`data/packing.py`). A number: the squared error, and no hits. A
    span: the mean of the cross-entropies of its first and its last token, over the tokens that are
    no padding; a hit has both right.
    """
    weights = batch["weights"]
    if "span_logits" in outputs:
        is_token_BL = batch["sequence_ids"] > 0
        ends = [
            cross_entropy(
                jnp.where(is_token_BL, outputs["span_logits"][:, :, end], -1e9),
                batch["labels"][:, end],
            )
            for end in range(2)
        ]
        loss = (ends[0][0] + ends[1][0]) / 2
        hits = ends[0][1] * ends[1][1]
    elif "token_logits" in outputs:
        loss, hits = cross_entropy(outputs["token_logits"], batch["labels"])
    elif outputs["sequence_logits"].shape[-1] > 1:
        loss, hits = cross_entropy(outputs["sequence_logits"], batch["labels"])
    else:
        loss = jnp.square(outputs["sequence_logits"][..., 0] - batch["labels"])
        hits = jnp.zeros_like(loss)
    return {
        "loss": jnp.sum(weights * loss),
        "hits": jnp.sum(weights * hits),
        "count": jnp.sum(weights),
    }


def layer_rates(params: heads.Params, *, decay: float, frozen_layers: int) -> Any:
    """A factor of the learning rate for each parameter; 0 where it is held.

    The head and the pooler have 1, and each layer below `decay` times that of the one above it, the
    embeddings last (Clark et al. 2020, ELECTRA, section 3.1; Howard and Ruder 2018). With
    `frozen_layers` of at least 1, the embeddings and that many layers are held.
    """
    layers = sum(name.startswith("layer_") for name in params["encoder"])

    def rate(path: tuple, _: Any) -> float:
        if path[0].key != "encoder":
            return 1.0
        name = path[1].key
        depth = int(name.removeprefix("layer_")) + 1 if name.startswith("layer_") else 0
        return 0.0 if frozen_layers and depth <= frozen_layers else decay ** (layers + 1 - depth)

    return jax.tree_util.tree_map_with_path(rate, params)


def train_step(
    state: TrainState, batch: dict[str, jax.Array], *, config: TrainConfig, rates: Any
) -> tuple[TrainState, dict[str, jax.Array]]:
    """One update on one global batch; `rates` is what `layer_rates` gives.

    The loss is one mean over the weights of the whole batch, on any mesh and in any number of
    slices. Metrics are float32 scalars, before the update.
    """
    rows_B = jax.lax.broadcasted_iota(
        jnp.uint32, batch["input_ids"].shape[:1], 0, out_sharding=batch_spec()
    )
    count = jnp.maximum(jnp.sum(batch["weights"]), 1.0)

    def loss(params, batch, rows_B):
        # Nothing is computed for what is held, and it has no part in the gradient's norm.
        params = jax.tree.map(lambda p, r: p if r else jax.lax.stop_gradient(p), params, rates)
        key = DropoutKey.create(seed=config.seed, step=state.step, rows_B=rows_B)
        outputs = heads.apply(
            params,
            batch,
            config=config.model,
            head=config.head,
            compute=config.compute,
            key=key,
        )
        sums = task_sums(outputs, batch)
        return sums["loss"] / count, sums

    slices = config.optimizer.gradient_accumulation_steps
    gradients, sums = accumulate(loss, state.params, (batch, rows_B), slices=slices)
    direction, opt_state = adamw(config.optimizer).update(gradients, state.opt_state, state.params)
    rate = learning_rate(state.step, config=config.optimizer, total_steps=config.total_steps)
    params = jax.tree.map(lambda p, d, r: p - rate * r * d, state.params, direction, rates)
    values = {
        "loss": sums["loss"] / count,
        "accuracy": sums["hits"] / count,
        "learning_rate": rate,
        "grad_norm": optax.tree.norm(gradients),
    }
    if config.head.parts[-1] == "sequence_classifier" and not config.head.labels:
        del values["accuracy"]  # of a number there is none
    return TrainState(state.step + 1, params, opt_state, state.recent_norms), values
