"""Reads the files of tasks, encodes their rows, and makes batches."""
