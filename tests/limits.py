"""How long a test waits before it calls a process hung."""

# Seconds. A machine that does other things beside is slow, not wrong: this limit only ends what
# would never end. Where a time is a promise, its test measures and compares it.
HUNG = 600.0
