"""One update: the step, the state that it changes, optimizers and schedules."""
