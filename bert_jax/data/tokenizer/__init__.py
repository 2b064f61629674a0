"""Tokenizers: training, loading and saving."""
