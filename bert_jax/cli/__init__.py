"""The command line: one module for each verb, its options and what it prints."""
