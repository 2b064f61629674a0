"""Reads and writes checkpoints of other libraries."""
