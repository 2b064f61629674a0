"""What would go wrong with a run later, found out in a minute and without changing anything."""
