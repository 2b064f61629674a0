"""Parts of a model that stand on the encoder, one file each (registry.PARTS lists them)."""
