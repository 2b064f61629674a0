"""Mixers, which exchange information between the tokens of a sequence (registry.MIXERS)."""

from bert_jax.model.mixers.mixer import Mixer as Mixer
