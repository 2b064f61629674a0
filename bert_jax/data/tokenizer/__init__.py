"""Sub-words: trained, read and saved."""
