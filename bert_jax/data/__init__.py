"""Turns text into batches with NumPy and (imported lazily) tf.data. Never imports jax."""
