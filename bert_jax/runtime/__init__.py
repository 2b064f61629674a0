"""Processes: how they meet and stop, and what ends one that hangs."""
