"""The uses of a trained encoder: fine-tuning, prediction, vectors, filled words."""
