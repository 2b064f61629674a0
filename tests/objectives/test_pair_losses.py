"""Losses of the vectors of texts against double loops in float64, and what duplicates change."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import InfoNCE
from bert_jax.config.embedding import EmbeddingConfig, PairLoss
from bert_jax.objectives import pair_losses
from bert_jax.objectives.pair_losses import CoSENT, KullbackLeibler, MarginMSE, Texts
from tests.batches import mesh_of


def random_texts(examples: int, documents: int, *, seed: int = 0, width: int = 12) -> dict:
    draw = np.random.default_rng(seed)
    query_ids = np.arange(examples)
    document_ids = 1000 + np.arange(examples * documents).reshape(examples, documents)
    return {
        "queries": draw.standard_normal((examples, width)),
        "documents": draw.standard_normal((examples, documents, width)),
        "weights": np.ones(examples),
        "query_ids": query_ids,
        "document_ids": document_ids,
        "scores": draw.integers(0, 4, (examples, documents)) / 2,
    }


def without(values: dict, rows: list[int]) -> dict:
    return {name: np.delete(array, rows, axis=0) for name, array in values.items()}


def texts(values: dict, *, is_cosine: bool = True, widths: tuple[int, ...] = ()):
    """The texts with each of the widths; by default, with the whole width."""
    ids = [values["query_ids"][:, None], values["document_ids"]]
    whole = Texts(
        queries_ND=values["queries"],
        documents_NCD=values["documents"],
        weights_N=values["weights"],
        ids_NT=jnp.concatenate(ids, axis=1, dtype=jnp.int32),
        scores_NC=values["scores"],
    )
    widths = widths or (values["queries"].shape[1],)
    return [whole.with_width(width, is_cosine=is_cosine) for width in widths]


def means(options: PairLoss, values: dict, **of_texts: Any) -> list:
    """The mean loss with each of the widths, traced anew in each call."""
    return jax.jit(lambda v: [options.mean(found) for found in texts(v, **of_texts)])(values)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / math.sqrt(a @ a) / math.sqrt(b @ b))


def naive_info_nce(values: dict, options: InfoNCE) -> tuple[float, float]:
    """A double loop: every rule is written out for one query and one candidate."""
    q, d, there = values["queries"], values["documents"], values["weights"] > 0
    q_id, d_id = values["query_ids"], values["document_ids"]
    kept = [i for i in range(len(q)) if there[i]]

    def one_way(row, candidates):
        """`candidates`: (vector, id, id of the text whose own it is or None), in their order."""
        losses, hits, seen = [], [], set()
        first = []
        for _, text, _ in candidates:
            first.append(text not in seen)
            seen.add(text)
        done = set()
        for place, i in enumerate(kept):
            pair = (q_id[i], d_id[i, 0])
            if options.mask_duplicates and pair in done:
                continue
            done.add(pair)
            vector, own_place, own_id, row_id = row(i, place)
            own = cosine(vector, candidates[own_place][0])
            total, best = 0.0, True
            for j, (other, text, owner) in enumerate(candidates):
                c = cosine(vector, other)
                if j != own_place:
                    if options.mask_duplicates and (
                        not first[j] or text == own_id or owner == row_id
                    ):
                        continue
                    margin = options.false_negative_margin
                    if margin is not None and c > own + margin:
                        continue
                total += math.exp(c / options.temperature)
                best = best and own >= c
            losses.append(math.log(total) - own / options.temperature)
            hits.append(best)
        return float(np.mean(losses)), float(np.mean(hits))

    count = d.shape[1]
    documents = [
        (d[i, c], d_id[i, c], q_id[i] if c == 0 else None) for i in kept for c in range(count)
    ]
    loss, hits = one_way(lambda i, n: (q[i], n * count, d_id[i, 0], q_id[i]), documents)
    if options.symmetric:
        queries = [(q[i], q_id[i], d_id[i, 0]) for i in kept]
        back, _ = one_way(lambda i, n: (d[i, 0], n, q_id[i], d_id[i, 0]), queries)
        loss = (loss + back) / 2
    return loss, hits


def with_repeats(documents: int) -> dict:
    """Equal documents, an equal query with another document, a repeated pair, an empty place."""
    values = random_texts(9, documents)
    values["documents"][3, 0] = values["documents"][0, 0]
    values["document_ids"][3, 0] = values["document_ids"][0, 0]
    values["queries"][5], values["query_ids"][5] = values["queries"][2], values["query_ids"][2]
    for name in ("queries", "query_ids"):
        values[name][7] = values[name][6]
    values["documents"][7, 0] = values["documents"][6, 0]
    values["document_ids"][7, 0] = values["document_ids"][6, 0]
    values["weights"][8] = 0
    return values


@pytest.mark.parametrize("documents", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        InfoNCE(),
        InfoNCE(symmetric=True, temperature=0.3),
        InfoNCE(mask_duplicates=False),
        InfoNCE(false_negative_margin=0.1, symmetric=True),
    ],
)
def test_info_nce_is_a_double_loop_in_float64(options, documents, monkeypatch):
    values = with_repeats(documents)
    loss, hits = naive_info_nce(values, options)
    np.testing.assert_allclose(means(options, values), [(loss, hits)], rtol=1e-5)
    monkeypatch.setattr(pair_losses, "_TILE", 2 * 9 * documents)  # nine rows in more parts
    np.testing.assert_allclose(means(options, values), [(loss, hits)], rtol=1e-5)


def test_the_gradient_of_info_nce_is_that_of_the_double_loop():
    options, values = InfoNCE(symmetric=True, temperature=0.3), with_repeats(2)

    def loss(queries):
        return means(options, values | {"queries": queries})[0][0]

    found, step = jax.grad(loss)(jnp.float32(values["queries"])), 1e-6
    for row, column in ((0, 0), (2, 5), (6, 3), (8, 1)):
        moved = np.zeros_like(values["queries"])
        moved[row, column] = step
        up, down = (
            naive_info_nce(values | {"queries": values["queries"] + sign * moved}, options)[0]
            for sign in (1, -1)
        )
        # Equal queries have one vector: row 7 repeats row 6, and does not count.
        np.testing.assert_allclose(found[row, column], (up - down) / (2 * step), atol=2e-5)


@pytest.mark.parametrize(("scale", "expected"), [(20, 1.6290546375718673), (1, 0.9273957338812732)])
def test_the_loss_of_two_queries_and_a_hard_negative(scale, expected):
    """By hand: cosines .8, 0, .6 and .96, .8, .36."""
    values = {
        "queries": np.array([[1.0, 0, 0], [0.6, 0.8, 0]]),
        "documents": np.array([[[0.8, 0.6, 0], [0.6, 0, 0.8]], [[0, 1.0, 0], [0.6, 0, 0.8]]]),
        "weights": np.ones(2),
        "query_ids": np.arange(2),
        "document_ids": np.array([[10, 12], [11, 12]]),
        "scores": np.zeros((2, 2)),
    }
    ((loss, hits),) = means(InfoNCE(temperature=1 / scale), values)
    np.testing.assert_allclose((loss, hits), (expected, 0.5), rtol=1e-5)


@pytest.mark.parametrize("shape", [1, 8, (2, 2, 2)])
def test_repeated_pairs_and_documents_change_nothing(shape):
    """The repetitions lie on other devices than the first ones."""
    whole = random_texts(16, 2)
    for name in ("queries", "documents", "query_ids", "document_ids"):
        whole[name][12:] = whole[name][:4]
    options = InfoNCE(symmetric=True)
    expected = means(options, without(whole, [*range(12, 16)]))
    with jax.set_mesh(mesh := mesh_of(shape)):
        rows = jax.NamedSharding(mesh, jax.P(("slice", "fsdp", "fsdp_inner")))
        put = {name: jax.device_put(np.float32(x), rows) for name, x in whole.items()}
        found = means(options, put)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_losses_with_scores_are_double_loops():
    values = random_texts(7, 3, seed=1)
    values["weights"][6] = 0
    q, d, s, kept = (values[n] for n in ("queries", "documents", "scores", "weights"))
    kept = np.flatnonzero(kept)
    cosines = [[cosine(q[i], d[i, c]) for c in range(3)] for i in range(7)]
    total = 1.0
    for i in kept:
        for j in kept:
            if s[i, 0] > s[j, 0]:
                total += math.exp((cosines[j][0] - cosines[i][0]) / 0.05)
    np.testing.assert_allclose(means(CoSENT(), values)[0][0], math.log(total), rtol=1e-5)

    errors = [
        ((q[i] @ d[i, 0] - q[i] @ d[i, c]) - (s[i, 0] - s[i, c])) ** 2 for i in kept for c in (1, 2)
    ]
    found = means(MarginMSE(), values, is_cosine=False)[0][0]
    np.testing.assert_allclose(found, np.mean(errors), rtol=1e-5)

    divergences = []
    for i in kept:
        teacher, ours = (np.exp(np.array(x) / 2.0) for x in (s[i], cosines[i]))
        teacher, ours = teacher / teacher.sum(), ours / ours.sum()
        divergences.append((teacher * np.log(teacher / ours)).sum())
    found = means(KullbackLeibler(temperature=2.0), values)[0][0]
    np.testing.assert_allclose(found, 4 * np.mean(divergences), rtol=2e-5)


def test_narrow_vectors_are_the_first_columns():
    values, options = random_texts(6, 2), EmbeddingConfig().loss
    cut = {name: values[name][..., :5] for name in ("queries", "documents")}
    expected = means(options, values) + means(options, values | cut)
    np.testing.assert_allclose(means(options, values, widths=(12, 5)), expected, rtol=1e-6)
