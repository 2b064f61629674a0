"""Memory of a step: whether it fits, and which settings would fit."""
