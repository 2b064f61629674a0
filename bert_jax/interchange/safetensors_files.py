"""Reads and writes safetensors: one file, or several with an index. Nothing is unpickled."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax import strict_json
from bert_jax.data.tokenizer import hub
from bert_jax.errors import UsageError
from bert_jax.files import inside

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
# The file size that transformers uses, for repositories with a size limit.
MAX_FILE_BYTES = 5_000_000_000
# Files that transformers' Trainer writes next to the weights (trainer.py).
_TRAINER_FILES = ("training_args", "optimizer", "scheduler", "rng_state", "scaler")
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


def write_tensors(
    directory: Path, tensors: Mapping[str, np.ndarray], *, max_file_bytes: int
) -> None:
    """Writes `model.safetensors`, or files of about `max_file_bytes` and their index."""
    from huggingface_hub import split_state_dict_into_shards_factory

    found = split_state_dict_into_shards_factory(
        dict(tensors),
        get_storage_size=lambda tensor: tensor.nbytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=max_file_bytes,
    )
    for file, names in found.filename_to_tensors.items():
        write_file(directory / file, {name: tensors[name] for name in names})
    if found.is_sharded:
        index = {"metadata": found.metadata, "weight_map": found.tensor_to_filename}
        text = json.dumps(index, indent=2, sort_keys=True)
        (directory / INDEX).write_text(text + "\n", encoding="utf-8")


def write_file(path: Path, tensors: Mapping[str, np.ndarray], **metadata: str) -> None:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        save_file(dict(tensors), path, metadata={"format": "pt", **metadata})
    except SafetensorError as error:
        # The library reports OS errors as text: "... (os error 28)".
        found = _OS_ERROR.search(str(error))
        if not found:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1]))) from error
    # The library creates files that only their owner can read.
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)


def read(directory: Path) -> dict[str, np.ndarray]:
    """Returns all tensors of a directory. Raises UsageError if there are none, or a file is
    damaged.

    A single file takes precedence over an index: transformers leaves the index behind when it
    replaces several files by one.
    """
    if (directory / WEIGHTS).exists():
        return read_file(directory / WEIGHTS)[0]
    if (directory / INDEX).exists():
        return _read_sharded(directory)
    found = ", ".join(sorted(p.name for p in directory.glob("*"))) or "nothing"
    pickled = sorted(p for p in directory.glob("*") if p.suffix in hub.PICKLES)
    weights = [p for p in pickled if p.match("pytorch_model*.bin")] or [
        p for p in pickled if not p.name.startswith(_TRAINER_FILES)
    ]
    remedy = f"; {hub.pickle_advice(*weights)}" if weights else ""
    raise UsageError(f"{directory} has no {WEIGHTS} (found {found}){remedy}")


def _read_sharded(directory: Path) -> dict[str, np.ndarray]:
    path = directory / INDEX
    try:
        where = strict_json.parse(path.read_bytes())["weight_map"]
        files = sorted(set(where.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is not an index of files: {error}") from error
    tensors: dict[str, np.ndarray] = {}
    for file in files:
        try:
            tensors |= read_file(inside(directory, file))[0]
        except ValueError as error:
            raise UsageError(f"{path}: {error}") from error
    lost = sorted(set(where) - set(tensors))
    if lost:
        raise UsageError(f"{path} lists tensors that its files lack: {', '.join(lost)}")
    return tensors


def read_file(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Returns the tensors and the metadata of one file."""
    import ml_dtypes  # noqa: F401  # registers bfloat16 with NumPy
    from safetensors import SafetensorError, safe_open

    if path.exists() and not path.is_file():  # opening a pipe would block
        raise UsageError(f"{path} is not a regular file; put the file itself there")
    try:
        with safe_open(path, framework="numpy") as file:
            opened: Any = file
            names = opened.keys()
            return {name: opened.get_tensor(name) for name in names}, dict(opened.metadata() or {})
    except AttributeError as error:  # a type that NumPy lacks, such as float8_e4m3fn
        raise UsageError(
            f"{path} has tensors of type {error.name}, which is not supported: save the model in "
            "float32 or bfloat16"
        ) from error
    except (SafetensorError, OSError, TypeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def cast(name: str, tensor: np.ndarray, dtype: str) -> np.ndarray:
    """Returns a tensor as "float32", "float16" or "bfloat16".

    Raises UsageError if a value exceeds the range of the type.
    """
    if dtype == "float32":
        return tensor
    import ml_dtypes

    kind = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    with np.errstate(over="ignore"):
        cast = tensor.astype(kind)
    if not np.isfinite(cast.astype(np.float32)).all():
        raise UsageError(f"{name} has values beyond the range of {dtype}; set `dtype` float32")
    return cast
