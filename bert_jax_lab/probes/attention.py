"""Queries, keys, scores and weights of every head, as a model computes them for given texts.

The probe replaces the function that computes attention, which receives the queries and keys after
any rotation, the scores that positions add, and the mask, for every kind of position and of block.
The replacement records them and computes the result of `plain`; the model has no code for it.

Dims: N layers, H heads, L tokens of the queries, S tokens of the keys (S = L), K head size.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config import HeadConfig
from bert_jax.config.model import SelfAttentionOptions
from bert_jax.data.sources.document import whole_characters
from bert_jax.data.tasks.encode_rows import RowArrays, arrays_of
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.data.tokenizer.unknown import note_unknown_ids
from bert_jax.data.tokenizer.words import readable
from bert_jax.errors import UsageError
from bert_jax.inference.forward import require_finite
from bert_jax.model import bert
from bert_jax.model.attention.plain import plain
from bert_jax.pretrained.load import LoadedCheckpoint
from bert_jax.registry import SCORES
from bert_jax.training import device_feed

_INPUTS = ("input_ids", "token_type_ids", "position_ids", "sequence_ids")


@dataclasses.dataclass(frozen=True)
class Attention:
    """The attention of some layers to one row, which may hold several sequences.

    `query` and `key` float32 `[N, H, L, K]`, after any rotation; `position` float32 `[N, H, L, L]`,
    the scores that positions add (divided by sqrt(K) if the model does so), or None. `seen` bool
    `[N, L, L]`: whether the query of the row attends to the key of the column. `sequence_ids` and
    `position_ids` int32 `[L]`. `is_cls` and `is_sep` bool `[L]`. `layers` counts from 1.
    """

    tokens: tuple[str, ...]
    layers: tuple[int, ...]
    query: np.ndarray
    key: np.ndarray
    position: np.ndarray | None
    seen: np.ndarray
    sequence_ids: np.ndarray
    position_ids: np.ndarray
    is_cls: np.ndarray
    is_sep: np.ndarray

    @property
    def num_heads(self) -> int:
        return self.query.shape[1]

    @property
    def head_size(self) -> int:
        return self.query.shape[3]

    def products(self, layer: int) -> np.ndarray:
        """Returns q.k / sqrt(K), float64 `[H, L, L]`; `layer` is an index into `layers`."""
        query, key = (x[layer].astype(np.float64) for x in (self.query, self.key))
        return query @ np.swapaxes(key, 1, 2) / np.sqrt(self.head_size)

    def scores(self, layer: int) -> np.ndarray:
        """Returns the scores before softmax, float64 `[H, L, L]`: -inf for masked keys."""
        scores = self.products(layer)
        if self.position is not None:
            scores = scores + self.position[layer]
        return np.where(self.seen[layer], scores, -np.inf)

    def weights(self, layer: int) -> np.ndarray:
        """Returns the softmax of the scores, float64 `[H, L, L]`: each row's sum is 1."""
        scores = self.scores(layer)
        exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return exponentials / exponentials.sum(axis=-1, keepdims=True)


def statistics(attention: Attention) -> list[dict[str, Any]]:
    """Returns one object per head, layer after layer; `layer` and `head` count from 1.

    Each number is a mean over all queries of the row: `cls_share` and `sep_share`, the weights on
    [CLS] and [SEP]; `mean_distance`, the distance of the keys in tokens; `entropy`, the entropy of
    the weights in nats (Clark et al. 2019, sections 3 and 4).
    """
    place = attention.position_ids
    distance = np.abs(place[:, None] - place[None, :])
    found = []
    for index, layer in enumerate(attention.layers):
        weights = attention.weights(index)
        surprise = -np.log(np.where(weights > 0, weights, 1.0))
        numbers = {
            "cls_share": weights[:, :, attention.is_cls].sum(axis=-1),
            "sep_share": weights[:, :, attention.is_sep].sum(axis=-1),
            "mean_distance": (weights * distance).sum(axis=-1),
            "entropy": (weights * surprise).sum(axis=-1),
        }
        for head in range(attention.num_heads):
            means = {name: float(number[head].mean()) for name, number in numbers.items()}
            found.append({"layer": layer, "head": head + 1} | means)
    return found


class AttentionProbe:
    """Reads the attention of a checkpoint, in float32; compiles once per length."""

    def __init__(self, source: LoadedCheckpoint, tokenizer: Tokenizer):
        config = source.config
        score = getattr(config.model.mixer, "score", SelfAttentionOptions.score)
        if SCORES[score].is_added:
            raise UsageError(
                f"model.mixer.score is {score}: only dot products of queries and keys can be shown"
            )
        # Unrolled and without rematerialization, so that the recorded arrays are not in a loop.
        compute = dataclasses.replace(
            config.compute, dtype="float32", remat="none", layer_loop="unroll"
        )
        self._source, self._tokenizer, self._mesh = source, tokenizer, source.mesh

        @jax.default_matmul_precision("highest")
        def record(params: bert.Params, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
            seen: list[dict[str, jax.Array]] = []

            def recording(q_BHKL: jax.Array, k_BHKS: jax.Array, v_BHKS: jax.Array, **rest: Any):
                noted = {"query": q_BHKL, "key": k_BHKS, "seen": rest["mask"].allowed()}
                if rest["bias_BHLS"] is not None:
                    noted["position"] = rest["bias_BHLS"]
                seen.append(noted)
                return plain(q_BHKL, k_BHKS, v_BHKS, **rest)

            bert.apply(
                params,
                batch,
                config=config.model,
                head=HeadConfig(parts=()),
                compute=compute,
                attend=recording,
            )
            if len(seen) < config.model.num_hidden_layers:
                raise UsageError(
                    f"model.mixer is {config.model.mixer.kind}: it has no attention to show"
                )
            # Replicated, since a process can read only the parts on its own devices.
            return {
                name: jnp.stack([jax.reshard(noted[name], jax.P())[0] for noted in seen])
                for name in seen[0]
            }

        self._record = jax.jit(record)

    def __call__(
        self, texts: Sequence[str], *, layers: Sequence[int] = (), packed: bool = False
    ) -> Attention:
        """Returns the attention to a text, or to two texts as a pair.

        With `packed`, any number of texts are sequences of one row, as in the packed rows of
        pre-training. `layers` chooses layers, from 1; the default is all. Raises UsageError for no
        text, an empty text, more tokens than the model has positions, or an unknown layer.
        """
        chosen = self._chosen(layers)
        row = self._row(texts, packed)
        length = len(row["input_ids"])
        # Padded, so that few lengths are compiled, and repeated, since the rows of a batch are
        # partitioned over all devices.
        extra = -length % 8
        batch = {
            name: np.tile(np.pad(ids, (0, extra)), (self._mesh.size, 1))
            for name, ids in row.items()
        }
        with jax.set_mesh(self._mesh):
            placed = device_feed.whole_to_global(batch, mesh=self._mesh)
            encoder = {"encoder": self._source.params["encoder"]}
            noted = {
                name: np.asarray(array)[chosen]
                for name, array in self._record(encoder, placed).items()
            }
        require_finite([noted["query"], noted["key"]])
        position = noted.get("position")
        if position is not None:
            # Some kinds add equal scores in all heads or to all rows.
            shape = (*noted["query"].shape[:2], length + extra, length + extra)
            position = np.broadcast_to(position, shape)[:, :, :length, :length]
        special = self._tokenizer.special
        return Attention(
            tokens=tuple(readable(self._tokenizer, row["input_ids"].tolist())),
            layers=tuple(number + 1 for number in chosen),
            query=np.swapaxes(noted["query"], 2, 3)[:, :, :length],
            key=np.swapaxes(noted["key"], 2, 3)[:, :, :length],
            position=position,
            seen=noted["seen"][:, :length, :length],
            sequence_ids=row["sequence_ids"],
            position_ids=row["position_ids"],
            is_cls=row["input_ids"] == special.cls,
            is_sep=row["input_ids"] == special.sep,
        )

    def _chosen(self, layers: Sequence[int]) -> list[int]:
        """Returns indices of layers, which count from 1."""
        depth = self._source.config.model.num_hidden_layers
        for layer in layers:
            if not 1 <= layer <= depth:
                raise UsageError(f"`layers` {layer}: the model has layers 1 to {depth}")
        return sorted({layer - 1 for layer in layers} or range(depth))

    def _row(self, texts: Sequence[str], packed: bool) -> dict[str, np.ndarray]:
        """Returns the four input arrays of the model, int32 `[L]`."""
        if isinstance(texts, str) or not texts:
            raise UsageError("expected a list of at least one text")
        if len(texts) > 2 and not packed:
            raise UsageError(
                f"{len(texts)} texts: give one, or two for a pair, or pack them with `packed`"
            )
        special, separators = self._tokenizer.special, self._tokenizer.pair_separators
        encoded = self._tokenizer.encode_sentences([*map(whole_characters, texts)])
        for number, ids in enumerate(encoded, 1):
            if not ids:
                raise UsageError(f"text {number} has no words; write some")
        first, *others = ([special.cls, *ids, special.sep] for ids in encoded)
        if packed:
            lengths = np.array([[len(ids) + 2 for ids in encoded]])
            first, second = [*first, *(id_ for ids in others for id_ in ids)], []
        else:
            lengths, second = None, [id_ for ids in others for id_ in ids[1:]]
            first += [special.sep] * (separators - 1) if second else []
        length, limit = len(first) + len(second), self._source.config.model.max_position_embeddings
        if length > limit:
            raise UsageError(
                f"the text has {length} tokens, the model {limit} positions; shorten it"
            )
        note_unknown_ids(np.array(first + second), special)
        arrays = RowArrays(1, length, self._tokenizer)
        arrays.put(0, first, second)
        features = dataclasses.replace(arrays.features(), text_lengths=lengths)
        row = {name: x[0] for name, x in arrays_of(features, np.arange(1), length=length).items()}
        # A model such as RoBERTa has one token type, or none.
        last_type = max(0, self._source.config.model.type_vocab_size - 1)
        row["token_type_ids"] = np.minimum(row["token_type_ids"], last_type)
        return {name: row[name] for name in _INPUTS}
