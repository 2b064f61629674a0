"""Curves by which a run is judged: of runs of its kind, of papers, and of its own past."""
