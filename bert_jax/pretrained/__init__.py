"""Trained parameters: loading, averaging, exporting, and model cards."""
