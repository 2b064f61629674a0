"""A part of a model: something with parameters that reads the encoder's output.

Dims: B batch, L length, R positions that are read, D width.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from flax import nnx

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.model.dropout import DropoutKey
from bert_jax.model.layers import Embed

# What `Part.positions` returns for a part that reads the whole row.
EVERY = "every position"


class Context(NamedTuple):
    """The values that a part may look at beside the positions that it reads."""

    batch: Mapping[str, jax.Array]
    # What the parts before it gave.
    outputs: Mapping[str, Any]
    # The word embedding, which is the matrix of a tied output.
    word: Embed
    # The dropout key of the heads; None means evaluation.
    key: DropoutKey | None
    dropout_rate: float
    # In how many slices a loss reads scores over the vocabulary; 1: whole.
    loss_slices: int = 1


class Part:
    """One entry of `registry.PARTS`: how it is built, where it reads, and what it makes of that."""

    # The part that it stands on: it reads that part's outputs instead of positions of its own.
    needs: str | None = None
    # Where its parameters have a bias over the vocabulary: names that lead there. None has none.
    output_bias: tuple[str, ...] | None = None

    def of(self, config: ModelConfig) -> "Part":
        """Returns the part as a model of this config has it: this one, unless a field chooses."""
        return self

    def build(self, config: ModelConfig, head: HeadConfig, *, rngs: nnx.Rngs) -> nnx.Module:
        """Returns the module that holds the parameters: the subtree of the part's name."""
        raise NotImplementedError

    def positions(self, batch: Mapping[str, jax.Array]) -> jax.Array | str | None:
        """Returns which positions `[B, R]` of each row it reads, `EVERY`, or None to be left out.

        The last block of the encoder computes no more positions than are read.
        """
        raise NotImplementedError

    def __call__(
        self, module: Any, x_BRD: jax.Array | None, context: Context
    ) -> dict[str, jax.Array]:
        """Returns the part's outputs by name; `x_BRD` is None where it `needs` another part."""
        raise NotImplementedError
