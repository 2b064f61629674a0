"""An optimiser straight from optax: Lion (Chen et al. 2023, arXiv:2302.06675).

Any transformation of optax will do. It is made with a learning rate of 1: the schedule's rate
multiplies its updates. Bad updates are left out, its state is saved and sharded, as with BERT's.

    bert-jax pretrain examples/extend/optimizer.py --corpus CORPUS --workdir RUN
"""

import optax

from bert_jax.config import OptimizerConfig, TrainConfig
from bert_jax.config_loader import load_config
from bert_jax.registry import OPTIMIZERS
from bert_jax.update.optimizers import decay_mask


def lion(config: OptimizerConfig) -> optax.GradientTransformation:
    return optax.lion(
        1.0, b1=config.beta1, b2=0.99, weight_decay=config.weight_decay, mask=decay_mask
    )


OPTIMIZERS.register("lion", lion)


def config() -> TrainConfig:
    changes = ["name=lion", "optimizer.kind=lion", "optimizer.learning_rate=3e-4"]
    return load_config("tiny_docs_cpu", changes)
