"""Compares the config of a run with the config it is resumed with, option by option.

An option that is declared `free` may differ. Any other option needs permission (`allow_change`)
once the run has a checkpoint. The options that the saved arrays depend on cannot change then.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.config import TrainConfig, flatten, leaves
from bert_jax.config.model import TRAINING_FIELDS
from bert_jax.errors import ResumeRefused, UsageError, did_you_mean

# The name of a difference, the old value and the new value.
Change = tuple[str, Any, Any]
_ABSENT = "absent"
# The saved arrays depend on these, other than on the options of training the model.
_SAVED = ("model", "head", "objective", "optimizer.kind")
_TRAINING = [f"model.{name}" for name in TRAINING_FIELDS]


def is_saved(path: str) -> bool:
    """Returns whether the saved arrays depend on an option, so that it cannot change."""
    return is_within(path, _SAVED) and not is_within(path, _TRAINING)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Returns the items in which two flat mappings differ, sorted by name."""
    return [
        (name, old.get(name, _ABSENT), new.get(name, _ABSENT))
        for name in sorted(old.keys() | new.keys())
        if old.get(name, _ABSENT) != new.get(name, _ABSENT)
    ]


def allowed_changes(
    old: TrainConfig,
    new: TrainConfig,
    *,
    others: Sequence[Change] = (),
    allowed: Sequence[str] = (),
    name: str,
    has_allow_change: bool = True,
    has_steps: bool = True,
) -> list[Change]:
    """Returns the differences, other than free ones, between the config of a run and a new config.

    `others` are differences in the inputs: `corpus`, which may change with permission, and others
    that may not. `allowed` names options, or sections of them such as `phases` or `optimizer`.
    Options and `corpus` need no permission in a run without a checkpoint, `has_steps=False`. `name`
    is the workdir of the run, and `has_allow_change` is whether the caller has the option
    `allow_change`, for the message.
    Raises ResumeRefused for each difference without permission, and UsageError for a name in
    `allowed` that needs no permission.
    """
    fields = {path: field for config in (old, new) for path, _, field in leaves(config)}
    bound = [path for path, field in fields.items() if not field.free]
    known = [*bound, "corpus", *(path for path, _, _ in others)]
    for path in allowed:
        if not any(is_within(each, [path]) for each in known):
            free = any(is_within(each, [path]) for each in fields)
            lists = " 'bert-jax config fields CONFIG' lists the fields."
            hint = f": no such field.{did_you_mean(path, known, cutoff=0.5) or lists}"
            raise UsageError(f"`allow_change` {path}{' may change without it' if free else hint}")
    changes = [each for each in differences(flatten(old), flatten(new)) if each[0] in bound]
    changes += others
    fixed = [path for path, _, _ in changes if has_steps and is_saved(path)]
    fixed += [path for path, _, _ in others if path.partition(".")[0] != "corpus"]
    refused = [c for c in changes if c[0] in fixed or (has_steps and not is_within(c[0], allowed))]
    if not refused:
        return changes
    listed = "; ".join(f"{path}: {_short(a)} -> {_short(b)}" for path, a, b in refused)
    differs = f"workdir {name} holds a run that differs: {listed}."
    if not has_steps:
        raise ResumeRefused(
            f"{differs} The run has no checkpoint yet: delete {name}, or use another `workdir`."
        )
    remedy = "Use the same config and data to resume it, or another `workdir`"
    if fixed:
        remedy = f"{', '.join(fixed)} cannot change in a run. {remedy}"
    elif has_allow_change:
        paths = [path for path, _, _ in refused]
        if sum(path.startswith("phases.") for path in paths) > 2:
            paths = ["phases" if path.startswith("phases.") else path for path in paths]
        flags = " ".join(f"`allow_change` {path}" for path in dict.fromkeys(paths))
        remedy += f", or permit the change: {flags}"
    if has_allow_change and not any(path.startswith(("model.", "tokenizer")) for path in fixed):
        remedy += f"; `init_from` {name} starts a new run from its parameters"
    if "tokenizer" in fixed:
        remedy += f"; prepare with `tokenizer` {name}/tokenizer makes a corpus for its model"
    raise ResumeRefused(f"{differs} {remedy}.")


def is_within(path: str, sections: Sequence[str]) -> bool:
    """Returns whether a path is one of `sections`, or in one: `phases`, `phases.0`, `phases.*`."""
    names = (name.rstrip("*").rstrip(".") for name in sections)
    return any(f"{path}.".startswith(f"{name}.") for name in names)


def _short(value: Any) -> str:
    """Returns a value for a message, and only the first digits of a digest."""
    is_digest = isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value)
    return repr(value[:12] if is_digest else value)
