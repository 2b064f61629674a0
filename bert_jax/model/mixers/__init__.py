"""Mixers, by which the tokens of a sequence exchange what they know (registry.MIXERS)."""

from bert_jax.model.mixers.mixer import Mixer as Mixer
