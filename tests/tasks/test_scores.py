"""Scores against definitions written out here, and SQuAD's against what its scripts say."""

import json
import math
import random

import numpy as np
import pytest

from bert_jax.data.tasks.squad import Question
from bert_jax.data.tasks.tag_schemes import SCHEMES, entity_kinds
from bert_jax.tasks import scores, squad_metrics
from tests.paths import GOLDEN

# --- classes and numbers -------------------------------------------------------------------------

_CASES = {
    "mixed": ([0, 1, 1, 0, 1, 0, 1], [0, 1, 0, 0, 1, 1, 1]),
    "all right": ([0, 1, 1, 0], [0, 1, 1, 0]),
    "all wrong": ([0, 1, 1, 0], [1, 0, 0, 1]),
    "one class predicted": ([0, 1, 1, 0], [1, 1, 1, 1]),
    "the other class predicted": ([0, 1, 1, 0], [0, 0, 0, 0]),
    "one class everywhere": ([1, 1, 1], [1, 1, 1]),
    "no positive anywhere": ([0, 0, 0], [0, 0, 0]),
}


@pytest.mark.parametrize("case", _CASES)
def test_classes(case):
    gold, predicted = (np.array(values) for values in _CASES[case])
    tp, fp, fn, tn = (
        float(np.sum((gold == g) & (predicted == p))) for g, p in ((1, 1), (0, 1), (1, 0), (0, 0))
    )
    assert scores.accuracy(gold, predicted) == (tp + tn) / len(gold)
    assert scores.f1(gold, predicted) == pytest.approx(2 * tp / max(2 * tp + fp + fn, 1))
    root = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    expected = (tp * tn - fp * fn) / root if root else 0.0
    assert scores.matthews(gold, predicted) == pytest.approx(expected)


def test_macro_f1_is_the_mean_over_classes():
    gold, predicted = np.array([0, 0, 1, 2, 2, 2]), np.array([0, 1, 1, 2, 2, 0])
    one_by_one = [scores.f1((gold == c) * 1, (predicted == c) * 1) for c in range(3)]
    assert scores.macro_f1(gold, predicted) == pytest.approx(np.mean(one_by_one))


def ranks(values: np.ndarray) -> np.ndarray:
    return np.array([np.mean(np.flatnonzero(np.sort(values) == v)) for v in values])


@pytest.mark.parametrize("ties", [False, True])
def test_correlations(ties):
    draw = np.random.default_rng(3)
    gold = draw.normal(size=40).round(1 if ties else 9)
    predicted = (gold + draw.normal(size=40)).round(1 if ties else 9)
    assert scores.pearson(gold, predicted) == pytest.approx(np.corrcoef(gold, predicted)[0, 1])
    expected = np.corrcoef(ranks(gold), ranks(predicted))[0, 1]
    assert scores.spearman(gold, predicted) == pytest.approx(expected)


def test_numbers_that_are_large_beside_their_spread_correlate():
    gold, predicted = np.float32([1e9, 1e9 + 64, 1e9 + 128]), np.float32([1, 2, 3])
    assert scores.pearson(gold, predicted) == pytest.approx(1)


def test_a_constant_correlates_with_nothing():
    gold = np.array([1.0, 2.0, 3.0])
    for function in (scores.pearson, scores.spearman):
        assert function(gold, np.full(3, 2.5)) == 0.0
        assert function(np.full(3, 2.5), gold) == 0.0


# --- entities ------------------------------------------------------------------------------------


def spans(tags: list[str]) -> set[tuple[str, int, int]]:
    """Entities of IOB2 tags, strictly: an I- that continues no entity is none."""
    found, begin = set(), None
    for i, tag in enumerate([*tags, "O"]):
        if begin is not None and tag != f"I-{tags[begin][2:]}":
            found.add((tags[begin][2:], begin, i))
            begin = None
        if tag.startswith("B-"):
            begin = i
    return found


_TAGS = {
    "same": (["B-x", "I-x", "O"], ["B-x", "I-x", "O"]),
    "too short": (["B-x", "I-x", "O"], ["B-x", "O", "O"]),
    "wrong kind": (["B-x", "I-x", "O"], ["B-y", "I-y", "O"]),
    "kind changes inside": (["B-x", "I-x", "I-x"], ["B-x", "I-y", "I-x"]),
    "begins with I": (["B-x", "I-x", "O"], ["I-x", "I-x", "O"]),
    "two in a row": (["B-x", "B-x", "O"], ["B-x", "I-x", "O"]),
    "nothing predicted": (["B-x", "I-x", "O"], ["O", "O", "O"]),
    "nothing there": (["O", "O", "O"], ["B-x", "O", "O"]),
    "nothing at all": (["O", "O"], ["O", "O"]),
}


@pytest.mark.parametrize("case", _TAGS)
def test_entities(case):
    gold, predicted = _TAGS[case]
    there, found = spans(gold), spans(predicted)
    right = len(there & found)
    rates = scores.entities([gold, ["O"]], [predicted, ["O"]], "IOB2")
    assert rates["precision"] == pytest.approx(right / max(len(found), 1))
    assert rates["recall"] == pytest.approx(right / max(len(there), 1))
    assert rates["f1"] == pytest.approx(2 * right / max(len(there) + len(found), 1))


def written(entities: list[tuple[str, int]], scheme: str) -> list[str]:
    """Returns the tags of entities of a kind and a length; a kind of "" is outside of them."""
    found: list[str] = []
    previous = ""
    for kind, length in entities:
        first, inner, last, single = {
            "IOB2": "BIIB", "IOB1": "BIIB" if kind == previous else "IIII", "IOBES": "BIES",
            "BILOU": "BILU", "BMES": "BMES", "plain": "    ",
        }[scheme]  # fmt: skip
        prefixes = single if length == 1 else first + inner * (length - 2) + last
        tags = [f"{p}-{kind}".removeprefix(" -") for p in prefixes]
        found += tags if kind else ["O"] * length
        previous = kind
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
def test_random_entities_have_one_score_in_every_scheme(scheme):
    draw = random.Random(0)
    gold, predicted, right, total = [], [], 0, 0
    for _ in range(50):
        lengths = [draw.randint(1, 3) for _ in range(6)]
        sides = [[(draw.choice(["", "x", "y"]), n) for n in lengths] for _ in range(2)]
        if scheme == "plain":  # which cannot separate two entities of one kind
            sides = [[each for pair in side for each in (pair, ("", 1))] for side in sides]
        gold.append(written(sides[0], scheme))
        predicted.append(written(sides[1], scheme))
        kinds = [[kind for kind, _ in side] for side in sides]
        right += sum(bool(a) and a == b for a, b in zip(*kinds, strict=True))
        total += sum(map(bool, kinds[0] + kinds[1]))
        assert entity_kinds(gold[-1], scheme) == [kind for kind in kinds[0] if kind]
    assert scores.entities(gold, predicted, scheme)["f1"] == pytest.approx(2 * right / total)
    assert 0 < right < total


# --- SQuAD ---------------------------------------------------------------------------------------


def question(*answers: str, id_: str = "q") -> Question:
    return Question("here", id_, "?", " ".join(answers), answers, (0,) * len(answers))


# Name in the script of 2.0 -> name here.
_OURS = {
    "exact": "exact_match",
    "f1": "f1",
    "HasAns_exact": "answerable_exact_match",
    "HasAns_f1": "answerable_f1",
    "NoAns_exact": "unanswerable_exact_match",
    "NoAns_f1": "unanswerable_f1",
}


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_scores_are_those_of_the_official_scripts(version):
    """Both scripts were run on generated data (tests/golden/make_squad_golden.py)."""
    path = GOLDEN / "squad_official.json"
    for case in json.loads(path.read_text(encoding="utf-8"))[version]:
        asked = [question(*answers, id_=name) for name, answers in case["answers"].items()]
        ours = squad_metrics.score(asked, case["predicted"], with_unanswerable=version == "2.0")
        expected = case["official"]
        if version == "2.0":
            expected = {_OURS[name]: value for name, value in expected.items() if name in _OURS}
        assert ours == pytest.approx(expected), case


@pytest.mark.parametrize("seed", range(8))
def test_the_best_threshold_is_the_best_of_all(seed):
    """The score at every threshold is at most the one that is found."""
    draw = random.Random(seed)
    words = ["red", "green", "blue", "red green", "the"]
    asked, answers = [], {}
    for number in range(draw.randint(1, 12)):
        golds = draw.sample(words, draw.randint(0, 2))
        asked.append(question(*golds, id_=str(number)))
        if draw.random() < 0.9:  # ties are usual
            answers[str(number)] = (draw.choice(words), float(draw.randint(-3, 3)))

    def f1(threshold: float) -> float:
        given = {id_: text for id_, (text, margin) in answers.items() if margin <= threshold}
        predicted = {q.id: given.get(q.id, "") for q in asked}
        return squad_metrics.score(asked, predicted, with_unanswerable=True)["f1"]

    found = squad_metrics.best_threshold(asked, answers)
    assert found["best_f1"] == pytest.approx(max(map(f1, (t / 2 for t in range(-12, 12)))))
    assert f1(found["best_f1_threshold"]) == pytest.approx(found["best_f1"])
