"""The files of a run: checkpoints, logs and config, in a folder or a bucket."""
