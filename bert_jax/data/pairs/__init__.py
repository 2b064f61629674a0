"""Pairs of texts: rows with two texts each, for vectors of texts."""
