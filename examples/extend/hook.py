"""A hook: stops a run when its validation loss is low enough.

A hook receives the steps, metrics and evaluations of a run. To stop the run, it returns a reason.
Its options are declared as a config section.

    bert-jax pretrain examples/extend/hook.py --corpus CORPUS --workdir RUN
"""

from bert_jax.config import HookConfig, TrainConfig
from bert_jax.config.fields import Positive, section, setting
from bert_jax.config_loader import load_config
from bert_jax.registry import HOOKS
from bert_jax.training.hooks import Hook


@section
class TargetOptions(HookConfig, kind="target"):
    loss: Positive = setting(1.0, "The loss that ends the run.")


class Target(Hook):
    """Stops the run at the first evaluation with a loss of `loss` or less."""

    def __init__(self, loss: float):
        self.loss = loss

    def on_evaluation(self, step: int, scores: dict) -> str | None:
        found = scores["validation"]["loss"]
        if found > self.loss:
            return None
        self.run.event("target", step=step, loss=found)
        return f"the validation loss is {self.loss:g} or less"


HOOKS.register("target", Target)


def config() -> TrainConfig:
    return load_config("tiny_docs_cpu", ["name=target", 'hooks=[{"kind": "target", "loss": 0.5}]'])
