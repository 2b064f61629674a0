"""Directories of sentence-transformers: how the hidden states of a text become its embedding.

`modules.json` lists the modules: encoder, pooling, and later ones. A module is looked up by its
name; nothing that a file names is imported. A directory without that file is an encoder with mean
pooling, as in `SentenceTransformer` (sentence-transformers 6.2, sentence_transformer/model.py,
`_load_default_modules`).

Dims: N texts, W width of an embedding.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from bert_jax.config import TrainConfig
from bert_jax.errors import UsageError, brief
from bert_jax.interchange import name_map, safetensors_files
from bert_jax.progress import note_once

MODULES = "modules.json"
POOLINGS = ("mean", "cls", "max", "lasttoken")
# The names of the prompts that are looked for, as in `encode_query` and `encode_document` of
# sentence-transformers 6.2 (sentence_transformer/model.py).
QUERY_PROMPTS = ("query",)
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
_FOLDER = "1_Pooling"
_ENCODER = "sentence_bert_config.json"
_SETTINGS = "config_sentence_transformers.json"
# The fields of `1_Pooling/config.json` that choose the pooling before version 6.
_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# Our field of `_SETTINGS`: the numbers of columns that were trained. Other readers ignore it.
_TRAINED = "matryoshka_dims"
_HINT = "is this a directory of sentence-transformers?"

Step = Callable[[np.ndarray], np.ndarray]


def _erf(x: np.ndarray) -> np.ndarray:
    from scipy import special  # takes a quarter of a second to import

    return special.erf(x)


# By the last component of torch's name.
_ACTIVATIONS: Mapping[str, Step] = {
    "Identity": lambda x: x,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, 0),
    "GELU": lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2))),
}


@dataclass(frozen=True)
class EmbeddingRecipe:
    """How a text becomes an embedding. Default: the mean of its tokens, without a length limit.

    `length` is the maximum number of tokens per text, None for no limit. `steps` transform the
    pooled vectors `[N, W]` in order, each with a name for messages.
    """

    length: int | None = None
    lowercase: bool = False
    # The prompts by name, and the default prompt before every text.
    prompts: Mapping[str, str] = field(default_factory=dict)
    prompt: str = ""
    # Whether the tokens of a prompt are pooled with the text.
    pools_prompt: bool = True
    pooling: str = "mean"
    steps: tuple[tuple[str, Step], ...] = ()
    # The columns of an embedding that are used; None: all.
    dims: int | None = None
    # The numbers of columns that were trained; None if they are unknown.
    trained_dims: tuple[int, ...] | None = None
    similarity: str = "cosine"

    def with_prompt(self, name: str | None) -> Self:
        """Returns the recipe with the prompt of that name before every text; None changes nothing.

        Raises UsageError, which lists the available names, and for a prompt that is not pooled.
        """
        if name is not None and name not in self.prompts:
            known = ", ".join(self.prompts) or "none"
            raise UsageError(f"`prompt` {name}: the model has the prompts: {known}")
        prompt = self.prompt if name is None else self.prompts[name]
        if prompt and not self.pools_prompt:
            raise UsageError(
                f"include_prompt is false in {_FOLDER}/config.json: pooling without the tokens of "
                f"the prompt {prompt!r} is not supported; set it to true to pool them as well"
            )
        return dataclasses.replace(self, prompt=prompt)

    def with_first_prompt(self, names: Sequence[str]) -> Self:
        """Returns the recipe with the first prompt of these names that it has, if it has one."""
        return self.with_prompt(next((name for name in names if name in self.prompts), None))

    def with_dims(self, dims: int | None, *, width: int) -> "EmbeddingRecipe":
        """Returns the recipe that keeps the first `dims` columns of vectors with `width` columns,
        by default its own number. A note says if the run did not train this number.

        Raises UsageError for a number below 1 or above `width`.
        """
        dims = self.dims if dims is None else dims
        if dims is not None and not 1 <= dims <= width:
            raise UsageError(f"`dims` {dims}: the vectors have {width} columns; use 1 to {width}")
        if dims and self.trained_dims and dims not in self.trained_dims:
            known = ", ".join(map(str, self.trained_dims))
            note_once(f"`dims` {dims}: the run trained vectors of {known} columns (embedding.dims)")
        return dataclasses.replace(self, dims=dims)

    def finished(self, pooled_NW: np.ndarray) -> np.ndarray:
        """Returns embeddings from pooled vectors: their first `dims` columns."""
        for _, step in self.steps:
            pooled_NW = step(pooled_NW)
        return pooled_NW[:, : self.dims]

    def described(self) -> str:
        """Returns a description of the recipe."""
        parts = [f"at most {self.length} tokens"] if self.length else []
        parts += ["lower case"] * self.lowercase + [f"after {self.prompt!r}"] * bool(self.prompt)
        return ", ".join([*parts, f"pooling {self.pooling}", *(name for name, _ in self.steps)])


def normalized(vectors_NW: np.ndarray) -> np.ndarray:
    """Returns vectors of length 1; zeros stay (torch.nn.functional.normalize)."""
    lengths = np.linalg.norm(vectors_NW, axis=-1, keepdims=True)
    return vectors_NW / np.maximum(lengths, 1e-12)


NORMALIZE = ("normalized", normalized)


def recipe_of_run(config: TrainConfig) -> EmbeddingRecipe | None:
    """Returns the recipe of a run that learned embeddings; None for other runs."""
    if "embedding" not in config.head.parts:
        return None
    options = config.embedding
    prompts = {"query": options.query_prompt, "document": options.document_prompt}
    return EmbeddingRecipe(
        length=config.phases[-1].sequence_length,
        prompts=prompts if any(prompts.values()) else {},
        pooling=config.head.pooling,
        steps=(NORMALIZE,) * (options.similarity == "cosine"),
        trained_dims=(config.model.hidden_size, *options.dims),
        similarity=options.similarity,
    )


def write(directory: Path, recipe: EmbeddingRecipe, *, width: int) -> None:
    """Adds the files that turn an encoder's directory into an embedder with vectors of `width`.

    Types and fields are the older ones, which all readers support: sentence-transformers 5.7 and
    6.2 (modules/pooling.py, `_convert_legacy_pooling_kwargs`), earlier releases and
    text-embeddings-inference (router/src/lib.rs, `PoolConfig` and `STConfig`).
    `embedding_dimension` is omitted, because earlier releases reject it.
    """
    trained = recipe.trained_dims or ()
    stages = [("Transformer", ""), ("Pooling", _FOLDER)]
    if NORMALIZE in recipe.steps:
        stages.append(("Normalize", "2_Normalize"))  # without settings, so without a folder
    files = {
        MODULES: [
            {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for n, (kind, path) in enumerate(stages)
        ],
        f"{_FOLDER}/config.json": {
            "word_embedding_dimension": width,
            **{name: mode == recipe.pooling for name, mode in _MODES.items()},
            "include_prompt": True,
            "pooling_mode": recipe.pooling,
        },
        # The tokenizer changes case if the model needs it.
        _ENCODER: {"max_seq_length": recipe.length, "do_lower_case": False},
        _SETTINGS: {
            "prompts": dict(recipe.prompts),
            "similarity_fn_name": "cosine" if NORMALIZE in recipe.steps else recipe.similarity,
            **({} if recipe.dims is None else {"truncate_dim": recipe.dims}),
            **({} if len(trained) < 2 else {_TRAINED: list(trained)}),
        },
    }
    (directory / _FOLDER).mkdir()
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def encoder_directory(directory: Path) -> Path:
    """Returns the folder with the encoder: the directory, or a folder inside it."""
    if not (directory / MODULES).is_file():
        return directory
    kind, folder = _stages(directory)[0]
    if kind != "Transformer":
        raise UsageError(f"{directory / MODULES}: the first module is {kind}, not a Transformer")
    return folder


def read(directory: Path, *, encoder_only: bool = False) -> EmbeddingRecipe:
    """Returns the recipe of a directory; with `encoder_only`, the modules before the pooling.

    Raises UsageError with the file and the module that is not supported.
    """
    encoder = encoder_directory(directory)
    if not (directory / MODULES).is_file():
        return EmbeddingRecipe(length=_tokenizer_length(encoder))
    # Some releases name the file after the kind of encoder.
    path = next(iter(sorted(encoder.glob("sentence_*_config.json"))), None)
    settings = {} if path is None else _json(path)
    length = settings.get("max_seq_length")
    if length is not None and (type(length) is not int or length <= 2):
        raise UsageError(f"{path}: max_seq_length is {brief(length)}; expected an integer above 2")
    of_vectors = _json(directory / _SETTINGS) if (directory / _SETTINGS).is_file() else {}
    prompts, prompt = _prompts(of_vectors, directory / _SETTINGS)
    recipe = EmbeddingRecipe(
        dims=_dims(of_vectors, directory / _SETTINGS),
        trained_dims=_trained_dims(of_vectors),
        similarity=str(of_vectors.get("similarity_fn_name") or "cosine"),
        length=length or _tokenizer_length(encoder),
        lowercase=bool(settings.get("do_lower_case")),
        prompts=prompts,
        prompt=prompt,
    )
    if encoder_only:
        return recipe
    pooling, steps, pools_prompt = "", [], True
    for kind, folder in _stages(directory)[1:]:
        if kind == "Pooling" and not pooling:
            path = folder / "config.json"
            pooling, pools_prompt = _pooling(path), _json(path).get("include_prompt") is not False
        elif kind == "Normalize" and pooling:
            _require_vectors(folder / "config.json")
            steps.append(NORMALIZE)
        elif kind == "Dense" and pooling:
            steps.append(("dense", _dense(folder)))
        elif kind != "Dropout":
            place = "" if pooling else " before Pooling"
            raise UsageError(
                f"{directory / MODULES}: {kind} is not supported{place}; the supported modules are "
                "an encoder, Pooling, Dense and Normalize, in this order; `bert-jax embed` with "
                "`pooling` mean uses the encoder's states without the rest"
            )
    if not pooling:
        raise UsageError(
            f"{directory / MODULES} has no Pooling: add the module; `bert-jax embed` also takes "
            "`pooling` instead"
        )
    return dataclasses.replace(
        recipe, pooling=pooling, steps=tuple(steps), pools_prompt=pools_prompt
    )


def _stages(directory: Path) -> list[tuple[str, Path]]:
    """Returns the kinds of the modules and their folders."""
    path = directory / MODULES
    listed = name_map.read_json_value(path, hint=_HINT)
    stages = []
    for stage in listed if isinstance(listed, list) else []:
        kind, place = (stage.get(n) if isinstance(stage, dict) else None for n in ("type", "path"))
        is_inside = isinstance(place, str) and Path(place).name == place and place != ".."
        if not isinstance(kind, str) or not is_inside:
            raise UsageError(f"{path}: {brief(stage)} is not a module with a type and a path")
        stages.append((kind.rpartition(".")[2], directory / str(place)))
    if not stages:
        raise UsageError(f"{path} lists no modules")
    return stages


def _json(path: Path) -> dict[str, Any]:
    return name_map.read_json(path, hint=_HINT)


def _prompts(settings: dict[str, Any], path: Path) -> tuple[dict[str, str], str]:
    """Returns the prompts by name, and the default prompt ("" for none)."""
    name, prompts = settings.get("default_prompt_name"), settings.get("prompts") or {}
    is_table = isinstance(prompts, dict) and all(isinstance(p, str) for p in prompts.values())
    if not is_table:
        raise UsageError(f"{path}: prompts is {brief(prompts)}; expected texts by name")
    if name is None:
        return prompts, ""
    if not isinstance(name, str) or name not in prompts:
        raise UsageError(f"{path}: default_prompt_name {brief(name)} is not among its prompts")
    return prompts, prompts[name]


def _dims(settings: dict[str, Any], path: Path) -> int | None:
    """Returns the columns that `encode` keeps of each vector; None for all."""
    dims = settings.get("truncate_dim")
    if dims is not None and (type(dims) is not int or dims < 1):
        raise UsageError(f"{path}: truncate_dim is {brief(dims)}; expected a positive integer")
    return dims


def _trained_dims(settings: dict[str, Any]) -> tuple[int, ...] | None:
    """Returns the numbers of columns that were trained; None if they are unknown, or if another
    program has written something else under this name.
    """
    dims = settings.get(_TRAINED)
    if isinstance(dims, list) and all(type(dim) is int and dim > 0 for dim in dims):
        return tuple(dims)
    return None


def _tokenizer_length(encoder: Path) -> int | None:
    """Returns the maximum number of tokens of the tokenizer; a file without a limit has 1e30."""
    path = encoder / "tokenizer_config.json"
    length = _json(path).get("model_max_length") if path.is_file() else None
    if not isinstance(length, int | float) or isinstance(length, bool):
        return None
    return int(length) if 2 < length < 1e9 else None


def _pooling(path: Path) -> str:
    settings = _json(path)
    modes = settings.get("pooling_mode")
    if modes is None:
        modes = [mode for name, mode in _MODES.items() if settings.get(name)] or ["mean"]
    mode = modes[0] if isinstance(modes, list) and len(modes) == 1 else modes
    if mode not in list(POOLINGS):
        raise UsageError(f"{path}: pooling_mode {brief(mode)} is not one of {', '.join(POOLINGS)}")
    return mode


def _require_vectors(path: Path) -> None:
    """Raises UsageError for a module that reads anything but the pooled vectors."""
    settings = _json(path) if path.is_file() else {}
    for name in ("module_input_name", "module_output_name"):
        if settings.get(name) not in (None, "sentence_embedding"):
            raise UsageError(f"{path}: {name} {brief(settings[name])} is not supported")


def _dense(folder: Path) -> Step:
    path = folder / "config.json"
    settings = _json(path)
    name = str(settings.get("activation_function", "torch.nn.modules.activation.Tanh"))
    activation = _ACTIVATIONS.get(name.rpartition(".")[2])
    if activation is None or not name.startswith("torch.nn."):
        raise UsageError(f"{path}: activation_function {brief(name)} is not supported")
    if settings.get("use_residual"):
        raise UsageError(f"{path}: use_residual is true, which is not supported")
    _require_vectors(path)
    tensors = safetensors_files.read(folder)
    weight, bias = tensors.get("linear.weight"), tensors.get("linear.bias")
    if weight is None or weight.ndim != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        raise UsageError(f"{folder} has no linear.weight, or its bias does not fit")
    added = np.float32(0) if bias is None else bias.astype(np.float32)

    def mapped(vectors_NW: np.ndarray) -> np.ndarray:
        if vectors_NW.shape[-1] != weight.shape[1]:
            expected = weight.shape[1]
            raise UsageError(f"{path}: expects vectors of {expected}, not {vectors_NW.shape[-1]}")
        return activation(vectors_NW @ weight.T.astype(np.float32) + added)

    return mapped
