"""Scores of tasks, by the libraries the field reports with: scikit-learn, scipy, seqeval.

Each is a share (0 to 1) or a correlation (-1 to 1). An undefined score (a correlation with a
constant, the F1 of a class that is neither present nor predicted) is 0.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.data.tasks.tag_schemes import SCHEMES, canonical

# Any, since the libraries' types know only the words that they take here.
_UNDEFINED: Any = 0.0


def accuracy(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Returns the share of equal entries."""
    return float(np.mean(gold == predicted))


def f1(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Returns F1 of class 1, as GLUE has it for MRPC and QQP."""
    from sklearn.metrics import f1_score

    return float(f1_score(gold, predicted, pos_label=1, zero_division=_UNDEFINED))


def macro_f1(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Returns the mean of the F1 of every class that is present or predicted."""
    from sklearn.metrics import f1_score

    return float(f1_score(gold, predicted, average="macro", zero_division=_UNDEFINED))


def matthews(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Returns Matthews' correlation, as GLUE has it for CoLA."""
    from sklearn.metrics import matthews_corrcoef

    with warnings.catch_warnings():
        # One class everywhere: the score is 0, and scikit-learn wonders about the labels.
        warnings.filterwarnings("ignore", message="A single label was found")
        return float(matthews_corrcoef(gold, predicted))


def pearson(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Returns the correlation of two lists of numbers."""
    from scipy import stats

    if _is_constant(gold) or _is_constant(predicted):
        return 0.0
    # In float32 nothing would be left of how far large numbers are from their mean.
    return float(stats.pearsonr(np.float64(gold), np.float64(predicted)).statistic)


def spearman(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Returns the correlation of their ranks; equal numbers share the mean of theirs."""
    from scipy import stats

    if _is_constant(gold) or _is_constant(predicted):
        return 0.0
    return float(stats.spearmanr(gold, predicted).statistic)


def _is_constant(values: np.ndarray) -> bool:
    return len(values) < 2 or bool(np.all(values == values[0]))


def entities(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: str
) -> dict[str, float]:
    """Returns precision, recall and F1 of whole entities: kind, first and last word must all be
    right. The mean is over entities ("micro").

    `scheme` is one of `tag_schemes.SCHEMES`, and strict: in IOB2, an I- that continues no entity
    belongs to no entity.
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
