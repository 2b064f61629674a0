"""Search: the documents that are nearest to queries by similarity, or by BM25.

Dims: Q queries, N documents, W width of a vector, K documents that are kept of each query.
"""

import functools
import logging
import re
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.inference.embed import forward_of, recipe_of, vectors_of
from bert_jax.model.sharding import AXES
from bert_jax.pretrained.load import LoadedCheckpoint
from bert_jax.progress import Progress

# The names of the prompts that are looked for, as in `encode_query` and `encode_document` of
# sentence-transformers 6.2 (sentence_transformer/model.py).
QUERY_PROMPTS = ("query",)
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
# Texts that are encoded at a time: the ids of 16,384 texts of 512 tokens take 64 MiB.
_TEXTS = 1 << 14
# A tile of scores: 1,024 queries and 16,384 documents are 64 MiB of float32.
_QUERIES, _DOCUMENTS = 1 << 10, 1 << 14
# The constants of Anserini (Yang et al. 2017), with which BEIR's table has BM25.
_K1, _B = 0.9, 0.4


def text_vectors(
    checkpoint: LoadedCheckpoint,
    texts: Sequence[str],
    *,
    prompts: Sequence[str] = (),
    length: int | None = None,
) -> np.ndarray:
    """Returns vectors with dot products that are the model's similarities, float32 `[N, W]`: of
    length 1, unless the similarity of the model is the dot product.

    `prompts` are names: the first that the checkpoint has is the name of the prompt before each
    text. Texts of similar length share a batch. Encodes on all devices of the checkpoint.
    """
    tokenizer, forward = load_tokenizer(checkpoint.tokenizer), forward_of(checkpoint, (-1,))
    recipe = recipe_of(checkpoint)
    prompt = next((name for name in prompts if name in recipe.prompts), None)
    order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
    found: list[np.ndarray] = []
    for start in range(0, len(texts), _TEXTS):
        arrays = vectors_of(
            checkpoint,
            tokenizer,
            [texts[number] for number in order[start : start + _TEXTS]],
            length=length,
            normalize=None if recipe.similarity == "dot" else True,
            prompt=prompt,
            forward=forward,
        )
        found.append(arrays["vectors"])
    return np.concatenate(found)[np.argsort(order)]


@functools.partial(jax.jit, static_argnames="k")
def _merged(
    best_QK: jax.Array, queries_QW: jax.Array, documents_TW: jax.Array, *, k: int
) -> tuple[jax.Array, jax.Array]:
    """Returns the `k` largest of the scores so far and of the scores of a tile, and their places
    among both.
    """
    scores = jnp.matmul(queries_QW, documents_TW.T, precision="highest")
    # `top_k` prefers the smaller index among equal scores.
    best_QK, places = jax.lax.top_k(jnp.concatenate([best_QK, scores], axis=1), k)
    # Replicated: a process can read only what its own devices hold.
    return best_QK, jax.reshard(places, jax.P())


def search(
    queries_QW: np.ndarray, documents_NW: np.ndarray, k: int, *, mesh: Mesh
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows of the `k` nearest documents, int64 `[Q, K]`, and their scores, float32.

    Scores are dot products in float32; of equal scores the earlier document comes first. K is the
    smaller of `k` and N. Queries are divided over the devices of `mesh`; scores are computed in
    tiles, so that memory does not grow with Q x N.
    """
    k = min(k, len(documents_NW))
    by_rows = NamedSharding(mesh, jax.P(AXES))
    whole = NamedSharding(mesh, jax.P())

    found = []
    total = len(queries_QW) * len(documents_NW)
    with jax.set_mesh(mesh), Progress("search", total=total) as progress:
        for queries in np.split(queries_QW, range(_QUERIES, len(queries_QW), _QUERIES)):
            missing = -len(queries) % mesh.size
            padded = np.pad(queries, ((0, missing), (0, 0)))
            rows = jax.device_put(padded, by_rows)
            best = jax.device_put(np.full((len(padded), k), -np.inf, np.float32), by_rows)
            index = np.zeros((len(padded), k), np.int64)
            for start in range(0, len(documents_NW), _DOCUMENTS):
                tile = documents_NW[start : start + _DOCUMENTS]
                best, at = _merged(best, rows, jax.device_put(tile, whole), k=k)
                at = np.asarray(at)
                kept = np.take_along_axis(index, np.minimum(at, k - 1), axis=1)
                index = np.where(at < k, kept, start + at - k)
                progress.advance(len(queries) * len(tile))
            scores = np.asarray(jax.reshard(best, jax.P()))
            found.append((index[: len(queries)], scores[: len(queries)]))
    return np.concatenate([i for i, _ in found]), np.concatenate([s for _, s in found])


def bm25_search(queries: Sequence[str], documents: Sequence[str], k: int) -> np.ndarray:
    """Returns the rows of the `k` best documents by BM25, int64 `[Q, K]`, ties as in `search`.

    Words are runs of letters and digits in lower case; no word is left out or stemmed. The formula
    is that of Lucene, with k1 = 0.9 and b = 0.4.
    """
    import bm25s  # pyright: ignore[reportMissingImports]

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # its import sets DEBUG
    index = bm25s.BM25(k1=_K1, b=_B, method="lucene")
    index.index([_words(text) for text in documents], show_progress=False)
    found = []
    with Progress("BM25", total=len(queries)) as progress:
        for query in queries:
            scores = index.get_scores(_words(query))
            found.append(np.asarray(jax.lax.top_k(scores, min(k, len(documents)))[1]))
            progress.advance(1)
    return np.stack(found)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
