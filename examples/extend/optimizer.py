"""A custom optimizer from optax with an option: Lion (Chen et al. 2023, arXiv:2302.06675).

Any transformation of optax works. Create it with a learning rate of 1: its updates are multiplied
by the learning rate of the schedule. As for BERT's optimizer, non-finite updates are skipped, and
the state is saved and sharded.

    bert-jax pretrain examples/extend/optimizer.py --corpus CORPUS --workdir RUN \\
        --set optimizer.momentum_decay=0.98
"""

import optax

from bert_jax.config import Optimizer, TrainConfig
from bert_jax.config.fields import Rate, section, setting
from bert_jax.config_loader import load_config
from bert_jax.registry import OPTIMIZERS
from bert_jax.update.optimizers import decay_mask


@section
class Lion(Optimizer, kind="lion"):
    """Moves each weight by the sign of a mean of gradients."""

    momentum_decay: Rate = setting(0.99, "Decay of the momentum.")

    def transformation(self) -> optax.GradientTransformation:
        betas = {"b1": self.beta1, "b2": self.momentum_decay}
        return optax.lion(1.0, **betas, weight_decay=self.weight_decay, mask=decay_mask)


OPTIMIZERS.register("lion", Lion)


def config() -> TrainConfig:
    changes = ["name=lion", "optimizer.kind=lion", "optimizer.learning_rate=3e-4"]
    return load_config("tiny_docs_cpu", changes)
