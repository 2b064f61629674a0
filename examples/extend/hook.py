"""A hook: ends a run once its held-out loss is low enough, and says how long that took.

A hook sees the steps, metrics and evaluations of a run and answers what the loop is to do. Its
options are declared as a section.

    bert-jax pretrain examples/extend/hook.py --corpus CORPUS --workdir RUN
"""

from bert_jax.config import HookConfig, TrainConfig
from bert_jax.config.fields import Positive, section, setting
from bert_jax.config_loader import load_config
from bert_jax.registry import HOOKS
from bert_jax.training.hooks import CONTINUE, STOP, Action, Hook


@section
class TargetOptions(HookConfig, kind="target"):
    loss: Positive = setting(1.0, "The loss that ends the run.")


class Target(Hook):
    """Ends the run at the first evaluation whose loss is `loss` or less."""

    def __init__(self, loss: float):
        self.loss = loss

    def on_evaluation(self, step: int, scores: dict) -> Action:
        found = scores["validation"]["loss"]
        if found > self.loss:
            return CONTINUE
        self.run.event("target", step=step, loss=found)
        return STOP

    def stop(self, step: int) -> str:
        return f"the held-out loss is {self.loss:g} or less"


HOOKS.register("target", Target)


def config() -> TrainConfig:
    return load_config("tiny_docs_cpu", ["name=target", 'hooks=[{"kind": "target", "loss": 0.5}]'])
