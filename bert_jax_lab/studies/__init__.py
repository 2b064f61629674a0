"""Studies: sets of runs as one value, and what follows from all of them together."""
