"""The heads of a model ("parts"), one file each (registry.PARTS lists them)."""
