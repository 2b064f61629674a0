"""Pre-train BERT-family encoders with JAX, on one machine or on a TPU pod."""

__version__ = "0.1.0"
