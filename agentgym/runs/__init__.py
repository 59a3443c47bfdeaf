"""A run's folder: its config, metrics, episodes, checkpoints and state, and how they are read and drawn."""
