"""Pre-train BERT-family encoders with JAX, on one machine or on a TPU pod.

The imports below list the public API. They are for type checkers and readers: each name is imported
on first use, so that `import bert_jax` is instant.
"""

import ast
import functools
import importlib
import inspect
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bert_jax.api.model import Model, load
    from bert_jax.config import (
        CheckpointConfig,
        ComputeConfig,
        DataConfig,
        EvaluationConfig,
        HeadConfig,
        MeshConfig,
        ModelConfig,
        OptimizerConfig,
        PhaseConfig,
        TrainConfig,
    )
    from bert_jax.config_loader import load_config, override
    from bert_jax.data.corpus.prepare import prepare
    from bert_jax.data.corpus.store import open_corpus
    from bert_jax.data.tokenizer.tokenizer import load_tokenizer
    from bert_jax.errors import BertJaxError, UsageError
    from bert_jax.model.bert import apply, init_params
    from bert_jax.pretrained.export import export_checkpoint
    from bert_jax.progress import silence
    from bert_jax.registry import (
        ATTENTION,
        FAMILIES,
        FORMATS,
        MASKINGS,
        MIXERS,
        OBJECTIVES,
        OPTIMIZERS,
        PARTS,
        POSITIONS,
        PROBES,
        SCHEDULES,
        SCORES,
        SEQUENCE_FORMATS,
        TASK_KINDS,
        TASKS,
    )
    from bert_jax.tasks.finetune import Settings
    from bert_jax.tasks.sweep import finetune
    from bert_jax.tasks.task import Sources, TaskSpec
    from bert_jax.training.evaluate import evaluate_checkpoint
    from bert_jax.training.pretrain import pretrain

__version__ = "0.1.0"


@functools.cache
def _modules() -> dict[str, str]:
    """Returns the module of each name that the imports above list."""
    tree = ast.parse(inspect.getsource(sys.modules[__name__]))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {
        alias.name: str(node.module)
        for node in imports
        for alias in node.names
        if str(node.module).startswith("bert_jax.")
    }


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_modules())
    if name.startswith("__") or name not in _modules():
        raise AttributeError(f"module 'bert_jax' has no attribute {name!r}")
    found = getattr(importlib.import_module(_modules()[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_modules()})
