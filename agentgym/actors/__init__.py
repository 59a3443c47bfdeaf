"""Processes, actors and services on Monarch: spawned, watched, replaced and stopped."""
