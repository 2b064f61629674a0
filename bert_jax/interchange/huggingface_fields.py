"""Fields of a Hugging Face `config.json`, checked."""

from pathlib import Path
from typing import Any

from bert_jax.errors import UsageError, brief


def architectures(theirs: dict[str, Any], path: Path) -> list[str]:
    """Returns the names of the classes that a config gives."""
    given = theirs.get("architectures") or []
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise UsageError(f"{path}: architectures is {brief(given)}; expected a list of names")
    return given


def labels(theirs: dict[str, Any], path: Path) -> tuple[str, ...]:
    """Returns the names of the classes; a regression has one at most."""
    # Their default, which their writer leaves out, is two.
    given = theirs.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    try:
        named = {int(number): label for number, label in given.items()}
    except (AttributeError, ValueError) as error:
        raise UsageError(f"{path}: id2label is no table of numbers and labels") from error
    if sorted(named) != list(range(len(named))) or not all(
        isinstance(label, str) for label in named.values()
    ):
        raise UsageError(f"{path}: id2label does not number its labels 0 to {len(named) - 1}")
    if theirs.get("problem_type") == "regression" and len(named) > 1:
        raise UsageError(f"{path}: a regression with {len(named)} outputs is not supported")
    return () if named == {0: "LABEL_0"} else tuple(named[number] for number in range(len(named)))
