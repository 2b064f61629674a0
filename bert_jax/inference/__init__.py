"""Uses of a trained encoder: embeddings, masked-token predictions, outputs of whole files."""
