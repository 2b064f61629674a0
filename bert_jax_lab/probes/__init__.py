"""Probes: numbers that say what a trained model has learned, and how it gets there."""
