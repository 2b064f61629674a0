"""Converts text to a tokenized corpus on disk."""
