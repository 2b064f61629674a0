"""Verbs that make a corpus, train and score."""
