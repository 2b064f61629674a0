"""The seam of attention: what an implementation can do, and which one serves a need.

Dims: B batch, H heads, K head size, L length of the queries, S length of the keys.
"""

from collections.abc import Iterator

import jax

from bert_jax.config import ModelConfig, TrainConfig
from bert_jax.model.attention.need import Need, needs
from bert_jax.model.dropout import DropoutKey
from bert_jax.model.mask import Mask
from bert_jax.model.sharding import device_kind
from bert_jax.registry import ATTENTION


class Implementation:
    """One entry of `registry.ATTENTION`: all compute the same, and each says what it can serve.

    The order of the table is that in which `auto` asks them.
    """

    # As the table has it.
    name = ""
    takes_bias = False
    takes_dropout = False
    # Whether any config may name it: what it cannot serve is served by another one, as ever.
    has_deputy = False

    def problem(self, need: Need) -> str | None:
        """Returns why it cannot serve a need, and what to do about it; None where it can."""
        if need.has_bias and not self.takes_bias:
            return "adds nothing to scores, as these positions or scores do: choose auto or plain"
        if need.dropout_rate and not self.takes_dropout:
            return (
                "drops no weights of attention: set model.attention_probs_dropout_prob=0, or "
                "choose auto"
            )
        return None

    def problems(self, config: TrainConfig) -> Iterator[str]:
        """Yields why a config may not name it, whatever the devices are."""
        if (problem := refusal(self.name, config)) is not None:
            yield problem

    def pays(self, need: Need) -> bool:
        """Returns whether `auto` takes it for a need that it can serve."""
        return True

    def chosen(self, need: Need) -> "Implementation":
        """Returns what serves a need where a config names this entry: windows are computed in
        blocks where that can be, all else by itself, and what it cannot serve as `auto` says.
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
        """Returns softmax(q k^T / sqrt(K) + bias) v, in which a query sees what `mask` allows.

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
        attend = self.chosen(need).attend
        return attend(q_BHKL, k_BHKS, v_BHKS, mask=mask, bias_BHLS=bias_BHLS, key=key, rate=rate)

    def attend(
        self,
        q_BHKL: jax.Array,
        k_BHKS: jax.Array,
        v_BHKS: jax.Array,
        *,
        mask: Mask,
        bias_BHLS: jax.Array | None,
        key: DropoutKey | None,
        rate: float,
    ) -> jax.Array:
        """Returns the same, computed here. The call is one that it can serve: an entry that
        takes no bias gets None, and one that takes no dropout a rate of 0.
        """
        raise NotImplementedError


class Auto(Implementation):
    """The entry `auto`: for each need the first entry that can serve it and pays."""

    name = "auto"
    takes_bias = takes_dropout = has_deputy = True

    def chosen(self, need: Need) -> Implementation:
        entries = (ATTENTION[name] for name in ATTENTION.names() if name != self.name)
        return next(e for e in entries if e.problem(need) is None and e.pays(need))


def serving(
    name: str, model: ModelConfig, *, length: int, device_kind: str, dtype: str
) -> dict[str, str]:
    """Returns the entry that serves each kind of layers in training, where a config says `name`."""
    return {
        kind: chosen.name if (chosen := _chosen(name, need)) else name
        for kind, need in needs(model, length=length, device_kind=device_kind, dtype=dtype).items()
    }


def refusal(name: str, config: TrainConfig, *, device_kind: str = "") -> str | None:
    """Returns why an entry cannot serve: it can do nothing for any layer of any phase. None where
    it can, and for those that leave what they cannot do to another one.

    Without a kind of devices only that is judged which holds on all.
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


def _chosen(name: str, need: Need) -> Implementation | None:
    """Returns what serves a need; None for a function of a user's own, which serves all."""
    entry = ATTENTION[name]
    return entry.chosen(need) if isinstance(entry, Implementation) else None


AUTO = Auto()
