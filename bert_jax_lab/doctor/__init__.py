"""Finds out in a minute, and without changing anything, what would go wrong with a run later."""
