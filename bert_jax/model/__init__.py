"""The encoder and its heads: jax and flax. Nothing here reads a file or prints."""
