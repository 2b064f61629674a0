"""The formats of the files that a corpus is made of: one file each, and a line of the registry."""
