"""The public Python API: the implementation of `import bert_jax`."""
