"""Moves versions of the weights from the trainer to the generators."""
