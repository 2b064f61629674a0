"""Optimiser, step, loop, checkpoints, evaluation."""
