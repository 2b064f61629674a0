"""Training objectives, one file each (registry.OBJECTIVES lists them)."""
