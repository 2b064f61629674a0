"""Probes: metrics that describe what a trained model has learned, and how it computes."""
