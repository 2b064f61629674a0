"""Sources of text: finds their files, reads and unpacks the bytes, and extracts documents."""
