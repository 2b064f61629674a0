"""Finds the fields of a config that a name may mean: what other programs and papers call them."""

import difflib
from collections.abc import Iterable

from bert_jax.config import setting_of


def meant(name: str, paths: Iterable[str]) -> list[str]:
    """Returns those of the dotted `paths` that `name` may mean, or nothing.

    They end in it, or people call them so. A section that `name` begins with counts for nothing:
    it may be the wrong one.
    """
    last, paths = name.strip().lower().replace("-", "_").rpartition(".")[2], list(paths)
    by_call = [path for path in paths if last in _called(path)]
    by_name = [path for path in paths if path.rpartition(".")[2] == last]
    return list(dict.fromkeys([*by_call, *by_name]))


def synonyms(path: str) -> set[str]:
    """Returns the last name of a field, and what else people call it."""
    return {path.rpartition(".")[2], *_called(path)}


def _called(path: str) -> tuple[str, ...]:
    described = setting_of(path)
    return described.called if described else ()


def suggestion(name: str, paths: Iterable[str], here: Iterable[str] = ()) -> str:
    """Returns what to say after an unknown `name`: which of the dotted `paths` it may mean.

    `here` are the names of the section where it stands: without anything better, those are listed.
    """
    paths, here = list(paths), list(here)
    if name.rpartition(".")[2] in ("epoch", "epochs", "num_train_epochs"):
        return " A run counts updates, not epochs: phases.0.steps."
    found = meant(name, paths)
    if not found:
        last = name.rpartition(".")[2]
        found = difflib.get_close_matches(last, here, n=1, cutoff=0.5)
        ends = dict.fromkeys(path.rpartition(".")[2] for path in paths)
        close = found or difflib.get_close_matches(last, ends, n=1, cutoff=0.75)
        found = found or [path for path in paths if path.rpartition(".")[2] in close]
    if found:
        # The last name of what was typed is quoted before this, and may be the same word.
        nowhere = [path for path in found if here and "." not in path and path not in here]
        shown = [f"{p!r}, which is in no section" if p in nowhere else repr(p) for p in found]
        return f" Did you mean {' or '.join(shown[:3])}?"
    return f" Fields here: {', '.join(here or paths)}."
