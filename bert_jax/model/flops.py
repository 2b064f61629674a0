"""FLOPs of a forward pass in closed form: matrix products only, a multiply and an add are two."""

from bert_jax.config import ModelConfig


def encoder_flops(model: ModelConfig, *, length: int, read: int | None = None) -> int:
    """Returns the FLOPs of one row through the encoder.

    The last block has keys and values of every position, and everything else of the `read` ones
    only; None reads every position.
    """
    d, f = model.hidden_size, model.intermediate_size
    kernels = 3 if model.feed_forward == "gated" else 2
    # Products of queries, or of keys too, with a vector for each distance.
    distances = 2 * model.max_position_embeddings - 1
    of_queries = model.position_embedding_type in ("relative_key", "relative_key_query")
    of_keys = model.position_embedding_type == "relative_key_query"

    def block(queries: int) -> int:
        keys_and_values = 2 * length * 2 * d * d
        relative = 2 * distances * d * (of_queries * queries + of_keys * length)
        attention = 2 * queries * (2 * d * d + 2 * length * d)
        return relative + keys_and_values + attention + 2 * queries * kernels * d * f

    last = block(length if read is None else read)
    is_projected = model.table_size != d
    projection = 2 * length * model.table_size * d if is_projected else 0
    return projection + (model.num_hidden_layers - 1) * block(length) + last


def masked_lm_flops(model: ModelConfig, *, predictions: int) -> int:
    """Returns the FLOPs of the masked language model's head at some positions of one row."""
    d, e = model.hidden_size, model.table_size
    return 2 * predictions * (d * e + e * model.vocab_size)


def discriminator_flops(model: ModelConfig, *, length: int) -> int:
    """Returns the FLOPs of the discriminator's head at every position of one row."""
    d = model.hidden_size
    return 2 * length * (d * d + d)


def pooler_flops(model: ModelConfig, *, classes: int) -> int:
    """Returns the FLOPs of the pooler and a classifier on it, for one text."""
    d = model.hidden_size
    return 2 * (d * d + classes * d)
