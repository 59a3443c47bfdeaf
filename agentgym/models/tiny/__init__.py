"""The policy that ships with the package: small enough to learn on a laptop CPU within minutes."""

from __future__ import annotations

from pathlib import Path


def policy_path() -> Path:
    """Its Hugging Face folder. `docs/tiny_policy.md` says what it is and how it was made."""
    return Path(__file__).parent / "policy"
