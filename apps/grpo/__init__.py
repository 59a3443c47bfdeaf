"""Recipes of reinforcement learning, and `python -m apps.grpo.main --config FILE`."""
