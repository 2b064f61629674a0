"""Attention (registry.ATTENTION): one interface, and one module per implementation."""

from bert_jax.model.attention.implementation import Call as Call
from bert_jax.model.attention.implementation import Implementation as Implementation
from bert_jax.model.attention.need import Need as Need
