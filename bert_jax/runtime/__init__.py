"""Processes of a run: connection, signals, network failures, and the watchdog."""
