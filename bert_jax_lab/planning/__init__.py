"""A run on paper: what it needs and takes on TPUs that one does not have."""
