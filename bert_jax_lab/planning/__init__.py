"""Predicts memory, time and cost of a run on TPUs that are not here."""
