"""Turns the sequences of a corpus into pre-training batches."""
