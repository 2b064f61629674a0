"""One update: the step, the state that it changes, optimisers and schedules."""
