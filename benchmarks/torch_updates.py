"""The update of the comparisons with torch: AdamW with the rule and the learning rates of a run."""

from collections.abc import Callable

import jax
import torch

from bert_jax.config import TrainConfig


def without_decay_in_bert(name: str, _: torch.nn.Parameter) -> bool:
    """Returns whether a parameter of transformers' BERT has no weight decay."""
    return "LayerNorm" in name or name.endswith("bias")


class Updates:
    """Clips the gradients of a model and updates its parameters, one step at a time."""

    def __init__(
        self,
        model: torch.nn.Module,
        config: TrainConfig,
        *,
        without_decay: Callable[[str, torch.nn.Parameter], bool] = without_decay_in_bert,
    ):
        self._model, self._config = model, config
        rule, named = config.optimizer, list(model.named_parameters())
        plain = [p for name, p in named if without_decay(name, p)]
        decayed = [p for name, p in named if not without_decay(name, p)]
        self._optimizer = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": rule.weight_decay},
                {"params": plain, "weight_decay": 0.0},
            ],
            betas=(rule.beta1, rule.beta2),
            eps=rule.epsilon,
        )

    def __call__(self, loss: torch.Tensor, step: int) -> None:
        """Makes the update of a step, from 0, for a loss."""
        config = self._config
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), config.optimizer.clip_norm)
        rate = config.optimizer.schedule.rate(
            jax.numpy.int32(step), config=config.optimizer, total_steps=config.total_steps
        )
        for group in self._optimizer.param_groups:
            group["lr"] = float(rate)
        self._optimizer.step()
