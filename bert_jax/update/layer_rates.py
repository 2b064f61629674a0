"""Layer-wise learning rate decay for fine-tuning."""

from typing import Any

import jax

from bert_jax.model import bert


def layer_rates(params: bert.Params, *, decay: float, frozen_layers: int) -> Any:
    """Returns a factor of the learning rate for each parameter; 0 for frozen parameters.

    The head, the pooler and the norm after the last layer have the factor 1, the top layer
    `decay`**2, and each layer below `decay` times the factor of the layer above it; the embeddings
    come after layer 0. The exponent 2 is google-research/electra's (model/optimization.py,
    `_get_layer_lrs`; Clark et al. 2020, section 3.1). With `frozen_layers` of at least 1, the
    embeddings and the first `frozen_layers` layers are frozen.
    """
    layers = sum(name.startswith("layer_") for name in params["encoder"])

    def rate(path: tuple, _: Any) -> float:
        if path[0].key != "encoder":
            return 1.0
        name = path[1].key
        if name == "final_norm":  # after the last layer
            return 1.0
        depth = int(name.removeprefix("layer_")) + 1 if name.startswith("layer_") else 0
        if frozen_layers and depth <= frozen_layers:
            return 0.0
        return decay ** (layers - depth + 2)

    return jax.tree_util.tree_map_with_path(rate, params)
