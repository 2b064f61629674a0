"""The table of held-out figures, each beside what it is compared with."""

from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.registry import OBJECTIVES

COLUMNS = ("held-out", "value", "for comparison")


def figure_rows(
    objective: str,
    values: Mapping[str, float],
    *,
    entropy: float,
    expected: Mapping[str, Any] | None = None,
    published: Sequence[Mapping[str, Any]] = (),
) -> list[tuple[str, str, str]]:
    """Returns the rows of the table for the figures of an objective.

    Figures that `values` lacks are left out: a hook may have ended a run before its first
    evaluation. `entropy` is the unigram entropy of the corpus in nats; `expected` has the band of
    healthy runs (`mlm_loss`) and where it is from (`from`); `published` are figures of papers.
    """
    known = {each["figure"]: each for each in published}
    rows = []
    for figure in OBJECTIVES[objective].figures:
        if figure.name not in values:
            continue
        value, compared = values[figure.name], figure.compared_with
        if compared == "unigram entropy":
            gain = entropy - value
            learned = f"{gain:+.3f} learned" if gain > 0 else "nothing learned yet"
            compared = f"{entropy:.3f}: the corpus's unigram entropy ({learned})"
        if figure.name in known:
            each = known[figure.name]
            compared = f"{each['value']:g}: {each['where']}, on other text"
        rows.append((figure.title, figure.shown(value), compared))
        if figure.name == "mlm_loss" and expected and expected["mlm_loss"]:
            low, high = expected["mlm_loss"]
            found = "as expected" if low <= value <= high else "NOT as expected"
            rows.append(("", found, f"{low:.3f} to {high:.3f}: {expected['from']}"))
    return rows
