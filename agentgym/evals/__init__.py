"""Plays held-out tasks, rescores and compares saved evaluations, and audits environments without a model."""
