"""Options of a verb: a section (config/fields.py) whose settings become options of argparse.

    @section
    class PrepareOptions(Verb):
        text_column: str = setting("text", "NAME: the field of a record with its text")

declares `--text-column NAME`. The help of the verb and its table in docs/reference/cli.md are made
from the declaration. `bool` is a flag, and `bool | None` has a --no- form; a tuple may be repeated;
a Literal has choices; a Path is local. `Annotated` adds a function that reads the value, another
name, or keywords of `add_argument`. The help omits the back-ticks of a sentence. It may start with
the name of the value, and end with what is done by default.
"""

import argparse
import contextlib
import dataclasses
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
    get_args,
    get_origin,
)

from bert_jax.config.fields import REQUIRED, OptionField, fields_of, section, setting
from bert_jax.errors import StorageFailed, UsageError

_T = TypeVar("_T")
_POSITIONAL = "positional"
# Defaults that the help does not show.
_NOTHING = (REQUIRED, None, False)
# An argument without dashes.
Positional = Annotated[_T, _POSITIONAL]


class Option(NamedTuple):
    """One option, for the help and the documentation."""

    name: str
    # None for an argument without dashes.
    flag: str | None
    # Markdown without the default, and the default; empty if the help does not show it.
    text: str
    default: str
    # The title of a group in the help, and its description.
    group: tuple[str, str | None]
    # Further keywords of `add_argument`.
    keywords: dict[str, Any]

    def help(self) -> str:
        """Returns the text for a terminal, in the form that argparse expects."""
        text = f"{self.text} (default: {self.default})" if self.default else self.text
        return text.replace("`", "").replace("%", "%%").strip()


def described(declared: type) -> list[Option]:
    """Returns the options of a class: arguments without dashes, required options, other options.

    An argument that may be repeated is the last one. Declared options precede inherited ones.
    """
    found: list[Option] = []
    for owner in (each for each in declared.__mro__ if dataclasses.is_dataclass(each)):
        group = owner.__dict__.get("GROUP", ("", None))
        fields = fields_of(owner)
        for name in owner.__annotations__:
            if name in fields and all(name != option.name for option in found):
                found.append(_option(name, fields[name], group))

    def order(option: Option) -> tuple[bool, bool]:
        if option.flag is None:
            return False, "nargs" in option.keywords
        return True, not option.keywords.get("required")

    return sorted(found, key=order)


def _option(name: str, field: OptionField, group: tuple[str, str | None]) -> Option:
    kind, may_be_none, text = field.annotation, field.is_optional, field.doc
    flag: str | None = f"--{name.replace('_', '-')}"
    keywords: dict[str, Any] = {}
    is_repeated = False
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
    has_default = field.default is not REQUIRED
    if is_repeated:
        keywords |= {"action": "append"} if flag else {"nargs": "*" if has_default else "+"}
    elif has_default and flag is None:
        keywords["nargs"] = "?"
    if kind is bool:
        keywords["action"] = argparse.BooleanOptionalAction if may_be_none else "store_true"
    elif get_origin(kind) is Literal:
        keywords["choices"] = get_args(kind)
    else:
        keywords.setdefault("type", {float: finite, Path: local}.get(kind, kind))
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
    return Option(name, flag, text, default, group, keywords)


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


def finite(text: str) -> float:
    """Returns a number. Raises argparse's error for `nan` and `inf`, which no option accepts."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    return value


def path_or_address(text: str) -> Path | str:
    """Returns a path, or an address such as gs://BUCKET/PATH: Path would drop a slash.

    Raises argparse's error for an empty text.
    """
    if not text.strip():
        raise argparse.ArgumentTypeError("nothing is named: is a variable of the shell not set?")
    return text if "://" in text else Path(text)


def local(text: str) -> Path:
    """Returns a path on this machine. Raises argparse's error for an address."""
    found = path_or_address(text)
    if isinstance(found, str):
        raise argparse.ArgumentTypeError(
            f"{text} is an address, but must be a local path; gcloud storage cp --recursive copies "
            "from one to the other"
        )
    return found


# A path that may be gs://BUCKET/PATH.
Address = Annotated[Path | str, path_or_address]


# --- options that several verbs have --------------------------------------------------------------


# Texts that several verbs share.
SET = (
    "FIELD=VALUE: change a field of the config, for example `model.hidden_size=256`; repeat for "
    "several. `--model.hidden_size 256` is the same"
)
CHECKPOINT = (
    "a workdir (its newest step), one step of it (DIR/checkpoints/STEP), a Hugging Face directory, "
    "or a TF1 checkpoint; a workdir may be gs://BUCKET/PATH"
)


@section
class Verb:
    """The options of every verb."""

    extend: tuple[Path, ...] = setting(
        (),
        "FILE: execute this Python file first: it registers custom objectives, optimizers, tasks "
        "and other extensions; repeat for several",
    )

    def fields_of(self, declared: type) -> dict[str, Any]:
        """Returns the options that have the names of fields of another dataclass."""
        names = {field.name for field in dataclasses.fields(declared)}
        return {name: value for name, value in vars(self).items() if name in names}


@section
class WithConfig(Verb):
    """A config, and changes of its fields."""

    config: Positional[str] = setting(
        REQUIRED,
        "CONFIG: a shipped config ('bert-jax config list' lists them), a .py file that defines "
        "config(), or the config.json of a run",
    )
    overrides: Annotated[tuple[str, ...], "--set"] = setting(
        (), SET + ". 'bert-jax config fields CONFIG' lists the fields"
    )


@section
class FromCheckpoint(Verb):
    """A trained model of any kind."""

    checkpoint: Positional[Address] = setting(REQUIRED, f"CHECKPOINT: {CHECKPOINT}")
    ignore_unexpected: tuple[str, ...] = setting(
        (),
        "PATTERN: leave out the extra tensors of a third-party model with these names, for example "
        "`'cls.extra.*'`; repeat for several",
    )


@section
class Processes:
    """How the processes of a run on several hosts find each other (runtime.distributed)."""

    GROUP: ClassVar = (
        "several processes",
        "One run on several hosts: start the same command on each. SIGTERM to any process makes "
        "all processes save and exit with 42.",
    )
    distributed: bool = setting(False, "find the other processes through Cloud TPU, GKE or Slurm")
    coordinator: str | None = setting(
        None, "HOST:PORT: the address at which process 0 listens, for any other cluster"
    )
    num_processes: int | None = setting(None, "N: number of processes, with --coordinator")
    process_id: int | None = setting(
        None, "I: rank of this process, from 0 to N - 1, with --coordinator"
    )


@section
class TrainingOptions(Processes):
    """The options that pre-training and fine-tuning share."""

    fit_memory: bool = setting(
        False,
        "choose settings that fit in the memory of the devices: "
        "`optimizer.gradient_accumulation_steps` and `evaluation.batch_size`; a resumed run keeps "
        "its choice",
    )
    tracker: tuple[str, ...] = setting((), "NAME: also send the metrics to this service: wandb")
    overrides: Annotated[tuple[str, ...], "--set"] = setting((), SET)

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
        raise UsageError(f"{name} is not a workdir: it has no {CONFIG}{nearby(directory)}")
    found: dict[str, Any] = {}
    with contextlib.suppress(UsageError):  # its checkpoints can be looked at all the same
        found = stored(directory)
    if "config" not in found and "model_type" in found:
        raise UsageError(f"{name} is not a workdir: its {CONFIG} is that of a model")
    return directory


def require_place_for(*, is_directory: bool = False, **paths: Path | str | None) -> None:
    """Raises UsageError or StorageFailed, before any work, if an output cannot be written.

    `paths` are the values of options by name: files, or with `is_directory` directories, which are
    created with their parents. Addresses are not checked.
    """
    for name, path in paths.items():
        if path is None or isinstance(path, str):
            continue
        option = f"`{name}` {path}"
        if not is_directory and path.is_dir():
            raise UsageError(f"{option} is a directory; name a file in it")
        above = path.parent
        if is_directory:
            above = next(each for each in (path, *path.absolute().parents) if each.exists())
        if above.is_file():
            raise UsageError(f"{option}: {above} is a file; choose another directory")
        if not above.is_dir():
            raise UsageError(f"{option}: no directory {above}; make it first")
        if not os.access(above, os.W_OK):
            raise StorageFailed(f"{option}: no permission to write to {above}")
