"""PPO in as few lines as it takes: `python -m apps.ppo_minimal.main --config apps/ppo_minimal/math.yaml`."""
