"""Warns early if the losses of a run are not healthy."""
