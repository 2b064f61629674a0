"""The interface of attention: the needs an implementation supports, and the choice between them.

Dims: B batch, H heads, K head size, L length of the queries, S length of the keys.
"""

from collections.abc import Iterator
from typing import NamedTuple

import jax

from bert_jax.config import ModelConfig, TrainConfig
from bert_jax.model.attention.need import Need, needs
from bert_jax.model.dropout import DropoutKey
from bert_jax.model.mask import Mask
from bert_jax.model.sharding import device_kind
from bert_jax.registry import ATTENTION


class Call(NamedTuple):
    """The arrays of a call, for a need that an implementation supports."""

    q_BHKL: jax.Array
    k_BHKS: jax.Array
    v_BHKS: jax.Array
    mask: Mask
    # None for an implementation without bias support.
    bias_BHLS: jax.Array | None = None
    # The rate of dropout is 0 for an implementation without it, and in evaluation.
    key: DropoutKey | None = None
    rate: float = 0.0


class Implementation:
    """One entry of `registry.ATTENTION`: all compute the same function for different needs.

    `auto` tries the entries in registry order.
    """

    # The name in the registry.
    name = ""
    takes_bias = False
    takes_dropout = False
    # Whether any config may name it, because another entry serves the needs it does not support.
    has_deputy = False

    def problem(self, need: Need) -> str | None:
        """Returns why it does not support a need, with the fix; None if it does."""
        if need.has_bias and not self.takes_bias:
            return "does not support a bias of positions or scores: choose auto or plain"
        if need.dropout_rate and not self.takes_dropout:
            return (
                "does not support attention dropout: set model.attention_probs_dropout_prob=0, or "
                "choose auto"
            )
        return None

    def problems(self, config: TrainConfig) -> Iterator[str]:
        """Yields the reasons, on any device, for which a config may not name this entry."""
        if (problem := refusal(self.name, config)) is not None:
            yield problem

    def pays(self, need: Need) -> bool:
        """Returns whether `auto` chooses it for a need that it supports."""
        return True

    def chosen(self, need: Need) -> "Implementation":
        """Returns the implementation for a need if a config names this entry: `local` for windows
        that it supports, otherwise this one, and `auto` for needs that it does not support.
        """
        for each in (ATTENTION["local"], self):
            if each.problem(need) is None:
                return each
        return ATTENTION["auto"].chosen(need)

    def __call__(
        self,
        q_BHKL: jax.Array,
        k_BHKS: jax.Array,
        v_BHKS: jax.Array,
        *,
        mask: Mask,
        bias_BHLS: jax.Array | None = None,
        key: DropoutKey | None,
        dropout_rate: float,
    ) -> jax.Array:
        """Returns softmax(q k^T / sqrt(K) + bias) v, limited to the keys that `mask` allows.

        Scores and softmax are float32; the result has the type of `v_BHKS` and the shape of
        `q_BHKL`. `key=None` means evaluation.
        """
        rate = 0.0 if key is None else dropout_rate
        need = Need(
            length=k_BHKS.shape[3],
            head_size=q_BHKL.shape[2],
            window=mask.window,
            is_causal=mask.is_causal,
            reads_all=mask.is_square,
            has_bias=bias_BHLS is not None,
            dropout_rate=rate,
            device_kind=device_kind(),
            dtype=q_BHKL.dtype.name,
        )
        call = Call(q_BHKL, k_BHKS, v_BHKS, mask, bias_BHLS, key, rate)
        return self.chosen(need).attend(call)

    def attend(self, call: Call) -> jax.Array:
        """Returns the result of `__call__` for a supported need."""
        raise NotImplementedError


class Auto(Implementation):
    """The entry `auto`: chooses for each need the first entry that supports it and pays off."""

    name = "auto"
    takes_bias = takes_dropout = has_deputy = True

    def chosen(self, need: Need) -> Implementation:
        entries = (ATTENTION[name] for name in ATTENTION.names() if name != self.name)
        return next(e for e in entries if e.problem(need) is None and e.pays(need))


def serving(
    name: str, model: ModelConfig, *, length: int, device_kind: str, dtype: str
) -> dict[str, str]:
    """Returns the entry that serves each kind of layer in training if a config names `name`; a
    custom function serves all of them.
    """
    entry = ATTENTION[name]
    found = needs(model, length=length, device_kind=device_kind, dtype=dtype)
    if not isinstance(entry, Implementation):
        return dict.fromkeys(found, name)
    return {kind: entry.chosen(need).name for kind, need in found.items()}


def refusal(name: str, config: TrainConfig, *, device_kind: str = "") -> str | None:
    """Returns why an entry supports no layer of any phase; None if it supports some, and for
    entries that leave unsupported needs to others.

    Without `device_kind`, only reasons that hold for all devices count.
    """
    entry = ATTENTION[name]
    if not isinstance(entry, Implementation) or entry.has_deputy:
        return None
    found = [
        entry.problem(need)
        for i, phase in enumerate(config.phases)
        for need in needs(
            config.in_phase(i).model,
            length=phase.sequence_length,
            device_kind=device_kind,
            dtype=config.compute.dtype,
        ).values()
    ]
    return None if None in found or not found else found[0]


AUTO = Auto()
