"""Finds the config of a command: a shipped name or a file, and changes of single options.

A config is a Python function (`configs/NAME.py`, `def config() -> TrainConfig`). Options can be
changed one by one (`model.hidden_size=256`, `phases.0.steps=100`). The config of a run is stored as
JSON, which is parsed and never executed.
"""

import contextlib
import contextvars
import json
import re
import sys
import traceback
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_jax import strict_json
from bert_jax.config import TrainConfig, from_dict, to_dict
from bert_jax.config.conversion import paths_of
from bert_jax.config_checks import complete, validate
from bert_jax.errors import UsageError, did_you_mean

# Whether a config is being loaded. Its file may load others.
_IS_LOADING = contextvars.ContextVar("_IS_LOADING", default=False)


def override(config: TrainConfig, assignments: Sequence[str]) -> TrainConfig:
    """Applies `section.option=value` assignments: those of a section or its kind before those of
    the options in it.

    Values are read as JSON where possible (`3`, `1e-4`, `true`), and as text otherwise. Numbers
    index tuples (`phases.0.steps=100`); a tuple of one item needs no number (`phases.steps=100`).
    `phases=[{...}]` replaces the tuple, `mesh={"fsdp": 4}` replaces the options that it names. A
    new kind keeps the options that it has in common with the old kind.
    """

    def depth(assignment: tuple[str, Any]) -> int:
        return assignment[0].removesuffix(".kind").count(".")

    for path, value in sorted(map(_parsed, assignments), key=depth):
        for name in reversed(path.split(".")):
            value = {name: value}
        try:
            config = from_dict(value, TrainConfig, base=config)
        except UsageError as error:
            raise UsageError(f"override {_with_path(str(error), config)}") from error
    return config


def _parsed(assignment: str) -> tuple[str, Any]:
    path, equals, text = assignment.partition("=")
    path = path.strip()
    if not equals:
        raise UsageError(
            f"override {path}: write it as FIELD=VALUE, for example model.hidden_size=256"
        )
    try:
        return path, strict_json.parse(text)
    except json.JSONDecodeError:
        return path, text
    except ValueError as error:
        raise UsageError(f"override {path}: {error}") from error


def _with_path(error: str, config: TrainConfig) -> str:
    """Returns an error about an unknown option with the paths of options of the same name."""
    path, unknown, _ = error.partition(": no such field.")
    found = [each for each in paths_of(config, path.rpartition(".")[2]) if each != path]
    paths = " or ".join(map(repr, found[:3]))
    return f"{path}{unknown} Did you mean {paths}?" if unknown and found else error


def config_directory() -> Path:
    """Returns the directory of the shipped configs: in the wheel, or at the root of a checkout."""
    package = Path(__file__).parent
    shipped = package / "configs"
    return shipped if shipped.is_dir() else package.parent / "configs"


def shipped_names() -> list[str]:
    return sorted(p.stem for p in config_directory().glob("*.py") if p.stem != "__init__")


def load_config(
    name_or_path: str, overrides: Sequence[str] = (), *, checked: bool = True
) -> TrainConfig:
    """Returns the checked config of a shipped name, a `.py` file, or a run's `config.json`.

    A `.py` config is code of the user and is executed. A `.json` config is only parsed. With
    `checked=False` its values may contradict each other. A config that a `.py` file loads is not
    completed (config_checks.complete): the file may still change it.
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
    shipped = shipped_names()
    if name_or_path in shipped:
        return _run(config_directory() / f"{name_or_path}.py", changes)
    plain = name_or_path.lower().replace("-", "_")
    hint = did_you_mean(plain, shipped)
    # Names of models have these characters, names of shipped configs do not.
    if plain not in shipped and ({"-", "/"} & {*name_or_path} or path.is_dir()):
        hint += f" To start from a model, name a config and add `init_from` {name_or_path}."
    if (path / "config.json").is_file():
        hint = f" The config of the run in {path} is {path}/config.json."
    raise UsageError(
        f"no config is named {name_or_path!r}.{hint} A config is a shipped name ('bert-jax config "
        "list' lists them) or a file that ends in .py or .json"
    )


def load_config_json(path: Path) -> TrainConfig:
    try:
        return config_in(strict_json.load(path), path)
    except OSError as error:
        raise UsageError(f"cannot read config {path}: {error.strerror}") from error


def config_in(values: Any, path: Path | str) -> TrainConfig:
    """Returns the config in the content of a config.json. Raises UsageError, which names `path`."""
    # The config.json of a run has the config in one field, next to versions and fingerprint.
    inner = values.get("config", values) if isinstance(values, dict) else values
    with _prefix(f"config {path}: "):
        return from_dict(inner, TrainConfig)


@contextlib.contextmanager
def _prefix(text: str) -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{text}{error}") from error


def _run(path: Path, overrides: Sequence[str]) -> TrainConfig:
    """Returns the changed config of a `.py` file, which may register entries (registry.py)."""
    function = execute(path).get("config")
    if not callable(function):
        raise UsageError(f"config {path} must define a function: def config() -> TrainConfig")
    with errors_of(path):
        config = function()
    if not isinstance(config, TrainConfig):
        raise UsageError(f"config {path}: config() returned {type(config).__name__}")
    with _prefix(f"config {path}: "):
        config = from_dict(to_dict(config), TrainConfig)
    return override(config, overrides)


def execute(path: Path) -> dict[str, Any]:
    """Executes a Python file of the user, and returns its definitions.

    Raises UsageError, with file and line, if it cannot be read or fails.
    """
    name = f"config_{path.stem}"
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read {path}: {reason}") from error
    # A separate module, so that its classes can be named and its functions found.
    module = types.ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    with errors_of(path):
        exec(compile(source, str(path), "exec"), module.__dict__)
    return module.__dict__


@contextlib.contextmanager
def errors_of(path: Path) -> Iterator[None]:
    """Raises an error in a user's file as a UsageError of one line, with the line number."""
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
        # The text of an ImportError ends with the path of the module.
        text = re.sub(r" \(/[^()]*\)$", "", f"{type(error).__name__}: {error}")
        raise UsageError(f"{where}: {text}") from error
