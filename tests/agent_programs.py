"""Where `make test-agents` and `make test-agents-newest` install the command-line agents."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEWEST = os.environ.get("AGENTGYM_TEST_AGENTS", "")  # "-newest" for the newest versions instead of the tested ones
NPM = ROOT / f".npm-agents{NEWEST}" / "node_modules" / ".bin"
PYPI = ROOT / f".pypi-agents{NEWEST}"


def program(name: str) -> str:
    """The path of a command-line agent by the name of its program."""
    package = {"aider": "aider-chat", "openhands": "openhands"}.get(name)
    return str(PYPI / package / "bin" / name if package else NPM / name)
