"""The verbs of the laboratory."""
