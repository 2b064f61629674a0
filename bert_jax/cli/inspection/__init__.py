"""Verbs that say what is, or what will be."""
