"""Kinds of position, which tell a model the order of its tokens: a class each, with five hooks.

A kind may add to the embeddings, turn queries and keys, or add to the scores. Those it does not
have cost nothing. `registry.POSITIONS` lists the kinds. All of them read `position_ids` and never
columns, so that each sequence of a row has what it has alone; those in attention read differences
alone.

Dims: B batch, L length of the queries, S length of the keys, D width, H heads, K head size, P
distances.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.model.layers import look_up, truncated_normal
from bert_jax.model.sharding import over_batch, spec_of
from bert_jax.registry import POSITIONS


class Position(nnx.Module):
    """The base of all kinds: knows nothing of order, and is the kind `none`.

    The parameters of a kind, if any, are `position`.
    """

    # Whether each block has an instance, and parameters, of its own. All blocks share one else.
    is_per_block = False

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        if cls.is_per_block and cls._has("add"):
            raise TypeError(
                f"{cls.__name__} is per block, and no block calls its add(): drop one of the two"
            )

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        del config, rngs

    @classmethod
    def _has(cls, *hooks: str) -> bool:
        return any(getattr(cls, hook) is not getattr(Position, hook) for hook in hooks)

    @classmethod
    def is_in_attention(cls) -> bool:
        """Returns whether the kind has a hook that blocks call."""
        return cls._has("rotate") or cls.adds_to_scores()

    @classmethod
    def adds_to_scores(cls) -> bool:
        return cls._has("bias", "query_scores", "scores")

    @classmethod
    def sees_key_bias(cls) -> bool:
        """Returns whether scores of a query may depend on the key's bias beyond a common term.

        Where they do not, softmax does not see that bias, and its gradient is zero.
        """
        return cls._has("rotate", "scores")

    @classmethod
    def has_table(cls) -> bool:
        """Returns whether the kind has as many rows of parameters as there are positions."""
        return cls._has("rows_for")

    @staticmethod
    def rows_for(length: int, *, rows: int) -> np.ndarray:
        """Returns which row of a table with so many `rows` each row of one for `length` positions
        begins as.
        """
        del length
        return np.arange(rows)

    @staticmethod
    def problems(model: ModelConfig) -> Iterator[tuple[str, str]]:
        """Yields the name of each field that a model of this kind cannot have so, and why."""
        yield from ()

    @staticmethod
    def flops(model: ModelConfig, *, length: int, queries: int) -> int:
        """Returns the FLOPs of its matrix products in one block, of which `queries` are read."""
        del model, length, queries
        return 0

    @staticmethod
    def kept_distances(model: ModelConfig, *, length: int) -> float:
        """Returns how many arrays [B, H, L, L] its products with distances take in one block."""
        del model, length
        return 0.0

    def add(self, x_BLD: jax.Array, position_ids_BL: jax.Array) -> jax.Array:
        """Returns the embeddings with what the positions add to them."""
        return x_BLD

    def rotate(
        self,
        q_BHKL: jax.Array,
        k_BHKS: jax.Array,
        *,
        query_positions_BL: jax.Array,
        key_positions_BS: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Returns queries and keys, turned by their positions."""
        return q_BHKL, k_BHKS

    def bias(
        self, *, query_positions_BL: jax.Array, key_positions_BS: jax.Array, num_heads: int
    ) -> jax.Array | None:
        """Returns what is added to the scores, float32 `[B, H, L, S]`, or None."""
        return None

    def query_scores(self, q_BHKL: jax.Array, **positions: jax.Array) -> jax.Array | None:
        """Returns the same where it depends on the queries, which `rotate` has turned.

        `positions` are the two of `bias`.
        """
        return self.bias(**positions, num_heads=q_BHKL.shape[1])

    def scores(
        self, q_BHKL: jax.Array, k_BHKS: jax.Array, **positions: jax.Array
    ) -> jax.Array | None:
        """Returns the same where it depends on keys, too."""
        del k_BHKS
        return self.query_scores(q_BHKL, **positions)


class Learned(Position):
    """A vector for each position, learned (Devlin et al. 2019)."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        shape = (config.max_position_embeddings, config.table_size)
        self.embedding = truncated_normal(rngs, shape, stddev=config.initializer_range)

    @staticmethod
    def rows_for(length: int, *, rows: int) -> np.ndarray:
        """The table is repeated from its beginning, as Longformer begins from RoBERTa's (Beltagy et
        al. 2020, section 5): neighbours stay neighbours everywhere but at the seams.
        """
        return np.arange(length) % rows

    def add(self, x_BLD: jax.Array, position_ids_BL: jax.Array) -> jax.Array:
        return x_BLD + look_up(self.embedding[...], position_ids_BL)


class Sinusoidal(Position):
    """Sines in the even columns and cosines in the odd ones (Vaswani et al. 2017, section 3.5).

    They are multiplied by sqrt(2) x `initializer_range`, which makes them as large as the word
    vectors are at the start. With an amplitude of 1 the normalisation that follows would leave
    almost nothing of a word: the paper multiplies its words by the square root of the width
    instead.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.amplitude = 2**0.5 * config.initializer_range

    @staticmethod
    def problems(model: ModelConfig) -> Iterator[tuple[str, str]]:
        if model.table_size % 2:
            yield "hidden_size", f"is {model.table_size}; sines and cosines come in pairs: even"

    def add(self, x_BLD: jax.Array, position_ids_BL: jax.Array) -> jax.Array:
        frequencies = _frequencies(x_BLD.shape[-1], theta=10_000.0)
        angles = position_ids_BL[:, :, None].astype(jnp.float32) * frequencies
        waves = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
        waves_BLD = jnp.reshape(waves, x_BLD.shape, out_sharding=over_batch())
        return x_BLD + (self.amplitude * waves_BLD).astype(x_BLD.dtype)


class Rotary(Position):
    """Turns each pair of columns of queries and keys by an angle that grows with the position, so
    that a score depends on the distance alone (Su et al. 2021, RoFormer).

    Column i is paired with column i + K/2, as in transformers' ModernBERT and Llama. Angles and
    turning are float32: in bfloat16 neighbours beyond position 256 would have one angle. Each block
    has an instance, since local layers may have another theta than global ones.
    """

    is_per_block = True
    reads = ("rope_theta", "local_rope_theta")

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        """`config.rope_theta` is that of the block."""
        self.theta = config.rope_theta

    @staticmethod
    def problems(model: ModelConfig) -> Iterator[tuple[str, str]]:
        size, kind = model.hidden_size // model.num_attention_heads, model.position_embedding_type
        if size % 2:
            yield "num_attention_heads", f"makes heads of {size}; {kind} turns pairs: even"

    def rotate(
        self,
        q_BHKL: jax.Array,
        k_BHKS: jax.Array,
        *,
        query_positions_BL: jax.Array,
        key_positions_BS: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        return self._turn(q_BHKL, query_positions_BL), self._turn(k_BHKS, key_positions_BS)

    def _turn(self, x_BHKL: jax.Array, positions_BL: jax.Array) -> jax.Array:
        frequencies = _frequencies(x_BHKL.shape[2], theta=self.theta)
        angles = positions_BL[:, None, None].astype(jnp.float32) * frequencies[:, None]
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        a, b = self._split(x_BHKL.astype(jnp.float32))
        return self._join(a * cos - b * sin, b * cos + a * sin).astype(x_BHKL.dtype)

    def _split(self, x_BHKL: jax.Array) -> tuple[jax.Array, jax.Array]:
        half = x_BHKL.shape[2] // 2
        return x_BHKL[:, :, :half], x_BHKL[:, :, half:]

    def _join(self, a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.concatenate([a, b], axis=2)


class RotaryInterleaved(Rotary):
    """The same with column 2i paired with column 2i + 1, as in RoFormer's code and GPT-J."""

    def _split(self, x_BHKL: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x_BHKL[:, :, 0::2], x_BHKL[:, :, 1::2]

    def _join(self, a: jax.Array, b: jax.Array) -> jax.Array:
        batch, heads, half, length = a.shape
        both = jnp.stack([a, b], axis=3)
        shape = (batch, heads, 2 * half, length)
        return jnp.reshape(both, shape, out_sharding=over_batch(spec_of(a)[1]))


class Alibi(Position):
    """Takes a multiple of the distance from each score, in each head another (Press et al. 2022).

    The distance counts both ways, as in MosaicBERT.
    """

    def bias(
        self, *, query_positions_BL: jax.Array, key_positions_BS: jax.Array, num_heads: int
    ) -> jax.Array:
        distance_BLS = jnp.abs(query_positions_BL[:, :, None] - key_positions_BS[:, None, :])
        slopes_H = jnp.asarray(alibi_slopes(num_heads))
        return -slopes_H[:, None, None] * distance_BLS[:, None].astype(jnp.float32)


class T5(Position):
    """Adds a learned number for each head and range of distances (Raffel et al. 2020).

    One table serves all blocks. The scores keep their 1/sqrt(K), which T5 leaves out.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        shape = (_BUCKETS, config.num_attention_heads)
        self.embedding = truncated_normal(rngs, shape, stddev=config.initializer_range)

    def bias(
        self, *, query_positions_BL: jax.Array, key_positions_BS: jax.Array, num_heads: int
    ) -> jax.Array:
        distance_BLS = key_positions_BS[:, None, :] - query_positions_BL[:, :, None]
        distance_BLS = jnp.clip(distance_BLS, -_FARTHEST, _FARTHEST) + _FARTHEST
        # A number for each distance first, so that positions look up once.
        buckets_P = t5_buckets(np.arange(-_FARTHEST, _FARTHEST + 1))
        of_distance_PH = self.embedding[...].astype(jnp.float32)[buckets_P]
        return jnp.moveaxis(look_up(of_distance_PH, distance_BLS), -1, 1)


class RelativeKey(Position):
    """Adds the product of a query and a learned vector of the distance (Shaw et al. 2018).

    The form is that of transformers 4's `relative_key`: each block has a table of 2 x
    `max_position_embeddings` - 1 distances that its heads share, the distance is query - key, and
    what is added is divided by sqrt(K), too. Farther distances count as the farthest one.
    """

    is_per_block = True

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.farthest = config.max_position_embeddings - 1
        shape = (2 * self.farthest + 1, config.hidden_size // config.num_attention_heads)
        self.embedding = truncated_normal(rngs, shape, stddev=config.initializer_range)

    @staticmethod
    def rows_for(length: int, *, rows: int) -> np.ndarray:
        """New distances begin as the farthest one, as which they have counted so far."""
        return np.clip(np.arange(2 * length - 1) - (length - 1) + rows // 2, 0, rows - 1)

    @staticmethod
    def flops(model: ModelConfig, *, length: int, queries: int) -> int:
        return 2 * (2 * model.max_position_embeddings - 1) * model.hidden_size * queries

    @staticmethod
    def kept_distances(model: ModelConfig, *, length: int) -> float:
        return (2 * model.max_position_embeddings - 1) / length

    def query_scores(self, q_BHKL: jax.Array, **positions: jax.Array) -> jax.Array:
        rows_BLS = self._rows(**positions)
        found_BHSL = _pick(self._products(q_BHKL), jnp.swapaxes(rows_BLS, 1, 2))
        return jnp.swapaxes(found_BHSL, 2, 3)

    def _rows(self, query_positions_BL: jax.Array, key_positions_BS: jax.Array) -> jax.Array:
        distance_BLS = query_positions_BL[:, :, None] - key_positions_BS[:, None, :]
        return jnp.clip(distance_BLS, -self.farthest, self.farthest) + self.farthest

    def _products(self, x_BHKL: jax.Array) -> jax.Array:
        """Returns the products with every distance, divided by sqrt(K): float32 `[B, H, P, L]`."""
        table_PK = self.embedding[...].astype(x_BHKL.dtype)
        scaled_BHKL = x_BHKL * x_BHKL.shape[2] ** -0.5
        return jnp.einsum(
            "pk,bhkl->bhpl",
            table_PK,
            scaled_BHKL,
            preferred_element_type=jnp.float32,
            out_sharding=over_batch(spec_of(x_BHKL)[1]),
        )


class RelativeKeyQuery(RelativeKey):
    """Adds the product of the key and that vector, too (Huang et al. 2020):
    `relative_key_query`.
    """

    @staticmethod
    def flops(model: ModelConfig, *, length: int, queries: int) -> int:
        return RelativeKey.flops(model, length=length, queries=queries + length)

    @staticmethod
    def kept_distances(model: ModelConfig, *, length: int) -> float:
        return 2 * RelativeKey.kept_distances(model, length=length)

    def scores(self, q_BHKL: jax.Array, k_BHKS: jax.Array, **positions: jax.Array) -> jax.Array:
        rows_BLS = self._rows(**positions)
        return self.query_scores(q_BHKL, **positions) + _pick(self._products(k_BHKS), rows_BLS)


def lengthened(params: Any, model: ModelConfig) -> Any:
    """Returns parameters, or moments of them, whose tables serve the positions of `model`.

    They are of the same model with fewer positions. What a new row begins as is the rule of the
    kind (`Position.rows_for`); a kind without a table needs none.
    """
    kind = POSITIONS[model.position_embedding_type]

    def longer(path: tuple, leaf: Any) -> Any:
        if [entry.key for entry in path[-2:]] != ["position", "embedding"]:
            return leaf
        numbers = kind.rows_for(model.max_position_embeddings, rows=leaf.shape[0])
        if isinstance(leaf, np.ndarray):
            return leaf[numbers]
        # Whole on each device, since the rows of a table may lie on several.
        return jax.reshard(leaf, jax.P()).at[numbers].get(out_sharding=jax.P())

    return jax.tree_util.tree_map_with_path(longer, params)


def _pick(numbers_BHPL: jax.Array, rows_BSL: jax.Array) -> jax.Array:
    """Returns of each column of `numbers_BHPL` the rows `rows_BSL`: `[B, H, S, L]`."""
    return jnp.take_along_axis(numbers_BHPL, rows_BSL[:, None], axis=2, mode="clip")


def _frequencies(columns: int, *, theta: float) -> np.ndarray:
    """Returns the angle per position of each pair of columns, float32: theta^(-2i / columns)."""
    return (theta ** -(np.arange(0, columns, 2) / columns)).astype(np.float32)


def alibi_slopes(num_heads: int) -> np.ndarray:
    """Returns the slope of each head, float32: 2^(-8/H), 2^(-16/H), ...

    Where the number of heads is no power of two, those of the next lower one come first, and every
    second of those of the next higher one after them, as in the authors' code (ofirpress/
    attention_with_linear_biases) and transformers' Bloom.
    """

    def of_power(heads: int) -> np.ndarray:
        return 2.0 ** (-8.0 * np.arange(1, heads + 1) / heads)

    lower = 2 ** (num_heads.bit_length() - 1)
    more = of_power(2 * lower)[::2][: num_heads - lower]
    return np.concatenate([of_power(lower), more]).astype(np.float32)


# T5's own numbers: buckets of both directions, and the distance from which on all are alike.
_BUCKETS, _FARTHEST = 32, 128


def t5_buckets(distance: np.ndarray) -> np.ndarray:
    """Returns the bucket of each distance, key - query, as T5's encoder has it.

    Half of the buckets are for keys behind the query. Of a half, the first 8 are for one distance
    each, and the others grow by a constant factor up to 128. In NumPy, when the program is traced:
    a device's logarithm may round to the neighbouring bucket.
    """
    half = _BUCKETS // 2
    exact = half // 2
    far = np.abs(distance)
    ratio = np.log(np.maximum(far, exact) / exact) / np.log(_FARTHEST / exact)
    grown = np.minimum(exact + (ratio * (half - exact)).astype(np.int64), half - 1)
    return half * (distance > 0) + np.where(far < exact, far, grown)
