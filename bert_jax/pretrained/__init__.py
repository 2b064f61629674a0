"""Trained parameters: loading them from anywhere, importing, exporting, describing them."""
