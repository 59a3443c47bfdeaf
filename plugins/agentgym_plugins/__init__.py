"""Rewards, metric sinks and agents that ship with the library, as plugins."""
