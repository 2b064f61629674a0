"""Finds the config that a command line means: a shipped name, a file, and fields changed one by
one.

A config is a Python function (`configs/NAME.py`, `def config() -> TrainConfig`), can be changed
field by field (`model.hidden_size=256`, `phases.0.steps=100`), and is stored with a run
as JSON, which is only ever parsed. `bert-jax show CONFIG` prints the result.
"""

import contextlib
import contextvars
import dataclasses
import json
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_jax import config as configs
from bert_jax import strict_json
from bert_jax.config import (
    PhaseConfig,
    TrainConfig,
    entries,
    field_names,
    flatten,
    from_dict,
    to_dict,
)
from bert_jax.config.fields import numbered
from bert_jax.config_checks import complete, validate
from bert_jax.errors import UsageError, brief, did_you_mean
from bert_jax.files import read_plain

# Whether a config is being loaded, whose file may load others.
_IS_LOADING = contextvars.ContextVar("_IS_LOADING", default=False)


def override(config: TrainConfig, assignments: Sequence[str]) -> TrainConfig:
    """Applies `section.field=value` assignments in order.

    Values are read as JSON where that succeeds (`3`, `1e-4`, `true`), else taken as text. Indices
    reach into tuples (`phases.0.steps=100`); `phases=[{...}]` replaces the whole tuple, and
    `mesh={"fsdp": 4}` the fields that it names.
    """
    values = to_dict(config)
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise UsageError(f"override {assignment}: write it as section.field=value")
        try:
            value = strict_json.parse(text)
        except json.JSONDecodeError:
            value = text
        except ValueError as error:
            raise UsageError(f"override {path.strip()}: {error}") from error
        try:
            _assign(values, path.strip(), value)
        except _UnknownField as error:
            known, here = (*flatten(values), *configs.option_paths()), error.names
            if section := _changed_section(path.strip()):
                phase = ".".join(path.strip().split(".")[:2])
                known = [f"{phase}.{each}" for each in known if each.startswith(f"{section}.")]
                here = dict.fromkeys(p.removeprefix(f"{phase}.{section}.") for p in known)
            hint = field_names.suggestion(path.strip(), known, here)
            raise UsageError(f"override {path.strip()}: no field {error}.{hint}") from None
    return from_dict(values)


class _UnknownField(Exception):
    """A name that its section does not have."""

    def __init__(self, name: str, names: Iterable[str]):
        super().__init__(brief(name))
        self.names = list(names)


def _assign(values: Any, path: str, value: Any) -> None:
    *parents, last = path.split(".")
    here: Any = values
    seen: list[str] = []
    for name in [*parents, last]:
        key: Any = name
        if isinstance(here, list):
            indices = {str(index): index for index in range(len(here))}
            if name not in indices:
                listed = f"entries 0 to {len(here) - 1}" if here else "no entries"
                raise UsageError(
                    f"override {path}: {'.'.join(seen)} has {listed}, not {brief(name)}"
                )
            key = indices[name]
        elif not isinstance(here, dict):
            raise UsageError(f"override {path}: {'.'.join(seen)} is a value, not a section")
        elif key not in here and not _is_option(path):
            section = _changed_section(path)
            if not section or configs.setting_of(path) is None:
                raise _UnknownField(last if section else key, here)
        seen.append(str(key))
        if len(seen) <= len(parents):
            here = here.setdefault(key, {}) if isinstance(here, dict) else here[key]
            continue
        old = here.get(key) if isinstance(here, dict) else here[key]
        if isinstance(old, dict) and not isinstance(value, dict):
            close = field_names.meant(path, (f"{path}.{name}" for name in old))
            hint = field_names.suggestion(path, close) if close else ""
            raise UsageError(
                f"override {path}: expected a section of fields, got {brief(value)}.{hint}"
            )
        here[key] = _merged(old, value)


def _merged(old: Any, new: Any) -> Any:
    """Returns a section with the fields that another one names as that has them; `new` itself where
    not both are sections.
    """
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return old | {name: _merged(old.get(name), value) for name, value in new.items()}


def _is_option(path: str) -> bool:
    """Returns whether the last name of a path is an option of an entry; not yet of which one."""
    prefix, _, name = path.rpartition(".")
    section = configs.section_at(prefix)
    return section is not None and entries.owners(section, name)[0] is not None


def _changed_section(path: str) -> str:
    """Returns the section of which a phase changes a field: `model` of `phases.1.model.rope_theta`;
    nothing for another path.
    """
    _, phase, inner = numbered(path).partition("phases.N.")
    section, dot, _ = inner.partition(".")
    return section if phase and dot and section in PhaseConfig.sections else ""


def config_directory() -> Path:
    """Returns the directory of the shipped configs: inside the wheel, or at the root of a
    checkout.
    """
    package = Path(__file__).parent
    shipped = package / "configs"
    return shipped if shipped.is_dir() else package.parent / "configs"


def shipped_names() -> list[str]:
    return sorted(p.stem for p in config_directory().glob("*.py") if p.stem != "__init__")


def load_config(
    name_or_path: str, overrides: Sequence[str] = (), *, checked: bool = True
) -> TrainConfig:
    """Returns the checked config behind a shipped name, a `.py` file, or a run's `config.json`.

    A `.py` config is code and is executed: it is the user's own, named on the command line.
    A `.json` one is only ever parsed. With `checked=False` its values may not go together yet. What
    follows from other fields is there once no file of a config changes these any more: not yet in
    what such a file loads.
    """
    is_inner, token = _IS_LOADING.get(), _IS_LOADING.set(True)
    try:
        config = _load(name_or_path, overrides or [])
    finally:
        _IS_LOADING.reset(token)
    completed = complete(config)
    if checked:
        validate(completed)
    return config if is_inner else completed


def _load(name_or_path: str, changes: Sequence[str]) -> TrainConfig:
    path = Path(name_or_path)
    if path.suffix == ".json":
        return override(load_config_json(path), changes)
    if path.suffix == ".py":
        return _run(path, changes)
    if name_or_path in shipped_names():
        return _run(config_directory() / f"{name_or_path}.py", changes)
    shipped, plain = shipped_names(), name_or_path.lower().replace("-", "_")
    hint = did_you_mean(plain if plain in shipped else name_or_path, shipped)
    # Names of models have these characters, names of shipped configs do not.
    if plain not in shipped and ({"-", "/"} & {*name_or_path} or path.is_dir()):
        hint += f" To start from a model, name a config and add `init_from` {name_or_path}."
    if (path / "config.json").is_file():
        hint = f" The config of the run in {path} is {path}/config.json."
    raise UsageError(
        f"there is no config {name_or_path!r}.{hint} A config is a shipped name ('bert-jax show "
        "configs' lists them) or a file that ends in .py or .json"
    )


def load_config_json(path: Path) -> TrainConfig:
    try:
        text = read_plain(path)
    except OSError as error:
        raise UsageError(f"cannot read config {path}: {error.strerror}") from error
    return config_in(strict_json.parse_file(f"config {path}", text), path)


def config_in(values: Any, path: Path | str) -> TrainConfig:
    """Returns the config in the content of a config.json. Raises UsageError, which names `path`."""
    # The config.json of a run has the config in one field, next to versions and fingerprint.
    try:
        return from_dict(values.get("config", values) if isinstance(values, dict) else values)
    except UsageError as error:
        raise UsageError(f"config {path}: {error}") from error


def _run(path: Path, overrides: Sequence[str]) -> TrainConfig:
    """Returns the changed config of a `.py` file, which may also register entries (registry.py)."""
    namespace = execute(path)
    if not callable(namespace.get("config")):
        functions = [name for name, value in namespace.items() if callable(value)]
        raise UsageError(
            f"config {path} must define a function: def config() -> TrainConfig"
            + _close("config", functions)
        )
    return override(_returned(path, namespace["config"]), overrides)


def _returned(path: Path, function: Callable[[], Any]) -> TrainConfig:
    """Returns what the function of a `.py` config returns, every value of the type of its field."""
    with errors_of(path):
        config = function()
    if not isinstance(config, TrainConfig):
        raise UsageError(f"config {path}: config() returned {type(config).__name__}")
    try:
        return from_dict(to_dict(config))
    except UsageError as error:
        raise UsageError(f"config {path}: {error}") from error
    except TypeError as error:
        raise UsageError(
            f"config {path}: a field holds what no config can: {error}; is a call's () missing?"
        ) from error


def execute(path: Path) -> dict[str, Any]:
    """Executes a Python file of the user's, and returns what it defines.

    Raises UsageError, with file and line, if it cannot be read or fails.
    """
    name = f"config_{path.stem}"
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read {path}: {reason}") from error
    # A module of its own, so that its classes can be named and its functions found.
    module = types.ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    with errors_of(path):
        exec(compile(source, str(path), "exec"), module.__dict__)
    return module.__dict__


@contextlib.contextmanager
def errors_of(path: Path) -> Iterator[None]:
    """Turns what goes wrong in a user's file into one line that names the line."""
    try:
        yield
    except SyntaxError as error:
        raise UsageError(f"{path}, line {error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        lines = [
            f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)
        ]
        where = f"{path}, line {lines[-1]}" if lines else str(path)
        if isinstance(error, UsageError):
            raise UsageError(f"{where}: {error.args[0]}", *error.args[1:]) from error
        # An ImportError ends with the place of the module.
        text = re.sub(r" \(/[^()]*\)$", "", str(error))
        raise UsageError(
            f"{where}: {type(error).__name__}: {text}{_suggestion(error, path)}"
        ) from error


def _suggestion(error: BaseException, path: Path) -> str:
    """Returns what to do about an error of a file: the name that an unknown one resembles
    (`TrainConfig(max_step=...)`), or the folder that Python must know.
    """
    if isinstance(error, SystemExit):
        return "; a file that is executed here must not end the program"
    if isinstance(error, AttributeError) and error.name:
        return _close(error.name, dir(error.obj))
    if isinstance(error, NameError) and error.name:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        known = {} if trace is None else trace.tb_frame.f_globals | trace.tb_frame.f_locals
        return _close(error.name, known)
    if isinstance(error, ImportError):
        lost = re.search(r"cannot import name '(\w+)'", str(error))
        beside = path.resolve().with_name(error.name or path.name)
        is_there = beside.is_dir() or beside.with_suffix(".py").is_file()
        if isinstance(error, ModuleNotFoundError) and is_there:
            return f". It lies beside the file: set PYTHONPATH={beside.parent}"
        module = sys.modules.get(error.name or "")
        return _close(lost[1], dir(module)) if lost and module else ""
    found = re.search(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    section = getattr(configs, found[1], None) if found else None
    if found is None or not dataclasses.is_dataclass(section):
        return ""
    names = [field.name for field in dataclasses.fields(section)]
    return "." + field_names.suggestion(found[2], flatten(TrainConfig()), names)


def _close(name: str, names: Iterable[str]) -> str:
    hint = did_you_mean(name, names)
    return hint and f".{hint}"


def path_or_address(text: str) -> Path | str:
    """Returns a path; or an address such as gs://BUCKET/PATH, in which Path would drop a slash."""
    return text if "://" in text else Path(text)
