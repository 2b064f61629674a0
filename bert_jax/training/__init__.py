"""A training run: its loop, its data on the devices, its evaluation."""
