"""The base of a model's heads ("parts"), which read the encoder's output.

Dims: B batch, L length, R positions that are read, D width.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from flax import nnx

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.model.dropout import DropoutKey
from bert_jax.model.layers import Embed

# What `Part.positions` returns for a part that reads whole rows.
EVERY = "every position"


class Context(NamedTuple):
    """The values that a part may use besides the positions that it reads."""

    batch: Mapping[str, jax.Array]
    # The outputs of the parts before it.
    outputs: Mapping[str, Any]
    # The word embedding, which is also the output matrix if it is tied.
    word: Embed
    # The dropout key of the heads; None means evaluation.
    key: DropoutKey | None
    dropout_rate: float
    # Slices in which a loss computes scores over the vocabulary; 1: no slices.
    loss_slices: int = 1


class Part:
    """One entry of `registry.PARTS`: its parameters, the positions it reads and its outputs."""

    # The part that this one builds on: it reads the outputs of that part, and no positions.
    needs: str | None = None
    # Path of a bias over the vocabulary in its parameters; None if it has no such bias.
    output_bias: tuple[str, ...] | None = None

    def of(self, config: ModelConfig) -> "Part":
        """Returns the part for a model of this config: this one, unless a field chooses another."""
        return self

    def build(self, config: ModelConfig, head: HeadConfig, *, rngs: nnx.Rngs) -> nnx.Module:
        """Returns the module with the parameters: the subtree with the part's name."""
        raise NotImplementedError

    def positions(self, batch: Mapping[str, jax.Array]) -> jax.Array | str | None:
        """Returns the positions `[B, R]` to read in each row, `EVERY`, or None to skip the part.

        The last block of the encoder computes only the positions that parts read.
        """
        raise NotImplementedError

    def __call__(
        self, module: Any, x_BRD: jax.Array | None, context: Context
    ) -> dict[str, jax.Array]:
        """Returns the part's outputs by name; `x_BRD` is None where it `needs` another part."""
        raise NotImplementedError
