"""The table of validation metrics, each next to the value that it is compared with."""

from collections.abc import Mapping
from typing import Any

from bert_jax.registry import OBJECTIVES

COLUMNS = ("held-out", "value", "for comparison")


def figure_rows(
    objective: str,
    values: Mapping[str, float],
    *,
    entropy: float,
    expected: Mapping[str, Any] | None = None,
) -> list[tuple[str, str, str]]:
    """Returns the rows of the table for the metrics of an objective.

    Metrics that `values` lacks are left out: a hook may have ended a run before its first
    evaluation. `entropy` is the unigram entropy of the corpus in nats; `expected` may have the
    range of healthy runs (`mlm_loss`) and their names (`from`).
    """
    rows = []
    for figure in OBJECTIVES[objective].figures:
        if figure.name not in values:
            continue
        value, compared = values[figure.name], figure.compared_with
        if compared == "unigram entropy":
            gain = entropy - value
            learned = f"{gain:+.3f} learned" if gain > 0 else "nothing learned yet"
            compared = f"{entropy:.3f}: the corpus's unigram entropy ({learned})"
        rows.append((figure.title, figure.shown(value), compared))
        if figure.name == "mlm_loss" and expected and expected.get("mlm_loss"):
            low, high = expected["mlm_loss"]
            found = "as expected" if low <= value <= high else "NOT as expected"
            rows.append(("", found, f"{low:.3f} to {high:.3f}: {expected['from']}"))
    return rows
