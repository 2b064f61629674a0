"""What computes attention (registry.ATTENTION lists it): one seam, and a module for each."""

from bert_jax.model.attention.implementation import Implementation as Implementation
from bert_jax.model.attention.need import Need as Need
