"""The Python face: what `import bert_jax` offers (docs/python.md). Nothing below imports it."""
