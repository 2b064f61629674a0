"""Text becomes batches: NumPy and (lazily) tf.data. Nothing here imports jax."""
