"""Text becomes a tokenised corpus on disk."""
