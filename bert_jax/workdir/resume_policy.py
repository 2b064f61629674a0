"""Checks whether a workdir's run is the one that is asked for, field by field.

Each field of the config is free to change on resumption, or may change if the user says so
(`allow_change`), or defines the run.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax import config as configs
from bert_jax import config_loader, strict_json
from bert_jax.config import TrainConfig, field_names
from bert_jax.data.corpus.store import Corpus
from bert_jax.errors import ResumeRefused, UsageError

Change = tuple[str, Any, Any]
SOURCES = "corpora"


def classify(field: str) -> str:
    """Returns "free", "flag" or "refused" for a dotted field, as the field itself says.

    Another corpus with the same tokenizer is more text: "flag"; so is one of several. What is
    no field of the config defines the run.
    """
    if field.partition(".")[0] == "corpus":
        return "flag"
    described = configs.setting_of(field)
    return described.rule.on_resume if described else "refused"


def require(
    stored_path: Path,
    config: TrainConfig,
    *,
    others: Sequence[Change] = (),
    allowed: Sequence[str] = (),
    name: str,
    has_ways_on: bool = True,
) -> list[Change]:
    """Returns the allowed changes between the run that `stored_path` (config.json) describes and
    this one.

    `others` are changes beside those of the config. `allowed` names fields of the middle kind, or
    sections of them: `phases`, `phases.0`, `optimizer`. `has_ways_on` says whether the caller has
    `allow_change` and `init_from`, which the message names where they would help.
    Raises ResumeRefused, with each field, its old and its new value, if others differ; UsageError
    for a name in `allowed` that is no such field.
    """
    old = configs.flatten(config_loader.load_config_json(stored_path))
    new = configs.flatten(config)
    _require_known(allowed, old.keys() | new.keys() | {field for field, _, _ in others})
    changes = [c for c in differences(old, new) if classify(c[0]) != "free"] + [*others]

    refused = [c for c in changes if classify(c[0]) != "flag" or not is_allowed(c[0], allowed)]
    if refused:
        listed = "; ".join(
            f"{field}: {_short(was)} -> {_short(now)}" for field, was, now in refused
        )
        fields = [field for field, _, _ in refused]
        fixed = [field for field in fields if classify(field) != "flag"]
        remedy = "Use the same config and data to resume it"
        if has_ways_on and not fixed:
            flags = " ".join(f"`allow_change` {field}" for field in _together(fields))
            remedy += f" (or go on with the change: {flags})"
        elif has_ways_on and len(fixed) < len(fields):
            remedy = f"{' and '.join(_together(fixed))} cannot change in a run. {remedy}"
        remedy += ", or another `workdir`"
        # A model begins from one of its own sizes, with its own tokenizer.
        if has_ways_on and not any(f.startswith(("model.", "tokenizer")) for f in fixed):
            remedy += f" (with `init_from` {name} to start from its parameters)"
        elif "tokenizer" in fixed:
            remedy += f" (prepare with `tokenizer` {name}/tokenizer makes a corpus for its model)"
        raise ResumeRefused(f"workdir {name} holds a run that differs: {listed}. {remedy}.")
    return changes


def _short(value: Any) -> str:
    """Returns a value as a message has it, of a digest the beginning."""
    is_digest = isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value)
    return repr(value[:12] if is_digest else value)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Returns the fields in which two flat descriptions differ, with both values, by name."""
    return [
        (field, old.get(field, "absent"), new.get(field, "absent"))
        for field in sorted(old.keys() | new.keys())
        if old.get(field, "absent") != new.get(field, "absent")
    ]


def corpus_changes(
    stored_path: Path, corpus: Corpus, *, init_from: str | None, has_steps: bool
) -> list[Change]:
    """Returns the changes of a pre-training run that are none of its config."""
    stored = strict_json.load_object(stored_path)
    changes: list[Change] = []
    was = stored.get("corpus") or {}
    if SOURCES in was and corpus.sources:
        old = {name: each["fingerprint"][:12] for name, each in was[SOURCES].items()}
        new = {name: each.fingerprint[:12] for name, each in corpus.sources.items()}
        changes += [(f"corpus.{name}", *values) for name, *values in differences(old, new)]
    elif was.get("fingerprint") != corpus.fingerprint:
        changes.append(("corpus", str(was.get("fingerprint"))[:12], corpus.fingerprint[:12]))
    if "tokenizer_hash" in was and was["tokenizer_hash"] != corpus.tokenizer_hash:
        changes.append(("tokenizer", was["tokenizer_hash"][:12], corpus.tokenizer_hash[:12]))
    beginning = stored.get("init_from")
    if is_same_place(beginning, init_from):
        beginning = init_from
    # What a run began from matters until its first checkpoint; later it may be left out.
    if beginning != init_from and not (has_steps and init_from is None):
        changes.append(("`init_from`", beginning, init_from))
    return changes


def is_same_place(one: str | None, other: str | None) -> bool:
    """Returns whether two names are of one place: a folder can be written in several ways."""
    if one is None or other is None:
        return one == other
    return one == other or Path(one).resolve() == Path(other).resolve()


def is_allowed(field: str, allowed: Sequence[str]) -> bool:
    """Returns whether a field is among `allowed`, or in a section that is."""
    return any(f"{field}.".startswith(f"{_section(name)}.") for name in allowed)


def _section(name: str) -> str:
    """Returns `phases` for `phases*` and `phases.*`, as the documentation writes it."""
    return name.rstrip("*").rstrip(".")


def _together(fields: Sequence[str]) -> list[str]:
    """Returns the fields, or `phases` for several of its: with a phase more it has many."""
    several = len([field for field in fields if field.startswith("phases.")]) > 2
    named = ["phases" if several and f.startswith("phases.") else f for f in fields]
    return list(dict.fromkeys(named))


def _require_known(allowed: Sequence[str], fields: Any) -> None:
    known = {f for f in (*fields, "corpus") if classify(f) == "flag"}
    for field in allowed:
        if any(is_allowed(each, [field]) for each in known):
            continue
        there = [each for each in fields if is_allowed(each, [field])]
        if not there:
            what = f"is no field.{field_names.suggestion(field, sorted(known))}"
        elif all(classify(each) == "free" for each in there):
            what = "may change without it"
        else:
            what = "defines the run"
        raise UsageError(f"`allow_change` {field}: {field} {what}")
