"""Checkpoints of other systems, in and out."""
