"""The encoder and its heads: JAX and Flax code that reads no files and prints nothing."""
