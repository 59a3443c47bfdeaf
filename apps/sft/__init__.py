"""Supervised fine-tuning of the policy that ships with the package."""
