"""Languages and their scripts: codes, sentences, and the scripts of a text."""
