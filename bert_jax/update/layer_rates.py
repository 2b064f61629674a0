"""Learning rates that fall from layer to layer, for fine-tuning."""

from typing import Any

import jax

from bert_jax.model import bert


def layer_rates(
    params: bert.Params, *, decay: float, frozen_layers: int, decays_to_top: int = 2
) -> Any:
    """Returns a factor of the learning rate for each parameter; 0 where it is held.

    The head, the pooler and a norm behind the last layer have 1, the top layer
    `decay`^`decays_to_top`, and each layer below `decay` times that of the one above it, the
    embeddings last. 2 is google-research/electra's (model/optimization.py, `_get_layer_lrs`; Clark
    et al. 2020, section 3.1). With `frozen_layers` of at least 1, the embeddings and that many
    layers are held.
    """
    layers = sum(name.startswith("layer_") for name in params["encoder"])

    def rate(path: tuple, _: Any) -> float:
        if path[0].key != "encoder":
            return 1.0
        name = path[1].key
        if name == "final_norm":  # behind the last layer
            return 1.0
        depth = int(name.removeprefix("layer_")) + 1 if name.startswith("layer_") else 0
        if frozen_layers and depth <= frozen_layers:
            return 0.0
        return decay ** (layers - depth + decays_to_top)

    return jax.tree_util.tree_map_with_path(rate, params)
