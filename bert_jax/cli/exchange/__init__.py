"""Verbs that bring checkpoints in and out, and list them."""
