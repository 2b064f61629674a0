"""Which documents are the same, nearly the same, or have text of a test set."""
