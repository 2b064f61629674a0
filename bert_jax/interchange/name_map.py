"""The common part of all foreign layouts: a table of names, two ways to lay a matrix out, a check.

A layout says what each of our parameters is called elsewhere and how it lies there. Reading goes
through one check that names missing, extra and misshapen tensors; writing gives a directory
that appears whole or not at all.
"""

import contextlib
import dataclasses
import itertools
import shutil
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from bert_jax import strict_json
from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.config.fields import fields_read_by, settings_of
from bert_jax.errors import UsageError
from bert_jax.model import bert
from bert_jax.model.bert import Params
from bert_jax.progress import note_once

Location = tuple[str, ...]

_CLASSIFIERS = ("sequence_classifier", "token_classifier", "span_classifier")

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
    # Of "kernel", "bias", "embedding", "scale" and "norm_bias".
    leaf: Mapping[str, str]
    separator: str
    # Kernels as `[outputs, inputs]`: all of them, or those of the modules named.
    transposed: bool | frozenset[str]

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


# The fields of a model that other systems' BERT has, by the same names; and those that none has:
# for those formats they must be as they are by default. A generator is no part of a BERT, and how
# a model is trained changes no output.
MODEL_FIELDS = tuple(n for n, f in settings_of(ModelConfig).items() if f and f.in_every_bert)
_OURS = tuple(
    name
    for name, each in settings_of(ModelConfig).items()
    if name not in (*MODEL_FIELDS, *fields_read_by("head.parts", ModelConfig))
    and each is not None
    and each.rule.compared == "equal"
)


def require_expressible(
    model: ModelConfig,
    head: HeadConfig,
    table: NameMap,
    *,
    positions: Sequence[str] = ("learned",),
    but_for: Iterable[str] = (),
    lacks: Iterable[str] = (),
    fields: Container[str] = (),
    fixed: Mapping[str, Any] = MappingProxyType({}),
    pooler_act: str = "tanh",
    poolings: Sequence[str] = ("cls",),
    transform: bool = False,
) -> None:
    """Raises UsageError for a model that is no BERT, or has parts without a name in `table`.

    `positions` are the kinds that the format knows, `fields` those beside the fields of every BERT,
    `fixed` those of which it knows one value, and `pooler_act`, `poolings` and `transform` are
    those of its task heads. Parts in `but_for` are left to the caller; those in `lacks` no class of
    the format has. All fields that are in the way are named, with the values that are not.
    """
    known = {name: (getattr(ModelConfig, name),) for name in _OURS if name not in fields}
    known |= {"position_embedding_type": tuple(positions)} if positions else {}
    if "encoder.embeddings.token_type" in table.fixed and not model.type_vocab_size:
        known["type_vocab_size"] = (ModelConfig.type_vocab_size,)
    known |= {name: (value,) for name, value in fixed.items()}
    unsaid = [name for name, values in known.items() if getattr(model, name) not in values]
    named = table.roots - set(lacks)
    unknown = [part for part in head.parts if part not in named and part not in but_for]
    problems, remedies = [], [f"set model.{n}={_written(known[n][0])}" for n in unsaid]
    if "type_vocab_size" in unsaid and not known["type_vocab_size"][0]:
        remedies.append("set data.rows=full_sentences")  # others have two segments
    otherwise = "exporting it would change the outputs"
    if unsaid:
        listed = ", ".join(f"model.{name} is {getattr(model, name)}" for name in unsaid)
        problems.append(f"{listed}, which this format does not support: {otherwise}")
    if unknown:
        problems.append(f"this format has no name for {', '.join(unknown)}")
        remedies += ["set objective=mlm"] * (set(unknown) <= {"pooler", "nsp"})
    if "pooler" in {*head.parts} - {*unknown} and head.pooler_act != pooler_act:
        problems.append(
            f"head.pooler_act is {head.pooler_act}, and this format has {pooler_act} there: "
            f"{otherwise}"
        )
        remedies.append(f"set head.pooler_act={pooler_act}")
    if "sequence_classifier" in head.parts and model.classifier_pooling not in poolings:
        problems.append(
            f"model.classifier_pooling is {model.classifier_pooling}, and the classifiers of this "
            f"format read {' or '.join(poolings)}: {otherwise}"
        )
        remedies.append(f"set model.classifier_pooling={poolings[0]}")
    begun = {"pooler", *_CLASSIFIERS} & {*head.parts} - {*unknown}
    if begun and head.transform != transform:
        problems.append(
            f"head.transform is {head.transform}, and this format has it {transform}: {otherwise}"
        )
        remedies.append(f"set head.transform={_written(transform)}")
    if problems and remedies:
        problems.append(f"to export a model, train it with {' '.join(remedies)}")
    if problems:
        raise UsageError("; ".join(problems))


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


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
    problems: Iterable[str] = (),
    allow_missing_heads: bool = False,
    ignore_unexpected: Sequence[str] = (),
) -> ImportedModel:
    """Returns the parameters of `model` with the parts of `head`, from `tensors` in `layout`.

    Raises UsageError that names the tensors that are missing, extra or misshapen (of many the
    first ones, and how many more), after `problems` found before. With `allow_missing_heads` a part
    that is not whole is left out instead; the encoder never is. Extra tensors whose names match one
    of `ignore_unexpected` (as shells match names of files) are left out with a note.
    """
    listed, params = list(problems), {}
    missing: dict[str, list[str]] = {}
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
        if tensor is None:
            missing.setdefault(path[0], []).append(f"{entry.name} {list(expected)}")
        elif tensor.shape != expected:
            listed.append(f"{entry.name} is {list(tensor.shape)}, expected {list(expected)}")
        elif not _is_real(tensor.dtype):
            listed.append(f"{entry.name} is of type {tensor.dtype}, expected floating point")
        else:
            insert(params, path, entry.to_ours(tensor))
    left_out: tuple[str, ...] = ()
    if allow_missing_heads:
        optional = missing.keys() - {"encoder"}
        # What stands on a part that is not there goes with it.
        optional |= {"nsp", "sequence_classifier"} if "pooler" in optional else set()
        left_out = tuple(name for part in optional for name in missing.pop(part, ()))
        head = dataclasses.replace(head, parts=tuple(p for p in head.parts if p not in optional))
        params = {part: tree for part, tree in params.items() if part not in optional}
    lost = [f"missing {name}" for names in missing.values() for name in names]
    ignored = {name for name in surplus if any(fnmatchcase(name, p) for p in ignore_unexpected)}
    if ignored:
        note_once(f"{source}: {len(ignored)} tensors are ignored: {', '.join(sorted(ignored))}")
    unexpected = [f"unexpected {name}" for name in sorted(surplus - ignored)]
    if listed or lost or unexpected:
        only_heads = lost and not listed and not unexpected and "encoder" not in missing
        remedy = ". `allow_missing_heads` reads the rest without them" if only_heads else ""
        if unexpected and not listed and not lost:
            pattern = _pattern_of(sorted(surplus - ignored))
            remedy = f". `ignore_unexpected` '{pattern}' reads the rest without them"
        raise UsageError(
            f"{source} does not hold the model its {described_by} describes: "
            + "; ".join(_first(listed) + _first(lost) + _first(unexpected))
            + remedy
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
        text = path.read_bytes()
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
        yield building
        if directory.exists():
            directory.rmdir()
        building.rename(directory)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def require_free(directory: Path) -> None:
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"`output` {directory} is not empty; choose another or remove it")
