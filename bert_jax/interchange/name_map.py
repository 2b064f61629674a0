"""The common part of all foreign layouts: a table of names, two ways to lay a matrix out, a check.

A layout says what each of our parameters is called elsewhere and how it lies there. Reading goes
through one check that names missing, extra and misshapen tensors; writing gives a directory
that appears whole or not at all.
"""

import contextlib
import dataclasses
import itertools
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax import strict_json
from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.errors import NonFinite, UsageError
from bert_jax.files import local, read_plain, writing
from bert_jax.model import bert
from bert_jax.model.bert import Params
from bert_jax.progress import note_once

Location = tuple[str, ...]

_TORCH = {
    **{"kernel": "weight", "embedding": "weight", "scale": "weight"},
    **{"bias": "bias", "norm_bias": "bias"},
}
# A state counts its steps in int32.
LAST_STEP = 2**31 - 1
# Of the tensors that do not fit in one way, so many are named: one wrong number makes hundreds.
_NAMED = 8


@dataclass(frozen=True)
class Entry:
    """One parameter in a foreign layout."""

    name: str
    # Where our kernel `[inputs, outputs]` is a matrix `[outputs, inputs]`.
    is_transposed: bool

    def shape(self, ours: tuple[int, ...]) -> tuple[int, ...]:
        return ours[::-1] if self.is_transposed else ours

    def to_theirs(self, ours: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(ours.T) if self.is_transposed else ours

    def to_ours(self, theirs: np.ndarray) -> np.ndarray:
        theirs = theirs.T if self.is_transposed else theirs
        return np.ascontiguousarray(theirs, dtype=np.float32)


@dataclass(frozen=True, kw_only=True)
class NameMap:
    """A name table. Modules outside the layers, modules of a layer, and what a leaf is called."""

    fixed: Mapping[str, str]
    layer: Mapping[str, str]
    # With one place for the layer's number.
    layer_prefix: str
    # Of "kernel", "bias", "embedding", "scale" and "norm_bias": as torch calls them.
    leaf: Mapping[str, str] = field(default_factory=lambda: _TORCH)
    separator: str = "."
    # Kernels as `[outputs, inputs]`: all of them, as torch's Linear keeps them, or those of the
    # modules named.
    transposed: bool | frozenset[str] = True

    def entry(self, path: Location) -> Entry:
        *parents, leaf = path
        module = ".".join(parents)
        if len(parents) == 3 and parents[1].startswith("layer_"):
            number = parents[1].removeprefix("layer_")
            prefix = self.layer_prefix.format(number) + self.layer[parents[2]]
        else:
            prefix = self.fixed[module]
        kind = "norm_bias" if leaf == "bias" and parents[-1].endswith("norm") else leaf
        last = self.leaf.get(f"{module}.{leaf}", self.leaf[kind])
        transposed = self.transposed
        return Entry(
            name=self.separator.join(part for part in (prefix, last) if part),
            is_transposed=leaf == "kernel"
            and (transposed if isinstance(transposed, bool) else module in transposed),
        )

    @property
    def roots(self) -> set[str]:
        """Returns the parts that have names, the encoder included."""
        return {module.split(".")[0] for module in self.fixed}

    def names(self, model: ModelConfig, head: HeadConfig) -> dict[Location, str]:
        """Returns our path of every parameter -> its name here."""
        abstract = bert.abstract_params(model, head)
        return {path: self.entry(path).name for path, _ in leaves(abstract)}

    def parts(self, names: Iterable[str], *, classifier: str) -> set[str]:
        """Returns the parts of which `names` holds at least one tensor.

        Both kinds of classifier may have one name here: `classifier` is the one it stands for.
        """
        every = ("pooler", "mlm", "nsp", classifier, "span_classifier", "discriminator")
        head = HeadConfig(parts=tuple(part for part in every if part in self.roots))
        there = set(names)
        widest = ModelConfig(num_hidden_layers=1, tie_word_embeddings=False)
        abstract = bert.abstract_params(widest, head)
        del abstract["encoder"]
        known = [path for path, _ in leaves(abstract) if ".".join(path[:-1]) in self.fixed]
        return {path[0] for path in known if self.entry(path).name in there}

    def to_tensors(self, params: Any) -> dict[str, np.ndarray]:
        """Returns their name -> tensor in their layout, of parameters, moments or gradients."""
        tensors = {}
        for path, leaf in leaves(params):
            entry = self.entry(path)
            tensors[entry.name] = entry.to_theirs(np.asarray(leaf))
        return tensors


@dataclass(frozen=True, kw_only=True)
class ImportedModel:
    """A model from elsewhere: float32 NumPy parameters in our layout and what comes with them."""

    model: ModelConfig
    head: HeadConfig
    params: Params
    # Adam's first and second moments, trees like `params`, where the source has them.
    moments: tuple[Params, Params] | None = None
    step: int = 0
    # Of heads that were left out, with permission.
    missing: tuple[str, ...] = ()


# The fields of a model that other systems' BERT has, by the same names.
MODEL_FIELDS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
    "layer_norm_eps",
)


def leaves(params: Any) -> Iterator[tuple[Location, Any]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        yield tuple(entry.key for entry in path), leaf


def collect(
    tensors: dict[str, np.ndarray],
    layout: NameMap,
    *,
    model: ModelConfig,
    head: HeadConfig,
    source: str,
    described_by: str,
    redundant: Iterable[str] = (),
    allow_missing_heads: bool = False,
    ignore_unexpected: Sequence[str] = (),
) -> ImportedModel:
    """Returns the parameters of `model` with the parts of `head`, from `tensors` in `layout`.

    Raises UsageError that names the tensors that are missing, extra or misshapen (at most eight of
    each kind, and how many more), and NonFinite for those that hold nan or infinity. With
    `allow_missing_heads`, a part that lacks a tensor or has one of another shape is left out; the
    encoder never is. Extra tensors with names that match one of `ignore_unexpected` (shell
    patterns) are left out with a note.
    """
    spoilt, params = [], {}
    missing: dict[str, list[str]] = {}
    misfits: dict[str, dict[str, str]] = {}
    surplus = set(tensors) - set(redundant)
    # Each layer of a description takes time to lay out, and a number is quickly written.
    if model.num_hidden_layers > max(len(tensors), 1):
        raise UsageError(
            f"{source} does not hold the model its {described_by} describes: num_hidden_layers is "
            f"{model.num_hidden_layers}, and there are {len(tensors)} tensors in all"
        )
    for path, leaf in leaves(bert.abstract_params(model, head)):
        entry = layout.entry(path)
        expected = entry.shape(leaf.shape)
        tensor = tensors.get(entry.name)
        surplus.discard(entry.name)
        wanted = f"{entry.name} {list(expected)}"
        if tensor is None:
            missing.setdefault(path[0], []).append(wanted)
        elif tensor.shape != expected:
            problem = f"{entry.name} is {list(tensor.shape)}, expected {list(expected)}"
            misfits.setdefault(path[0], {})[wanted] = problem
        elif not _is_real(tensor.dtype):
            problem = f"{entry.name} is of type {tensor.dtype}, expected floating point"
            misfits.setdefault(path[0], {})[wanted] = problem
        else:
            insert(params, path, entry.to_ours(tensor))
            spoilt += [] if np.isfinite(tensor).all() else [entry.name]
    left_out: tuple[str, ...] = ()
    if allow_missing_heads:
        optional = (missing.keys() | misfits.keys()) - {"encoder"}
        # These parts read the pooler's output.
        optional |= {"nsp", "sequence_classifier"} if "pooler" in optional else set()
        left_out = tuple(
            name
            for part in sorted(optional)
            for name in (*missing.pop(part, ()), *misfits.pop(part, ()))
        )
        head = dataclasses.replace(head, parts=tuple(p for p in head.parts if p not in optional))
        params = {part: tree for part, tree in params.items() if part not in optional}
    listed = [problem for part in misfits.values() for problem in part.values()]
    lost = [f"missing {name}" for names in missing.values() for name in names]
    ignored = {name for name in surplus if any(fnmatchcase(name, p) for p in ignore_unexpected)}
    if ignored:
        note_once(f"{source}: {len(ignored)} tensors are ignored: {', '.join(sorted(ignored))}")
    unexpected = [f"unexpected {name}" for name in sorted(surplus - ignored)]
    if listed or lost or unexpected:
        only_heads = not unexpected and "encoder" not in {**missing, **misfits}
        remedy = ". `allow_missing_heads` reads the rest without them" if only_heads else ""
        if unexpected and not listed and not lost:
            pattern = _pattern_of(sorted(surplus - ignored))
            remedy = f". `ignore_unexpected` '{pattern}' reads the rest without them"
        raise UsageError(
            f"{source} does not hold the model its {described_by} describes: "
            + "; ".join(_first(listed) + _first(lost) + _first(unexpected))
            + remedy
        )
    if spoilt:
        raise NonFinite(
            f"{source} holds numbers that are not finite, in {len(spoilt)} tensors: "
            f"{'; '.join(_first(spoilt))}. The training that saved them had diverged, or their "
            "type was too narrow for them: take an earlier checkpoint, or one in float32"
        )
    return ImportedModel(model=model, head=head, params=params, missing=left_out)


def _pattern_of(names: Sequence[str]) -> str:
    """Returns a pattern that matches all names, or the one there is."""
    alike = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return names[0] if len(names) == 1 else "".join(letters[0] for letters in alike) + "*"


def _first(problems: list[str]) -> list[str]:
    more = len(problems) - _NAMED
    return problems[:_NAMED] + ([f"and {more} more like it"] if more > 0 else [])


def _is_real(dtype: np.dtype) -> bool:
    # ml_dtypes' bfloat16 is of no kind that NumPy knows.
    return dtype.kind == "f" or dtype.name == "bfloat16"


def insert(tree: dict, path: Location, value: np.ndarray) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value


def read_json_value(path: Path, *, hint: str) -> Any:
    """Returns the value of a file, or a UsageError; `hint` follows what the system says."""
    try:
        text = read_plain(path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; {hint}") from error
    return strict_json.parse_file(path, text)


def read_json(path: Path, *, hint: str) -> dict[str, Any]:
    """Returns the fields of a config file, or a UsageError; `hint` follows what the system says."""
    values = read_json_value(path, hint=hint)
    if not isinstance(values, dict):
        raise UsageError(f"{path} is not a config: expected a JSON object")
    return values


@contextlib.contextmanager
def new_directory(directory: Path) -> Iterator[Path]:
    """Yields a place to write in that becomes `directory` at the end of the block, if it ends well.

    Raises UsageError if `directory` exists and is not empty.
    """
    require_free(directory)
    directory = directory.absolute()
    if directory == Path.cwd():
        raise UsageError("`output` is the current directory; name a new one, such as ./export")
    building = directory.with_name(f".{directory.name}.new")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    try:
        with writing(directory):
            yield building
        if directory.exists():
            directory.rmdir()
        building.rename(directory)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def require_free(directory: Path) -> None:
    directory = local(directory)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"`output` {directory} is not empty; choose another or remove it")
