"""Files of tasks become rows of ids, and rows become batches."""
