"""`python -m apps.sft.main --config FILE section.field=value`: `agentgym sft`, under torchforge's name."""

from __future__ import annotations

import sys

from agentgym.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["sft", *sys.argv[1:]]))
