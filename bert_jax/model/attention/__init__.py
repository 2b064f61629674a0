"""Attention (registry.ATTENTION): one seam, and a module for each implementation of it."""

from bert_jax.model.attention.implementation import Implementation as Implementation
from bert_jax.model.attention.need import Need as Need
