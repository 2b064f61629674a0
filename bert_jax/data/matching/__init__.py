"""Finds documents that are equal, nearly equal, or contain text of a test set."""
