"""Search: the documents that are nearest to queries by similarity, or by BM25.

Dims: Q queries, N documents, W width of a vector, K documents that are kept of each query.
"""

import functools
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from bert_jax.config import TrainConfig
from bert_jax.data.tasks.encode_rows import Features
from bert_jax.data.tokenizer.tokenizer import Tokenizer, load_tokenizer
from bert_jax.inference.embed import encode, forward_of, recipe_of
from bert_jax.inference.forward import in_float32
from bert_jax.interchange.sentence_transformers import EmbeddingRecipe, normalized
from bert_jax.model.sharding import AXES
from bert_jax.pretrained.load import LoadedCheckpoint
from bert_jax.progress import Progress

# Texts that are encoded at a time: the ids of 16,384 texts of 512 tokens take 64 MiB.
_TEXTS = 1 << 14
# A tile of scores: 1,024 queries and 16,384 documents are 64 MiB of float32.
_QUERIES, _DOCUMENTS = 1 << 10, 1 << 14
# The constants of Anserini (Yang et al. 2017), with which BEIR's table has BM25.
_K1, _B = 0.9, 0.4

# Texts, and the names of their prompts.
TextsAndPrompts = tuple[Sequence[str], Sequence[str]]
# The numbers of some of several texts, and the texts as rows.
EncodedTexts = tuple[np.ndarray, Features]


class Embedder:
    """Computes vectors with dot products that are the similarities of a model: of length 1, unless
    the similarity of the model is the dot product. Uses all devices of a mesh.
    """

    def __init__(
        self,
        config: TrainConfig,
        recipe: EmbeddingRecipe,
        tokenizer: Tokenizer,
        *,
        mesh: Mesh,
        length: int | None = None,
        **options: Any,
    ):
        """`length` is the most tokens of a text, by default the recipe's; `options` are those of
        `forward_of`.
        """
        self._recipe, self._tokenizer, self._length = recipe, tokenizer, length
        self._limit = config.model.max_position_embeddings
        self.forward = forward_of(config, mesh=mesh, pooling=recipe.pooling, **options)

    def encode(self, texts: Sequence[str], prompts: Sequence[str] = ()) -> Iterator[EncodedTexts]:
        """Returns parts of the texts as rows, texts of similar length together, with their numbers.

        `prompts` are names: the first that the recipe has is the prompt before each text. Raises
        UsageError for a prompt that is not supported; the texts are encoded one part at a time.
        """
        return self._parts(texts, self._recipe.with_first_prompt(prompts))

    def _parts(self, texts: Sequence[str], recipe: EmbeddingRecipe) -> Iterator[EncodedTexts]:
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        for start in range(0, len(texts), _TEXTS):
            numbers = order[start : start + _TEXTS]
            part = [texts[number] for number in numbers]
            rows = encode(part, self._tokenizer, recipe, length=self._length, limit=self._limit)
            yield np.array(numbers), rows

    def vectors(self, params: Any, encoded: Iterable[EncodedTexts], **options: Any) -> Any:
        """Returns the vectors of `encode`, float32 `[N, W]`, in the order of the texts.

        `options` are those of `Forward`; returns None if `cut_short` is true.
        """
        encoder, numbers, found = {"encoder": params["encoder"]}, [], []
        for number_N, rows in encoded:
            pooled = self.forward(encoder, rows, **options)
            if pooled is None:
                return None
            numbers.append(number_N)
            found.append(self._recipe.finished(pooled))
        vectors_NW = np.concatenate(found)[np.argsort(np.concatenate(numbers))]
        return vectors_NW if self._recipe.similarity == "dot" else normalized(vectors_NW)


def text_vectors(
    checkpoint: LoadedCheckpoint,
    *texts: TextsAndPrompts,
    length: int | None = None,
    dims: int | None = None,
) -> list[np.ndarray]:
    """Returns the vectors of each list of texts, float32 `[N, W]`, computed in float32; each list
    comes with the names of its prompts, as in `Embedder.encode`. `dims` keeps the first columns.
    """
    embedder = Embedder(
        in_float32(checkpoint.config),
        recipe_of(checkpoint).with_dims(dims, width=checkpoint.config.model.hidden_size),
        load_tokenizer(checkpoint.tokenizer),
        mesh=checkpoint.mesh,
        length=length,
    )
    # All prompts are known before the first text is encoded.
    encoded = [embedder.encode(*each) for each in texts]
    return [embedder.vectors(checkpoint.params, each, title="embed") for each in encoded]


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
    queries_QW: np.ndarray, documents_NW: np.ndarray, k: int, *, mesh: Mesh, hidden: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows of the `k` nearest documents, int64 `[Q, K]`, and their scores, float32.

    Scores are dot products in float32; of equal scores the earlier document comes first. K is the
    smaller of `k` and N. Queries are divided over the devices of `mesh`; scores are computed in
    tiles, so that memory does not grow with Q x N. `hidden` hides the progress bar.
    """
    k = min(k, len(documents_NW))
    by_rows = NamedSharding(mesh, jax.P(AXES))
    whole = NamedSharding(mesh, jax.P())

    found = []
    total = len(queries_QW) * len(documents_NW)
    with jax.set_mesh(mesh), Progress("search", total=total, hidden=hidden) as progress:
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
