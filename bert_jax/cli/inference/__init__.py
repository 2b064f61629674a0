"""Verbs that use a checkpoint on texts."""
