"""The policy that ships with the package: small enough to learn on a laptop CPU within minutes."""

from __future__ import annotations

from pathlib import Path

from agentgym.yaml import read_yaml


def policy_path() -> Path:
    """Its Hugging Face folder; docs/tiny_policy.md describes what it is and how it was made."""
    return Path(__file__).parent / "policy"


def policy_recipe() -> dict[str, object]:
    """The settings that it brings to a recipe."""
    return read_yaml(Path(__file__).parent / "recipe.yaml")
