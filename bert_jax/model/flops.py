"""FLOPs of a forward pass in closed form: only matmuls count, a multiply-add as two."""

from bert_jax.config import ModelConfig
from bert_jax.model.layer_spec import LayerSpec, layer_specs
from bert_jax.registry import MIXERS


def encoder_flops(model: ModelConfig, *, length: int, read: int | None = None) -> int:
    """Returns the FLOPs of the encoder for one row.

    The last block computes keys and values for every position and all else only for the `read`
    positions; None reads every position.
    """
    d, f = model.hidden_size, model.intermediate_size

    def block(layer: LayerSpec, queries: int) -> int:
        kernels = 3 if layer.feed_forward == "gated" else 2
        mixing = MIXERS[layer.mixer].flops(model, layer, length=length, queries=queries)
        return mixing + 2 * queries * kernels * d * f

    *others, last = layer_specs(model)
    blocks = sum(block(layer, length) for layer in others)
    is_projected = model.table_size != d
    projection = 2 * length * model.table_size * d if is_projected else 0
    return projection + blocks + block(last, length if read is None else read)


def masked_lm_flops(model: ModelConfig, *, predictions: int) -> int:
    """Returns the FLOPs of the masked-LM head at `predictions` positions of one row."""
    d, e = model.hidden_size, model.table_size
    inner = model.masked_lm_inner_size
    transform = (d * inner + inner * e if inner else d * e) if model.masked_lm_transform else 0
    return 2 * predictions * (transform + e * model.vocab_size)


def discriminator_flops(model: ModelConfig, *, length: int) -> int:
    """Returns the FLOPs of the discriminator head at every position of one row."""
    d = model.hidden_size
    return 2 * length * (d * d + d)


def pooler_flops(model: ModelConfig, *, classes: int) -> int:
    """Returns the FLOPs of the pooler and a classifier for one text."""
    d = model.hidden_size
    return 2 * (d * d + classes * d)
