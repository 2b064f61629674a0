"""Studies: sets of runs that are described, executed and evaluated together."""
