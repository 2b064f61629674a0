"""Hugging Face directories, both ways: `config.json`, `model.safetensors`, and one table of names.

Read and written with `safetensors` alone: no torch, nothing unpickled. What is written loads as
`BertForPreTraining`, `BertForMaskedLM` or `BertModel`, and with `pipeline("fill-mask")`.
"""

import dataclasses
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.config import ModelConfig, TrainConfig, from_dict, validate
from bert_jax.data import tokenizer as tokenizers
from bert_jax.errors import UsageError
from bert_jax.model import heads

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"

# Parts outside the layers: our path -> their prefix. A trailing name follows from the kind of leaf.
_FIXED = {
    "encoder.embeddings.word": "bert.embeddings.word_embeddings",
    "encoder.embeddings.position": "bert.embeddings.position_embeddings",
    "encoder.embeddings.token_type": "bert.embeddings.token_type_embeddings",
    "encoder.embeddings.layer_norm": "bert.embeddings.LayerNorm",
    "pooler.dense": "bert.pooler.dense",
    "mlm": "cls.predictions",
    "mlm.transform": "cls.predictions.transform.dense",
    "mlm.layer_norm": "cls.predictions.transform.LayerNorm",
    "nsp": "cls.seq_relationship",
}
_LAYER = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_norm": "output.LayerNorm",
}
_LEAF = {"kernel": "weight", "embedding": "weight", "scale": "weight", "bias": "bias"}
# Copies of other tensors that some writers store: the tied output and its bias, and a counter.
_REDUNDANT = {
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
    "bert.embeddings.position_ids",
}
# Spellings of the tanh approximation in their configs.
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "gelu_fast": "gelu_new",
}


def tensor_names(config: ModelConfig) -> dict[str, str]:
    """Our dotted path of every parameter -> the name Hugging Face gives it."""
    return {_dotted(path): _their_name(path) for path, _ in _leaves(heads.abstract_params(config))}


def _leaves(params: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        yield tuple(entry.key for entry in path), leaf


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(path)


def _their_name(path: tuple[str, ...]) -> str:
    *parents, leaf = path
    if len(parents) == 3 and parents[1].startswith("layer_"):
        number = parents[1].removeprefix("layer_")
        prefix = f"bert.encoder.layer.{number}.{_LAYER[parents[2]]}"
    else:
        prefix = _FIXED[".".join(parents)]
    return f"{prefix}.{_LEAF[leaf]}"


def _inputs(path: tuple[str, ...]) -> int:
    """How many leading dims of a kernel are contracted: heads x head size, or the width alone."""
    del path
    return 1


def _to_theirs(path: tuple[str, ...], ours: np.ndarray) -> np.ndarray:
    """torch's Linear keeps `[outputs, inputs]`, and all heads in one dim."""
    if path[-1] == "kernel":
        inputs = math.prod(ours.shape[: _inputs(path)])
        return np.ascontiguousarray(ours.reshape(inputs, -1).T)
    return ours.reshape(-1) if path[-1] == "bias" else ours


def _to_ours(path: tuple[str, ...], theirs: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    theirs = theirs.T if path[-1] == "kernel" else theirs
    return np.ascontiguousarray(theirs.reshape(shape), dtype=np.float32)


# --- writing -------------------------------------------------------------------------------------


def write(directory: Path, params: Any, config: ModelConfig, *, tokenizer: Path) -> None:
    """Writes `params` and the tokenizer directory as a new Hugging Face directory.

    The directory appears whole or not at all. Raises UsageError if it exists and is not empty.
    """
    from safetensors.numpy import save_file

    if directory.exists() and any(directory.iterdir()):
        raise UsageError(f"--output {directory} is not empty; choose another or remove it")
    building = directory.with_name(f".{directory.name}.new")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    save_file(to_tensors(params), building / WEIGHTS, metadata={"format": "pt"})
    (building / CONFIG).write_text(
        json.dumps(their_config(config), indent=2) + "\n", encoding="utf-8"
    )
    # The longest input is the model's to say, not the tokenizer's.
    tokenizers.load(tokenizer).save(building, model_max_length=config.max_position_embeddings)
    if directory.exists():
        directory.rmdir()
    building.rename(directory)


def to_tensors(params: Any) -> dict[str, np.ndarray]:
    """Their name -> tensor in their layout, of parameters or of gradients."""
    return {_their_name(path): _to_theirs(path, np.asarray(leaf)) for path, leaf in _leaves(params)}


def their_config(config: ModelConfig) -> dict[str, Any]:
    """The content of `config.json`: our model fields carry their names."""
    return {
        "architectures": ["BertForPreTraining"],
        "model_type": "bert",
        **dataclasses.asdict(config),
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }


# --- reading -------------------------------------------------------------------------------------


def is_directory(path: Path) -> bool:
    """Whether `path` looks like a Hugging Face model rather than a workdir of ours."""
    return (path / WEIGHTS).exists() or (path / INDEX).exists() or (path / CONFIG).exists()


def read_config(directory: Path) -> ModelConfig:
    """The model of a directory's `config.json`; raises UsageError if it is no BERT we can run."""
    path = directory / CONFIG
    try:
        theirs = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; is this a model directory?") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    if not isinstance(theirs, dict):
        raise UsageError(f"{path} holds no config: expected an object of fields")
    if theirs.get("model_type", "bert") != "bert":
        raise UsageError(f"{path}: model_type is {theirs['model_type']!r}; only 'bert' is read")
    if theirs.get("position_embedding_type", "absolute") != "absolute":
        raise UsageError(f"{path}: only absolute position embeddings are read")
    activation = theirs.get("hidden_act", "gelu")
    if activation not in _ACTIVATIONS:
        raise UsageError(
            f"{path}: hidden_act {activation!r} is not one of {', '.join(_ACTIVATIONS)}"
        )
    names = {f.name for f in dataclasses.fields(ModelConfig)}
    values = {name: value for name, value in theirs.items() if name in names}
    model = from_dict(values | {"hidden_act": _ACTIVATIONS[activation]}, ModelConfig, str(path))
    # The phase is only there to have a whole config to check.
    length = min(model.max_position_embeddings, 128)
    return validate_model(model, length)


def validate_model(model: ModelConfig, sequence_length: int) -> ModelConfig:
    from bert_jax.config import OptimizerConfig, PhaseConfig

    phase = PhaseConfig(sequence_length=sequence_length, max_predictions=1, steps=1)
    whole = TrainConfig(model=model, phases=(phase,), optimizer=OptimizerConfig(warmup_steps=0))
    return validate(whole).model


def read_params(directory: Path, config: ModelConfig) -> heads.Params:
    """float32 parameters as NumPy arrays, in our layout.

    Raises UsageError that lists every missing, extra or misshapen tensor.
    """
    tensors = _read_tensors(directory)
    problems, params = [], {}
    word = tensors.get("bert.embeddings.word_embeddings.weight")
    for name, source in (("weight", word), ("bias", tensors.get("cls.predictions.bias"))):
        copy = tensors.get(f"cls.predictions.decoder.{name}")
        if copy is not None and source is not None and not np.array_equal(copy, source):
            problems.append(f"cls.predictions.decoder.{name} is not tied to its other copy")
    for path, leaf in _leaves(heads.abstract_params(config)):
        name = _their_name(path)
        expected = _their_shape(path, leaf.shape)
        tensor = tensors.pop(name, None)
        if tensor is None:
            problems.append(f"missing {name} {list(expected)}")
        elif tensor.shape != expected:
            problems.append(f"{name} is {list(tensor.shape)}, expected {list(expected)}")
        else:
            _insert(params, path, _to_ours(path, tensor, leaf.shape))
    problems += [f"unexpected {name}" for name in sorted(set(tensors) - _REDUNDANT)]
    if problems:
        raise UsageError(
            f"{directory} does not hold the model its {CONFIG} describes: " + "; ".join(problems)
        )
    return params


def _their_shape(path: tuple[str, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    if path[-1] == "kernel":
        inputs = _inputs(path)
        return (math.prod(shape[inputs:]), math.prod(shape[:inputs]))
    return (math.prod(shape),) if path[-1] == "bias" else shape


def _insert(tree: dict, path: tuple[str, ...], value: np.ndarray) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value


def _read_tensors(directory: Path) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if (directory / INDEX).exists():
        index = json.loads((directory / INDEX).read_text(encoding="utf-8"))
        files = sorted({directory / name for name in index["weight_map"].values()})
    elif (directory / WEIGHTS).exists():
        files = [directory / WEIGHTS]
    else:
        found = ", ".join(sorted(p.name for p in directory.glob("*"))) or "nothing"
        raise UsageError(
            f"{directory} has no {WEIGHTS} (found {found}); pickled weights are not read: convert "
            "them with transformers' save_pretrained"
        )
    tensors = {}
    for file in files:
        try:
            tensors |= load_file(file)
        except (SafetensorError, OSError) as error:
            raise UsageError(f"{file} cannot be read: {error}") from error
    return {_modern_name(name): tensor for name, tensor in tensors.items()}


def _modern_name(name: str) -> str:
    """Old converters call a norm's scale gamma and its bias beta; BertModel leaves out `bert.`."""
    name = name.removesuffix(".gamma") + ".weight" if name.endswith(".gamma") else name
    name = name.removesuffix(".beta") + ".bias" if name.endswith(".beta") else name
    return f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name
