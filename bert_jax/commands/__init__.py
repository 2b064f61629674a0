"""Verbs of the command line that would crowd `__main__.py`: their options, and what they print."""
