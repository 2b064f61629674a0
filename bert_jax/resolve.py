"""Which config a command line means: a shipped name, a file, and fields changed with --set.

A config is a Python function (`configs/NAME.py`, `def config() -> TrainConfig`), can be changed
field by field (`--set model.hidden_size=256`, `--set phases.0.steps=100`), and is stored with a run
as JSON, which is only ever parsed. `bert-jax show CONFIG` prints what comes of it.
"""

import json
from pathlib import Path
from typing import Any

from bert_jax import strict_json
from bert_jax.config import TrainConfig, from_dict, nearest, to_dict, validate
from bert_jax.errors import UsageError, brief


def override(config: TrainConfig, assignments: list[str]) -> TrainConfig:
    """Applies `section.field=value` assignments in order.

    Values are read as JSON where that succeeds (`3`, `1e-4`, `true`), else taken as text. Indices
    reach into tuples (`phases.0.steps=100`); `phases=[{...}]` replaces the whole tuple.
    """
    values = to_dict(config)
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise UsageError(f"--set {assignment}: write it as section.field=value")
        try:
            value = strict_json.parse(text)
        except json.JSONDecodeError:
            value = text
        except ValueError as error:
            raise UsageError(f"--set {path.strip()}: {error}") from error
        _assign(values, path.strip(), value)
    return from_dict(values)


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
                raise UsageError(f"--set {path}: {'.'.join(seen)} has {listed}, not {brief(name)}")
            key = indices[name]
        elif not isinstance(here, dict):
            raise UsageError(f"--set {path}: {'.'.join(seen)} is a value, not a section")
        elif key not in here:
            raise UsageError(f"--set {path}: no field {brief(key)}.{nearest(key, here)}")
        seen.append(str(key))
        if len(seen) <= len(parents):
            here = here[key]
        else:
            here[key] = value


def config_directory() -> Path:
    """Where the shipped configs lie: inside the wheel, or at the root of a checkout."""
    package = Path(__file__).parent
    shipped = package / "configs"
    return shipped if shipped.is_dir() else package.parent / "configs"


def shipped_names() -> list[str]:
    return sorted(p.stem for p in config_directory().glob("*.py") if p.stem != "__init__")


def load(name_or_path: str, overrides: list[str] | None = None) -> TrainConfig:
    """The checked config behind a shipped name, a `.py` file, or a run's `config.json`.

    A `.py` config is code and is executed: it is the user's own, named on the command line.
    A `.json` one is only ever parsed.
    """
    path = Path(name_or_path)
    if path.suffix == ".json":
        config = load_json(path)
    elif path.suffix == ".py":
        config = _execute(path)
    elif name_or_path in shipped_names():
        config = _execute(config_directory() / f"{name_or_path}.py")
    else:
        raise UsageError(
            f"config {name_or_path!r} is neither a file ending in .py or .json nor a shipped "
            f"config ({', '.join(shipped_names())})"
        )
    return validate(override(config, overrides or []))


def load_json(path: Path) -> TrainConfig:
    try:
        values = strict_json.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read config {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"config {path} is not JSON: {error}") from error
    # A run's config.json holds the config in a field of its own, beside versions and fingerprint.
    try:
        return from_dict(values.get("config", values) if isinstance(values, dict) else values)
    except UsageError as error:
        raise UsageError(f"config {path}: {error}") from error


def _execute(path: Path) -> TrainConfig:
    namespace: dict[str, Any] = {"__name__": f"config_{path.stem}", "__file__": str(path)}
    try:
        source = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read config {path}: {error.strerror}") from error
    exec(compile(source, str(path), "exec"), namespace)
    if not callable(namespace.get("config")):
        raise UsageError(f"config {path} must define a function: def config() -> TrainConfig")
    config = namespace["config"]()
    if not isinstance(config, TrainConfig):
        raise UsageError(f"config {path}: config() returned {type(config).__name__}")
    return config


def place(text: str) -> Path | str:
    """A path; or an address such as gs://BUCKET/PATH, in which Path would drop a slash."""
    return text if "://" in text else Path(text)
