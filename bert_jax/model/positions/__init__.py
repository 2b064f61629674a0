"""Kinds of position, which tell a model the order of its tokens (registry.POSITIONS lists them)."""

from bert_jax.model.positions.position import Position as Position
