"""Rows of a corpus become batches of pre-training."""
