"""A hook: ends a run once its held-out loss is low enough, and says how long that took.

A hook sees the steps, metrics and evaluations of a run and answers what the loop is to do. Its
arguments are options of the config: "target:loss=2.5".

    bert-jax pretrain examples/extend/hook.py --corpus CORPUS --workdir RUN
"""

from bert_jax.config import TrainConfig
from bert_jax.config_loader import load_config
from bert_jax.registry import HOOKS
from bert_jax.training.hooks import CONTINUE, STOP, Action, Hook


class Target(Hook):
    """Ends the run at the first evaluation whose loss is `loss` or less."""

    def __init__(self, loss: float = 1.0):
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
    return load_config("tiny_docs_cpu", ["name=target", 'hooks=["target:loss=0.5"]'])
