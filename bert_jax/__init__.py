"""Pre-train BERT-family encoders with JAX, on one machine or on a TPU pod.

What `import bert_jax` offers is listed in `__all__` and described in docs/python.md. Each name is
imported when it is first asked for, so that the import itself is instant.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bert_jax.api.corpora import batches, corpus_of, show_batch
    from bert_jax.api.model import Model, load
    from bert_jax.api.training import Training, config_for
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
    from bert_jax.pretrained.import_export import export_checkpoint, import_checkpoint
    from bert_jax.progress import silence
    from bert_jax.registry import (
        ATTENTION,
        FAMILIES,
        FORMATS,
        MASKS,
        OBJECTIVES,
        OPTIMIZERS,
        PARTS,
        POSITIONS,
        PROBES,
        ROWS,
        SCHEDULES,
        TASK_KINDS,
        TASKS,
    )
    from bert_jax.tasks.finetune import Recipe
    from bert_jax.tasks.sweep import Settings, finetune
    from bert_jax.tasks.task import Sources, TaskSpec
    from bert_jax.training.evaluate import evaluate_checkpoint
    from bert_jax.training.pretrain import pretrain

__version__ = "0.1.0"

__all__ = [
    "ATTENTION",
    "FAMILIES",
    "FORMATS",
    "MASKS",
    "OBJECTIVES",
    "OPTIMIZERS",
    "PARTS",
    "POSITIONS",
    "PROBES",
    "ROWS",
    "SCHEDULES",
    "TASKS",
    "TASK_KINDS",
    "BertJaxError",
    "CheckpointConfig",
    "ComputeConfig",
    "DataConfig",
    "EvaluationConfig",
    "HeadConfig",
    "MeshConfig",
    "Model",
    "ModelConfig",
    "OptimizerConfig",
    "PhaseConfig",
    "Recipe",
    "Settings",
    "Sources",
    "TaskSpec",
    "TrainConfig",
    "Training",
    "UsageError",
    "apply",
    "batches",
    "config_for",
    "corpus_of",
    "evaluate_checkpoint",
    "export_checkpoint",
    "finetune",
    "import_checkpoint",
    "init_params",
    "load",
    "load_config",
    "load_tokenizer",
    "open_corpus",
    "override",
    "prepare",
    "pretrain",
    "show_batch",
    "silence",
]

# Module -> what of it is offered.
_NAMES = {
    "bert_jax.api.corpora": "batches corpus_of show_batch",
    "bert_jax.api.model": "Model load",
    "bert_jax.api.training": "Training config_for",
    "bert_jax.config": (
        "CheckpointConfig ComputeConfig DataConfig EvaluationConfig HeadConfig MeshConfig "
        "ModelConfig OptimizerConfig PhaseConfig TrainConfig"
    ),
    "bert_jax.config_loader": "load_config override",
    "bert_jax.data.corpus.prepare": "prepare",
    "bert_jax.data.corpus.store": "open_corpus",
    "bert_jax.data.tokenizer.tokenizer": "load_tokenizer",
    "bert_jax.errors": "BertJaxError UsageError",
    "bert_jax.model.bert": "apply init_params",
    "bert_jax.progress": "silence",
    "bert_jax.registry": (
        "ATTENTION FAMILIES FORMATS MASKS OBJECTIVES OPTIMIZERS PARTS POSITIONS PROBES "
        "ROWS SCHEDULES TASKS TASK_KINDS"
    ),
    "bert_jax.tasks.finetune": "Recipe",
    "bert_jax.tasks.sweep": "Settings finetune",
    "bert_jax.tasks.task": "Sources TaskSpec",
    "bert_jax.training.evaluate": "evaluate_checkpoint",
    "bert_jax.training.pretrain": "pretrain",
    "bert_jax.pretrained.import_export": "export_checkpoint import_checkpoint",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'bert_jax' has no attribute {name!r}")
    found = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
