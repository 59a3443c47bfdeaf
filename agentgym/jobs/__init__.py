"""Whole jobs, put together from all the parts: train, evaluate."""
