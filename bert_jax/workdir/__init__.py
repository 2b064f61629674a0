"""A run on disk: checkpoints, logs, config, and what a later process makes of them."""
