"""Compares the losses of a run with the losses of finished, comparable runs."""
