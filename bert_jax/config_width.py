"""A recipe at another width, so that a wider model trains as well."""

import dataclasses

from bert_jax.config import TrainConfig

# Nothing was measured beyond twice the rate (studies/scaling.py stops there, too).
_MOST = 2.0


def at_width(config: TrainConfig, hidden_size: int) -> TrainConfig:
    """Returns a config of another width, with the learning rate and the initial deviation that suit
    it, given those that suit its own.

    Adam moves every weight by about the rate, and a unit of a wider layer sums more of them: the
    rate falls with 1 / width, and the deviation with 1 / sqrt(width), as for the hidden matrices in
    Yang et al. 2022 (arXiv:2203.03466, table 3). Rates are at most doubled, for narrower models.
    """
    ratio = config.model.hidden_size / hidden_size
    if ratio == 1:
        return config
    rate = config.optimizer.learning_rate * min(_MOST, ratio)
    deviation = config.model.initializer_range * ratio**0.5
    return dataclasses.replace(
        config,
        model=dataclasses.replace(
            config.model, hidden_size=hidden_size, initializer_range=_rounded(deviation)
        ),
        optimizer=dataclasses.replace(config.optimizer, learning_rate=_rounded(rate)),
    )


def _rounded(value: float) -> float:
    """Returns a value with three digits, as people write it."""
    return float(f"{value:.3g}")
