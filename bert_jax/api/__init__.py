"""The public Python API: what `import bert_jax` offers (docs/python.md)."""
