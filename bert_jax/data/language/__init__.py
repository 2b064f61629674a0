"""Languages and their scripts: codes, sentences, and what the letters of a text say."""
