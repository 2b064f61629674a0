"""Options of a verb: each is a field of a class, with a sentence below it.

    @options
    class PrepareOptions(Verb):
        text_field: str = "text"
        \"\"\"NAME: the field of a record that holds its text ([fields](data.md#fields))\"\"\"

declares `--text-field NAME`. The verb's help and its table in docs/configuration.md are made of
that. A field without a default is required. `bool` is a flag, and `bool | None` has a --no- form
too; a tuple may be repeated; a Literal has choices. `Annotated` adds a function that reads the
value, another name, or keywords of `add_argument`. The sentence is Markdown, of which the help
leaves out back-ticks and links in parentheses. It may begin with the name of the value, and end
with what is done by default.
"""

import argparse
import ast
import contextlib
import dataclasses
import functools
import inspect
import itertools
import json
import math
import os
import re
import sys
import textwrap
import types
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from bert_jax.config_loader import path_or_address, shipped_names
from bert_jax.errors import StorageFailed, UsageError

_T = TypeVar("_T")
_POSITIONAL = "positional"
# Defaults that need no words.
_NOTHING = (dataclasses.MISSING, None, False)
# An argument without dashes.
Positional = Annotated[_T, _POSITIONAL]


@dataclass_transform(kw_only_default=True, frozen_default=True)
def options(cls: type[_T]) -> type[_T]:
    """Makes a class of options: a frozen dataclass."""
    return dataclasses.dataclass(frozen=True, kw_only=True)(cls)


class Option(NamedTuple):
    """One option, as the help and the documentation describe it."""

    name: str
    # None for an argument without dashes.
    flag: str | None
    # Markdown, without the default; that is empty where there is none to name.
    text: str
    default: str
    # The title of a group in the help, and the sentences below it.
    group: tuple[str, str | None]
    # Further keywords of `add_argument`.
    keywords: dict[str, Any]

    def help(self) -> str:
        """Returns the text for a terminal, in the form that argparse expects."""
        text = f"{self.text} (default: {self.default})" if self.default else self.text
        text = text.replace("{configs}", ", ".join(shipped_names()))
        text = re.sub(r" ?\(\[[^]]*\]\([^)]*\)\)", "", text)
        return (
            re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("`", "").replace("%", "%%").strip()
        )


def described(declared: type) -> list[Option]:
    """Returns the options of a class: what a command cannot do without first, and what a class
    declares before what it inherits.
    """
    kinds = get_type_hints(declared, include_extras=True)
    found = []
    for owner in (each for each in declared.__mro__ if dataclasses.is_dataclass(each)):
        for name, text in _sentences(owner).items():
            if all(name != option.name for option in found):
                field = declared.__dataclass_fields__[name]
                group = owner.__dict__.get("GROUP", ("", None))
                found.append(_option(field, kinds[name], text, group))
    return sorted(found, key=lambda o: (o.flag is not None, not o.keywords.get("required")))


def _option(field: Any, kind: Any, text: str, group: tuple[str, str | None]) -> Option:
    flag: str | None = f"--{field.name.replace('_', '-')}"
    keywords: dict[str, Any] = {}
    is_repeated = may_be_none = False
    while (origin := get_origin(kind)) in (Annotated, tuple, Union, types.UnionType):
        kind, *others = get_args(kind)
        if origin is Annotated:
            for extra in others:
                if isinstance(extra, str):
                    flag = None if extra == _POSITIONAL else extra
                else:
                    keywords |= extra if isinstance(extra, dict) else {"type": extra}
        is_repeated |= origin is tuple
        may_be_none |= type(None) in others
    has_default = field.default is not dataclasses.MISSING
    if is_repeated:
        keywords |= {"action": "append"} if flag else {"nargs": "*" if has_default else "+"}
    elif has_default and flag is None:
        keywords["nargs"] = "?"
    if kind is bool:
        keywords["action"] = argparse.BooleanOptionalAction if may_be_none else "store_true"
    elif get_origin(kind) is Literal:
        keywords["choices"] = get_args(kind)
    else:
        keywords.setdefault("type", finite if kind is float else kind)
        if keywords["type"] in (Path, local, path_or_address):
            keywords["type"] = functools.partial(_place, keywords["type"])
    if has_default:
        keywords["default"] = [] if is_repeated else field.default
    elif flag is not None:
        keywords["required"] = True
    if value := re.match(r"([A-Z][A-Z|:=]*): ", text):
        keywords["metavar"] = value[1]
        text = text.removeprefix(value[0])
    text, _, default = text.partition(" (default: ")
    default = default.removesuffix(")")
    if not default and not is_repeated and all(field.default is not each for each in _NOTHING):
        default = str(field.default)
    return Option(field.name, flag, text, default, group, keywords)


@functools.cache
def _sentences(declared: type) -> dict[str, str]:
    """Returns the sentences below the fields of a class, from its source."""
    found = {}
    for node in parsed(declared.__module__).body:
        if isinstance(node, ast.ClassDef) and node.name == declared.__name__:
            for field, below in itertools.pairwise(node.body):
                if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                    text = " ".join(ast.literal_eval(below.value).split())
                    found[ast.unparse(field.target)] = text
    return found


@functools.cache
def parsed(module: str) -> ast.Module:
    """Returns the syntax of an imported module."""
    return ast.parse(inspect.getsource(sys.modules[module]))


def add_options(parser: argparse.ArgumentParser, declared: type) -> None:
    """Adds the options of a class to a verb."""
    groups: dict[str, Any] = {"": parser}
    for option in described(declared):
        title, text = option.group
        if title not in groups:
            groups[title] = parser.add_argument_group(title, text and textwrap.fill(text, 76))
        names = {} if option.flag is None else {"dest": option.name}
        groups[title].add_argument(
            option.flag or option.name, help=option.help(), **names, **option.keywords
        )


def read(declared: type[_T], found: argparse.Namespace) -> _T:
    """Returns the options that were typed."""
    values = {field.name: getattr(found, field.name) for field in dataclasses.fields(declared)}  # type: ignore[arg-type]
    return declared(**{n: tuple(v) if isinstance(v, list) else v for n, v in values.items()})


# --- types of values ------------------------------------------------------------------------------


def _place(read: Any, text: str) -> Any:
    """Returns what a function reads of the text. Raises argparse's error where that is empty."""
    if not text.strip():
        raise argparse.ArgumentTypeError("nothing is named: is a variable of the shell not set?")
    return read(text)


def finite(text: str) -> float:
    """Returns a number. Raises argparse's error for `nan` and `inf`: no option means anything by
    them, and each comparison with `nan` is false.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is no finite number")
    return value


def local(text: str) -> Path:
    """Returns a path on this machine.

    Raises argparse's error for an address such as gs://BUCKET/PATH.
    """
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"{text} is an address, and this is written to a local directory; copy it there "
            "afterwards, with gcloud storage cp --recursive"
        )
    return Path(text)


# A path that may be gs://BUCKET/PATH; one on this machine.
Address = Annotated[Path | str, path_or_address]
Local = Annotated[Path, local]


# --- options that several verbs have --------------------------------------------------------------


@options
class Verb:
    """The options of every verb."""

    extend: tuple[Path, ...] = ()
    """FILE: execute this Python file first: it registers objectives, optimisers, tasks, ... of
    yours ([extend.md](extend.md)); repeat for several"""

    def fields_of(self, declared: type) -> dict[str, Any]:
        """Returns the options that have the names of fields of another dataclass."""
        names = {field.name for field in dataclasses.fields(declared)}
        return {name: value for name, value in vars(self).items() if name in names}


@options
class WithConfig(Verb):
    """A config, and changes of its fields."""

    config: Positional[str]
    """CONFIG: a [shipped config](configuration.md#shipped-configs) ({configs}), a .py file that
    defines config(), or a run's config.json"""
    overrides: Annotated[tuple[str, ...], "--set"] = ()
    """FIELD=VALUE: change a field, such as `model.hidden_size=256` or `phases.0.steps=100`; repeat
    for several. 'bert-jax show fields CONFIG' says what each is"""


@options
class FromCheckpoint(Verb):
    """A trained model of any kind."""

    checkpoint: Address
    """DIR: a workdir (its newest step), one step of it (DIR/checkpoints/STEP), a Hugging Face
    directory, or a TF1 checkpoint; a workdir may be gs://BUCKET/PATH"""
    ignore_unexpected: tuple[str, ...] = ()
    """PATTERN: for a model of another system: leave out the extra tensors of these names, such as
    `'cls.extra.*'`; repeat for several"""


@options
class Processes(Verb):
    """How the processes of a run over several hosts find each other."""

    GROUP: ClassVar = (
        "several processes",
        "One run over several hosts: start the same command on each. SIGTERM to any of them makes "
        "all of them save and exit with 42.",
    )
    distributed: bool = False
    """find the other processes through Cloud TPU, GKE or Slurm"""
    coordinator: str | None = None
    """HOST:PORT: on other machines: the address at which process 0 listens"""
    num_processes: int | None = None
    """N: on other machines: how many there are"""
    process_id: int | None = None
    """I: on other machines: which one this is, from 0 to N - 1"""

    def connection(self) -> dict[str, Any]:
        """Returns how the processes find each other, as `runtime.start.Start` takes it."""
        return {
            "detect": self.distributed,
            "coordinator": self.coordinator,
            "num_processes": self.num_processes,
            "process_id": self.process_id,
        }


@options
class TrainingOptions(Processes):
    """The options that pre-training and fine-tuning share."""

    # Its old name, --fit, still abbreviates it.
    fit_memory: bool = False
    """choose `optimizer.gradient_accumulation_steps` (microbatches) by the memory that is free,
    `compute.remat` and `compute.gather` where one row is still too much (on a CPU with
    `compute.layers=scan`), and `evaluation.batch_size`; a run that goes on keeps its own"""
    tracker: tuple[str, ...] = ()
    """NAME: also send the curves to [this service](configuration.md#trackers): wandb"""
    overrides: Annotated[tuple[str, ...], "--set"] = ()
    """FIELD=VALUE: change a field of the run's config; repeat for several"""

    def changes(self) -> list[str]:
        """Returns the changes of the config, as --set and --tracker ask for them."""
        chosen = [f"trackers={json.dumps(self.tracker)}"] if self.tracker else []
        return [*self.overrides, *chosen]


# --- checks of values -----------------------------------------------------------------------------


def standard_input(given: str | None) -> str | None:
    """Returns the input to read: standard input (`-`) if none is given and text is piped in."""
    return "-" if given is None and not sys.stdin.isatty() else given


def run_directory(name: Path | str) -> Path:
    """Returns the directory of a workdir, which may be in a bucket.

    Raises UsageError if it is none.
    """
    from bert_jax.workdir import location
    from bert_jax.workdir.run_directory import CONFIG, nearby, stored

    directory = location.opened(name).path
    if not (directory / CONFIG).is_file():
        raise UsageError(f"{name} is no workdir: it has no {CONFIG}{nearby(directory)}")
    found: dict[str, Any] = {}
    with contextlib.suppress(UsageError):  # its checkpoints can be looked at all the same
        found = stored(directory)
    if "config" not in found and "model_type" in found:
        raise UsageError(f"{name} is no workdir: its {CONFIG} is that of a model")
    return directory


def require_place_for(**paths: Path | None) -> None:
    """Raises UsageError or StorageFailed, before any work, if a file cannot be written.

    `paths` are those of the options, by their names.
    """
    for name, path in paths.items():
        if path is None:
            continue
        option = f"--{name.replace('_', '-')} {path}"
        if path.is_dir():
            raise UsageError(f"{option} is a directory; name a file in it")
        if not path.parent.is_dir():
            raise UsageError(f"{option}: there is no directory {path.parent}; make it first")
        _require_writable(option, path.parent)


def require_place_for_directory(**paths: Path | str | None) -> None:
    """Does for directories, which are made with all that they lie in, as `require_place_for`.

    An address is left to those who ask the bucket.
    """
    for name, path in paths.items():
        if path is None or isinstance(path, str):
            continue
        option = f"--{name.replace('_', '-')} {path}"
        above = next(each for each in (path, *path.absolute().parents) if each.exists())
        if not above.is_dir():
            which = "is a file" if above == path else f"cannot be made: {above} is a file"
            raise UsageError(f"{option} {which}; choose another directory")
        _require_writable(option, above)


def _require_writable(option: str, directory: Path) -> None:
    if not os.access(directory, os.W_OK):
        raise StorageFailed(f"{option}: nothing may be written to {directory}")
