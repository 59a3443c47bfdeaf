"""DAPO as a loop of its own: `python -m apps.dapo.main --config apps/dapo/math.yaml`."""
