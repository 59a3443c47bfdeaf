"""`python -m apps.grpo.main --config FILE section.field=value`: `agentgym train`, under torchforge's name."""

from __future__ import annotations

import sys

from agentgym.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
