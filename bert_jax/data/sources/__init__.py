"""Sources of text: the files that they mean, the bytes of these, and documents out of them."""
