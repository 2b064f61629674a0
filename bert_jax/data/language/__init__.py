"""Languages and their scripts: language codes, sentence splitting, and the scripts of a text."""
