"""Keys of `config.json` about rotary positions and local layers that several families share."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax.config import ModelConfig
from bert_jax.errors import UsageError, brief
from bert_jax.interchange.family import Item
from bert_jax.model.layer_spec import layer_specs

FULL, SLIDING = "full_attention", "sliding_attention"


def theta_of(table: Any, name: str, path: Path) -> float | None:
    """Returns the theta of a table of rotary positions; None if it has none.

    Raises UsageError for other kinds of rotation, named by `rope_type`, or `type` in old files
    (transformers modeling_rope_utils.py, `standardize_rope_params`).
    """
    is_table = isinstance(table, dict)
    if not is_table or table.get("rope_type", table.get("type", "default")) != "default":
        raise UsageError(f"{path}: {name} is {brief(table)}; only rope_type default is supported")
    if table.get("rope_theta") is None:
        return None
    return Item("rope_theta", 1.0).read("rope_theta", table, path)


def thetas_of(theirs: Mapping[str, Any], path: Path) -> dict[str, float]:
    """Returns the thetas in `rope_parameters` for each kind of layer."""
    tables = theirs.get("rope_parameters") or {}
    if not isinstance(tables, dict):
        raise UsageError(f"{path}: rope_parameters is {brief(tables)}; expected a table per kind")
    found = {
        kind: theta_of(tables[kind] or {}, f"rope_parameters.{kind}", path)
        for kind in (FULL, SLIDING)
        if kind in tables
    }
    return {kind: theta for kind, theta in found.items() if theta is not None}


def agreed(given: Mapping[str, Any], path: Path) -> Any:
    """Returns the value that all keys agree on; a key of None is absent.

    Raises UsageError if they differ, because each version of transformers reads one of them.
    """
    found = {name: value for name, value in given.items() if value is not None}
    first = next(iter(found), "")
    for name, value in found.items():
        if value != found[first]:
            raise UsageError(
                f"{path}: {name} gives {brief(value)}, but {first} gives {brief(found[first])}; "
                "remove the wrong one"
            )
    return found.get(first)


def written(model: ModelConfig) -> dict[str, Any]:
    """Returns `layer_types` and `rope_parameters` of a model."""
    thetas = {FULL: model.rope_theta, SLIDING: model.local_rope_theta or model.rope_theta}
    return {
        "layer_types": [FULL if s.window is None else SLIDING for s in layer_specs(model)],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()
        },
    }


def kinds_of(kinds: Any, layers: int, path: Path) -> list[str]:
    """Returns `layer_types`; raises UsageError unless it has one of the two kinds per layer."""
    is_listed = isinstance(kinds, list) and len(kinds) == layers
    if not is_listed or not all(kind in (FULL, SLIDING) for kind in kinds):
        raise UsageError(
            f"{path}: layer_types is {brief(kinds)}; expected {FULL} or {SLIDING} for each layer"
        )
    return kinds


def pattern(kinds: Sequence[str], path: Path, *, usual: int = 1) -> tuple[int, int]:
    """Returns n and f if layers f, f + n, f + 2n, ... are global; 0 and 0 if no layer is.

    `usual` is the n of a single global layer, if the number of layers permits it. Raises UsageError
    for other patterns.
    """
    found = [number for number, kind in enumerate(kinds) if kind == FULL]
    if not found or len(found) == len(kinds):
        return min(len(found), 1), 0
    for every in range(1, len(kinds) + 1):
        n = usual if every == 1 and len(found) == 1 else every
        if found == [*range(found[0], len(kinds), n)]:
            return n, found[0]
    raise UsageError(
        f"{path}: layer_types is {brief(list(kinds))}; the supported patterns have {FULL} in "
        "layers f, f + n, f + 2n and so on"
    )
