"""Maps parameters to tensor names of other libraries: a table of names, two matrix layouts, one
check.

A table gives the name and the layout of each parameter in another library. Reading ends with one
check that reports missing, extra and misshapen tensors; a directory is written atomically.
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
from bert_jax.files import local, writing
from bert_jax.model import bert
from bert_jax.model.bert import Params
from bert_jax.progress import note_once

Location = tuple[str, ...]

_TORCH = {
    **{"kernel": "weight", "embedding": "weight", "scale": "weight"},
    **{"bias": "bias", "norm_bias": "bias"},
}
# Tensors that are named per kind of problem.
_NAMED = 8


@dataclass(frozen=True)
class Entry:
    """One parameter in the layout of another library."""

    name: str
    # Whether our kernel `[inputs, outputs]` is stored as a matrix `[outputs, inputs]`.
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
    """A table of names: modules outside the layers, modules of a layer, and parameters."""

    fixed: Mapping[str, str]
    layer: Mapping[str, str]
    # A format string for the layer number.
    layer_prefix: str
    # The names of "kernel", "bias", "embedding", "scale" and "norm_bias"; by default torch's.
    leaf: Mapping[str, str] = field(default_factory=lambda: _TORCH)
    separator: str = "."
    # Kernels stored as `[outputs, inputs]`: all, as in torch's Linear, or only these modules.
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
        """Returns the named parts, including the encoder."""
        return {module.split(".")[0] for module in self.fixed}

    def names(self, model: ModelConfig, head: HeadConfig) -> dict[Location, str]:
        """Returns the path of every parameter -> its name in this table."""
        abstract = bert.abstract_params(model, head)
        return {path: self.entry(path).name for path, _ in leaves(abstract)}

    def parts(self, names: Iterable[str], *, classifier: str) -> set[str]:
        """Returns the parts with at least one tensor in `names`.

        Both kinds of classifier may have the same name: `classifier` selects the kind.
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
        """Returns the tensors of parameters or gradients, by name and in this layout."""
        tensors = {}
        for path, leaf in leaves(params):
            entry = self.entry(path)
            tensors[entry.name] = entry.to_theirs(np.asarray(leaf))
        return tensors


@dataclass(frozen=True)
class Foreign:
    """A third-party model: float32 NumPy parameters in our layout."""

    model: ModelConfig
    head: HeadConfig
    params: Params
    # Updates that the parameters have seen; 0 if unknown.
    step: int = 0
    # Tensors of incomplete heads that were omitted on request.
    missing: tuple[str, ...] = ()
    # The directory of the tokenizer.
    tokenizer: Path | None = None


def leaves(params: Any) -> Iterator[tuple[Location, Any]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        yield tuple(entry.key for entry in path), leaf


def collect(
    tensors: Mapping[str, np.ndarray],
    layout: NameMap,
    *,
    model: ModelConfig,
    head: HeadConfig,
    source: str,
    described_by: str,
    redundant: Iterable[str] = (),
    allow_missing_heads: bool = False,
    ignore_unexpected: Sequence[str] = (),
) -> Foreign:
    """Returns the parameters of `model` with the parts of `head`, from `tensors` in `layout`.

    With `allow_missing_heads`, a part with a missing or misshapen tensor is omitted, except the
    encoder. Extra tensors that match one of `ignore_unexpected` (shell patterns) are ignored with a
    note, those in `redundant` silently.

    Raises:
        UsageError: lists missing, extra and misshapen tensors, at most eight of each.
        NonFinite: tensors contain nan or infinity.
    """
    # Describing a model with a wrong number of layers could take very long.
    if model.num_hidden_layers > max(len(tensors), 1):
        raise UsageError(
            f"{source} does not hold the model its {described_by} describes: num_hidden_layers is "
            f"{model.num_hidden_layers}, but there are only {len(tensors)} tensors"
        )
    params: Params = {}
    spoilt: list[str] = []
    # Part -> the expected tensor -> its problem.
    wrong: dict[str, dict[str, str]] = {}
    surplus = set(tensors) - set(redundant)
    for path, leaf in leaves(bert.abstract_params(model, head)):
        entry = layout.entry(path)
        expected, tensor = entry.shape(leaf.shape), tensors.get(entry.name)
        wanted = f"{entry.name} {list(expected)}"
        surplus.discard(entry.name)
        if tensor is None:
            problem = f"missing {wanted}"
        elif tensor.shape != expected:
            problem = f"{entry.name} is {list(tensor.shape)}, expected {list(expected)}"
        elif not _is_real(tensor.dtype):
            problem = f"{entry.name} is of type {tensor.dtype}, expected floating point"
        else:
            insert(params, path, entry.to_ours(tensor))
            spoilt += [] if np.isfinite(tensor).all() else [entry.name]
            continue
        wrong.setdefault(path[0], {})[wanted] = problem
    left_out: tuple[str, ...] = ()
    if allow_missing_heads:
        optional = wrong.keys() - {"encoder"}
        # These parts depend on the pooler's output.
        optional |= {"nsp", "sequence_classifier"} if "pooler" in optional else set()
        left_out = tuple(name for part in sorted(optional) for name in wrong.pop(part, {}))
        head = dataclasses.replace(head, parts=tuple(p for p in head.parts if p not in optional))
        params = {part: tree for part, tree in params.items() if part not in optional}
    ignored = {name for name in surplus if any(fnmatchcase(name, p) for p in ignore_unexpected)}
    if ignored:
        note_once(f"{source}: ignoring {len(ignored)} tensors: {', '.join(sorted(ignored))}")
    unexpected = sorted(surplus - ignored)
    if wrong or unexpected:
        remedy = ""
        if not unexpected and "encoder" not in wrong:
            remedy = ". `allow_missing_heads` reads the rest without them"
        if not wrong:
            remedy = (
                f". `ignore_unexpected` '{_pattern_of(unexpected)}' reads the rest without them"
            )
        problems = [problem for part in wrong.values() for problem in part.values()]
        listed = [*_first(problems), *_first([f"unexpected {name}" for name in unexpected])]
        raise UsageError(
            f"{source} does not hold the model its {described_by} describes: "
            f"{'; '.join(listed)}{remedy}"
        )
    if spoilt:
        raise NonFinite(
            f"{source} has numbers that are not finite, in {len(spoilt)} tensors: "
            f"{'; '.join(_first(spoilt))}. Training had diverged, or the tensor type was too "
            "narrow: use an earlier checkpoint, or a float32 one"
        )
    return Foreign(model, head, params, missing=left_out)


def _pattern_of(names: Sequence[str]) -> str:
    """Returns a pattern that matches all names, or the single name."""
    alike = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return names[0] if len(names) == 1 else "".join(letters[0] for letters in alike) + "*"


def _first(problems: list[str]) -> list[str]:
    """Returns the first problems and the number of others: one wrong size causes hundreds."""
    more = len(problems) - _NAMED
    return problems[:_NAMED] + ([f"and {more} more"] if more > 0 else [])


def _is_real(dtype: np.dtype) -> bool:
    # NumPy does not know the kind of bfloat16 (ml_dtypes).
    return dtype.kind == "f" or dtype.name == "bfloat16"


def insert(tree: dict, path: Location, value: np.ndarray) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value


def read_json_value(path: Path, *, hint: str) -> Any:
    """Returns the JSON value in a file, or raises UsageError with the OS error and `hint`."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; {hint}") from error
    return strict_json.parse_file(path, text)


def read_json(path: Path, *, hint: str) -> dict[str, Any]:
    """Returns the fields of a config file; raises UsageError as `read_json_value` does."""
    values = read_json_value(path, hint=hint)
    if not isinstance(values, dict):
        raise UsageError(f"{path} is not a config: expected a JSON object")
    return values


@contextlib.contextmanager
def new_directory(directory: Path) -> Iterator[Path]:
    """Yields a directory that becomes `directory` when the block ends without an error.

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
