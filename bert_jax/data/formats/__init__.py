"""The input formats of a corpus: one file of records or text each, listed in the registry."""
