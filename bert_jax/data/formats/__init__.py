"""The input formats of a corpus that have no rows: one module each, listed in the registry."""
