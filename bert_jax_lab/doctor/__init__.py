"""Checks in a minute, without changing anything, what would go wrong later in a run."""
