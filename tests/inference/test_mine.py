"""Hard negatives, with planted vectors in place of a model's."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.data.matching.identity import identify
from bert_jax.data.tasks.tables import TextRow
from bert_jax.errors import UsageError
from bert_jax.inference import mine, retrieve
from bert_jax.inference.mine import usable_pairs
from tests.batches import mesh_of

_TEXTS = [f"text {number}" for number in range(40)]
# Copies that differ in case, punctuation and spaces only.
_COPIES = [*(f"  Text {number}! " for number in range(40))]


def vector(text: str) -> np.ndarray:
    """A direction in the plane for each distinct text, close enough to be confused."""
    number = int.from_bytes(identify(text.encode()).words[:4], "big")
    angle = number / 2**32 * 2.0
    return np.array([np.cos(angle), np.sin(angle)], np.float32)


@pytest.fixture(autouse=True)
def planted(monkeypatch):
    def text_vectors(checkpoint, *texts, length=None):
        return [np.stack([vector(text) for text in each]) for each, _ in texts]

    monkeypatch.setattr(mine, "text_vectors", text_vectors)
    # One shape of a tile, and so one compiled program, for all cases.
    searched = retrieve.search

    def search(queries, documents, k, *, mesh):
        return tuple(
            each[:, :k] for each in searched(queries, documents, len(documents), mesh=mesh)
        )

    monkeypatch.setattr(mine, "search", search)


def mined(pairs, documents, **rules):
    checkpoint = SimpleNamespace(mesh=mesh_of((1, 1, 1)))
    return [*mine.mine(checkpoint, pairs, documents, **rules)]


def letters(text: str) -> bytes:
    return identify(text.encode()).words


_pairs = st.lists(
    st.tuples(st.sampled_from(_TEXTS + _COPIES), st.sampled_from(_TEXTS + _COPIES)),
    min_size=1,
    max_size=12,
).map(lambda pairs: [pair for pair in pairs if letters(pair[0]) != letters(pair[1])])


@settings(max_examples=60, deadline=None)
@given(
    _pairs,
    st.sampled_from([None, 0.0, 0.1]),
    st.sampled_from([None, 0.05, 0.3]),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_negatives_are_no_copies_and_obey_the_margins(pairs, margin, relative, negatives, skipped):
    rules = {"negatives": negatives, "range_min": skipped}
    try:
        found = mined(pairs, _TEXTS + _COPIES, margin=margin, relative_margin=relative, **rules)
    except (UsageError, ValueError):
        found = []  # no pair, or no pair has enough negatives
    asked = {(letters(query), letters(positive)) for query, positive in pairs}
    for record in found:
        query, positive, *texts = record.values()
        assert (letters(query), letters(positive)) in asked
        assert [*record][2:] == [f"negative_{n}" for n in range(1, negatives + 1)]
        positives = [p for q, p in pairs if letters(q) == letters(query)]
        own = {letters(text) for text in (query, *positives)}
        assert len(own | {letters(text) for text in texts}) == len(own) + negatives
        farthest = min(vector(query) @ vector(p) for p in positives)
        for text in texts:
            cosine = vector(query) @ vector(text)
            assert margin is None or cosine <= farthest - margin + 1e-6
            assert relative is None or cosine <= farthest - relative * abs(farthest) + 1e-6


def test_the_nearest_texts_that_the_rules_allow_are_mined():
    query, positive = _TEXTS[:2]
    ranked = sorted(_TEXTS[2:], key=lambda text: -(vector(query) @ vector(text)))
    (record,) = mined([(query, positive)], _TEXTS, negatives=2, range_min=3, range_max=6)
    assert [*record.values()] == [query, positive, *ranked[3:5]]
    # Without documents, the candidates are the positives of the other queries.
    pairs = [(query, positive), (_TEXTS[2], _TEXTS[3])]
    assert [record["negative_1"] for record in mined(pairs, [], negatives=1)] == [
        _TEXTS[3],
        positive,
    ]


def test_a_pair_with_too_few_negatives_is_left_out_and_counted(our_messages):
    pairs = [("near", "a"), ("near", "b"), ("far", "c")]
    found = mined(pairs, [], negatives=2)
    assert [record["query"] for record in found] == ["far"]
    assert any("2 of 3 pairs have fewer than 2 negatives" in each for each in our_messages())
    with pytest.raises(UsageError, match="3 of 3 pairs"):
        mined(pairs, [], negatives=3)


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ({"negatives": 0}, "negatives"),
        ({"range_min": -1}, "range_min"),
        ({"range_min": 5, "range_max": 7}, "range_max"),
    ],
)
def test_rules_that_allow_no_negatives_are_refused(rules, name):
    with pytest.raises(UsageError, match=f"^`{name}`"):
        mined([("a", "b")], [], **rules)


def test_pairs_that_cannot_be_used_are_named_and_counted(our_messages):
    texts = [("a", "b"), ("a", " "), ("same", "Same!"), ("", "b")]
    rows = [TextRow(f"pairs.jsonl, line {n}", pair, None, "") for n, pair in enumerate(texts, 1)]
    with pytest.raises(UsageError, match=r"3 of 4 .*line 2: .*blank; .*line 3: .*`on_bad_record`"):
        usable_pairs(rows, skip_bad=False)
    assert usable_pairs(rows, skip_bad=True) == [("a", "b")]
    assert "3 of 4 pairs" in our_messages()[0]
    with pytest.raises(UsageError, match="1 of 1 pairs"):
        usable_pairs(rows[1:2], skip_bad=True)
