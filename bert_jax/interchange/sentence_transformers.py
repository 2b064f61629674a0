"""Directories of sentence-transformers: how the hidden states of a text become its vector.

`modules.json` lists the stages: the encoder, its pooling, and what follows it. They are read as
data: a stage is looked up by its name, and nothing that a file names is imported. A directory
without that file is just an encoder, whose tokens are averaged, as `SentenceTransformer` does
(sentence-transformers 6.2, sentence_transformer/model.py, `_load_default_modules`).

Dims: N texts, W width of a vector.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.errors import UsageError, brief
from bert_jax.interchange import name_map, safetensors_files

MODULES = "modules.json"
_FOLDER = "1_Pooling"
_SETTINGS = "config_sentence_transformers.json"
# One for each kind of encoder that it once knew (base/modules/transformer.py, `load_config`).
_ENCODER_CONFIGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_ENCODERS = ("Transformer", "BERT", "RoBERTa", "CamemBERT", "XLMRoBERTa")
# The ways to pool that it knows, in the order in which several are joined, and the fields by which
# a `1_Pooling/config.json` chose them before version 6.
_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
POOLINGS = tuple(_MODES.values())
_HINT = "is this a directory of sentence-transformers?"

Step = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class EmbeddingRecipe:
    """The way from a text to its vector. By default: the mean of all tokens that there is room for.

    `length` is the most tokens of a text, None where nothing says; `steps` are made one after the
    other of the pooled vectors `[N, W]`, each with its name in messages.
    """

    length: int | None = None
    lowercase: bool = False
    # What stands before every text.
    prompt: str = ""
    pooling: tuple[str, ...] = ("mean",)
    steps: tuple[tuple[str, Step], ...] = ()

    def described(self) -> str:
        """Returns the recipe in words."""
        parts = [f"at most {self.length} tokens"] if self.length else []
        parts += ["lower case"] * self.lowercase + [f"after {self.prompt!r}"] * bool(self.prompt)
        parts += [f"pooling {' + '.join(self.pooling)}", *(name for name, _ in self.steps)]
        return ", ".join(parts)


def normalized(vectors_NW: np.ndarray) -> np.ndarray:
    """Returns vectors of length 1; one of zeros stays (torch.nn.functional.normalize)."""
    lengths = np.linalg.norm(vectors_NW, axis=-1, keepdims=True)
    return vectors_NW / np.maximum(lengths, 1e-12)


NORMALIZE = ("normalized", normalized)


def write(directory: Path, recipe: EmbeddingRecipe, *, width: int) -> None:
    """Adds to a directory of an encoder the files that make it an embedder of vectors of `width`.

    Types and fields are the older ones: sentence-transformers 5.7 and 6.2 read them as their own
    (modules/pooling.py, `_convert_legacy_pooling_kwargs`), earlier releases and
    text-embeddings-inference know no others (router/src/lib.rs, `PoolConfig` and `STConfig`).
    `pooling_mode` is beside them; `embedding_dimension` is not, which the earlier ones refuse.
    """
    stages = [("Transformer", ""), ("Pooling", _FOLDER)]
    if NORMALIZE in recipe.steps:
        stages.append(("Normalize", "2_Normalize"))  # it has no settings, and needs no folder
    modes = {field: mode in recipe.pooling for field, mode in _MODES.items()}
    files = {
        MODULES: [
            {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for n, (kind, path) in enumerate(stages)
        ],
        f"{_FOLDER}/config.json": {
            "word_embedding_dimension": width,
            **modes,
            "include_prompt": True,
            "pooling_mode": recipe.pooling[0],
        },
        # The tokenizer changes case where its model wants that.
        _ENCODER_CONFIGS[0]: {"max_seq_length": recipe.length, "do_lower_case": False},
        _SETTINGS: {"prompts": {}, "similarity_fn_name": "cosine"},
    }
    (directory / _FOLDER).mkdir()
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def encoder_directory(directory: Path) -> Path:
    """Returns the folder that holds the encoder: of an old layout one inside the directory."""
    if not (directory / MODULES).is_file():
        return directory
    kind, folder = _stages(directory)[0]
    if kind not in _ENCODERS:
        raise UsageError(f"{directory / MODULES}: begins with {kind}, and only encoders are read")
    return folder


def read(directory: Path, *, encoder_only: bool = False) -> EmbeddingRecipe:
    """Returns the recipe of a directory; with `encoder_only`, the part of it before the pooling.

    Raises UsageError that names the file and the stage that is not supported.
    """
    encoder = encoder_directory(directory)
    if not (directory / MODULES).is_file():
        return EmbeddingRecipe(length=_tokenizer_length(encoder))
    settings = next(
        (_json(encoder / name) for name in _ENCODER_CONFIGS if (encoder / name).is_file()), {}
    )
    length = settings.get("max_seq_length")
    is_number = isinstance(length, int) and not isinstance(length, bool)
    if length is not None and not (is_number and length > 2):
        raise UsageError(
            f"{encoder}: max_seq_length is {brief(length)}; expected a number of tokens above 2"
        )
    before = EmbeddingRecipe(
        length=length or _tokenizer_length(encoder),
        lowercase=bool(settings.get("do_lower_case")),
        prompt=_prompt(directory),
    )
    if encoder_only:
        return before
    pooling: tuple[str, ...] = ()
    steps: list[tuple[str, Step]] = []
    for kind, folder in _stages(directory)[1:]:
        if kind == "Pooling" and not pooling:
            pooling = _pooling(folder / "config.json", before.prompt)
        elif kind == "Normalize" and pooling:
            _require_vectors(folder / "config.json")
            steps.append(NORMALIZE)
        elif kind == "Dense" and pooling:
            steps.append(("dense", _dense(folder)))
        elif kind != "Dropout":
            place = "" if pooling else " before Pooling"
            raise UsageError(
                f"{directory / MODULES}: {kind} is not supported{place}; "
                "only an encoder, Pooling, Dense and Normalize are, in this order: `pooling` mean "
                "takes the encoder's states without the rest"
            )
    if not pooling:
        raise UsageError(f"{directory / MODULES} has no Pooling; name one with `pooling`")
    return dataclasses.replace(before, pooling=pooling, steps=tuple(steps))


def _require_vectors(path: Path) -> None:
    """Raises UsageError for a stage that works on anything but the pooled vectors."""
    settings = _json(path) if path.is_file() else {}
    for field in ("module_input_name", "module_output_name"):
        if settings.get(field) not in (None, "sentence_embedding"):
            raise UsageError(f"{path}: {field} {brief(settings[field])} is not supported")


def _stages(directory: Path) -> list[tuple[str, Path]]:
    """Returns the kinds of the stages and their folders."""
    path = directory / MODULES
    listed = name_map.read_json_value(path, hint=_HINT)
    stages = []
    for stage in listed if isinstance(listed, list) else []:
        kind, place = (stage.get(n) if isinstance(stage, dict) else None for n in ("type", "path"))
        is_inside = isinstance(place, str) and Path(place).name == place and place != ".."
        if not isinstance(kind, str) or not is_inside:
            raise UsageError(f"{path}: {brief(stage)} is no stage with a type and a folder's name")
        stages.append((kind.rpartition(".")[2], directory / str(place)))
    if not stages:
        raise UsageError(f"{path} lists no stages")
    return stages


def _json(path: Path) -> dict[str, Any]:
    return name_map.read_json(path, hint=_HINT)


def _prompt(directory: Path) -> str:
    path = directory / _SETTINGS
    settings = _json(path) if path.is_file() else {}
    name, prompts = settings.get("default_prompt_name"), settings.get("prompts") or {}
    if name is None:
        return ""
    is_name = isinstance(prompts, dict) and isinstance(name, str)
    prompt = prompts.get(name) if is_name else None
    if not isinstance(prompt, str):
        raise UsageError(f"{path}: default_prompt_name {brief(name)} is none of its prompts")
    return prompt


def _tokenizer_length(encoder: Path) -> int | None:
    """Returns how many tokens the tokenizer lets through; a limit that is none is 1e30 there."""
    path = encoder / "tokenizer_config.json"
    length = _json(path).get("model_max_length") if path.is_file() else None
    if not isinstance(length, int | float) or isinstance(length, bool):
        return None
    return int(length) if 2 < length < 1e9 else None


def _pooling(path: Path, prompt: str) -> tuple[str, ...]:
    settings = _json(path)
    modes = settings.get("pooling_mode")
    if modes is None:
        modes = [mode for field, mode in _MODES.items() if settings.get(field)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or not modes or not all(mode in POOLINGS for mode in modes):
        raise UsageError(f"{path}: pooling_mode {brief(modes)} is not one of {', '.join(POOLINGS)}")
    if prompt and settings.get("include_prompt") is False:
        raise UsageError(f"{path}: include_prompt is false, which is not supported")
    return tuple(modes)


# By the last part of torch's name for it.
_ACTIVATIONS: Mapping[str, Step] = {
    "Identity": lambda x: x,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, 0),
    "Sigmoid": lambda x: _special("expit", x),
    "SiLU": lambda x: x * _special("expit", x),
    "GELU": lambda x: x * 0.5 * (1 + _special("erf", x / math.sqrt(2))),
}


def _special(name: str, x: np.ndarray) -> np.ndarray:
    """Returns a function of SciPy's, whose import takes a quarter of a second, of each element."""
    from scipy import special

    return getattr(special, name)(x)


def _dense(folder: Path) -> Step:
    path = folder / "config.json"
    settings = _json(path)
    name = str(settings.get("activation_function", "torch.nn.modules.activation.Tanh"))
    activation = _ACTIVATIONS.get(name.rpartition(".")[2])
    if activation is None or not name.startswith("torch.nn."):
        raise UsageError(f"{path}: activation_function {brief(name)} is not supported")
    if settings.get("use_residual"):
        raise UsageError(f"{path}: use_residual is true, and a sum with the input is not supported")
    _require_vectors(path)
    tensors = safetensors_files.read(folder)
    weight, bias = tensors.get("linear.weight"), tensors.get("linear.bias")
    if weight is None or weight.ndim != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        raise UsageError(f"{folder} holds no linear.weight, or one that its bias does not fit")
    return functools.partial(_mapped, path, weight, bias, activation)


def _mapped(
    path: Path,
    weight: np.ndarray,
    bias: np.ndarray | None,
    activation: Step,
    vectors_NW: np.ndarray,
) -> np.ndarray:
    if vectors_NW.shape[-1] != weight.shape[1]:
        raise UsageError(f"{path}: takes vectors of {weight.shape[1]}, not {vectors_NW.shape[-1]}")
    found = vectors_NW @ weight.T.astype(np.float32)
    return activation(found if bias is None else found + bias.astype(np.float32))
