"""Uses of a trained encoder: vectors of texts, filled-in words, the outputs of a whole file."""
