"""Predicts memory, time and cost of a run on TPUs, without TPUs."""
