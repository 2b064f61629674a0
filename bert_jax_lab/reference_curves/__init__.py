"""Compares the losses of a run with the losses of finished runs of the same kind."""
