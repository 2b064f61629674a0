"""Scores of tasks, computed by the usual libraries: scikit-learn, scipy, seqeval.

Each is a fraction (0 to 1) or a correlation (-1 to 1). An undefined score (a correlation with a
constant, the F1 of a class that is neither present nor predicted) is 0.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.data.tasks.tag_schemes import SCHEMES, canonical

# Any, because the libraries' types only list strings.
_UNDEFINED: Any = 0.0


def accuracy(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Returns the fraction of equal entries."""
    return float(np.mean(gold == predicted))


def f1(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Returns F1 of class 1, which GLUE uses for MRPC and QQP."""
    from sklearn.metrics import f1_score

    return float(f1_score(gold, predicted, pos_label=1, zero_division=_UNDEFINED))


def macro_f1(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Returns the mean of the F1 of every class that is present or predicted."""
    from sklearn.metrics import f1_score

    return float(f1_score(gold, predicted, average="macro", zero_division=_UNDEFINED))


def matthews(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Returns Matthews' correlation, which GLUE uses for CoLA."""
    from sklearn.metrics import matthews_corrcoef

    with warnings.catch_warnings():
        # With a single class the score is 0, and scikit-learn warns about the labels.
        warnings.filterwarnings("ignore", message="A single label was found")
        return float(matthews_corrcoef(gold, predicted))


def pearson(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Returns the correlation of two lists of numbers."""
    from scipy import stats

    if _is_constant(gold) or _is_constant(predicted):
        return 0.0
    # float32 would lose the deviations of large numbers from their mean.
    return float(stats.pearsonr(np.float64(gold), np.float64(predicted)).statistic)


def spearman(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Returns the correlation of the ranks; equal numbers share their mean rank."""
    from scipy import stats

    if _is_constant(gold) or _is_constant(predicted):
        return 0.0
    return float(stats.spearmanr(gold, predicted).statistic)


def _is_constant(values: np.ndarray) -> bool:
    return len(values) < 2 or bool(np.all(values == values[0]))


def entities(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: str
) -> dict[str, float]:
    """Returns precision, recall and F1 of entities: kind, first and last word must all be correct.
    Averages are over entities ("micro").

    `scheme` is one of `tag_schemes.SCHEMES`, applied strictly: in IOB2, an I- tag that does not
    continue an entity is ignored.
    """
    from seqeval import scheme as schemes
    from seqeval.metrics.v1 import precision_recall_fscore_support

    if all(tag == "O" for tags in [*gold, *predicted] for tag in tags):
        return {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    scores = precision_recall_fscore_support(
        [canonical(tags, scheme) for tags in gold],
        [canonical(tags, scheme) for tags in predicted],
        scheme=getattr(schemes, SCHEMES[scheme].scored),
        average="micro",
        zero_division=_UNDEFINED,
    )
    names = ("precision", "recall", "f1")
    return {name: float(np.asarray(value)) for name, value in zip(names, scores, strict=False)}
