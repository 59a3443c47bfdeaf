"""`python -m apps.sft`: makes a small policy for `code_exec` from scratch."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from agentgym.config import apply_overrides, build, to_mapping
from agentgym.errors import UserError
from agentgym.yaml import dump_yaml, read_yaml
from apps.sft.train import SftRecipe, run


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m apps.sft",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n"
        "  python -m apps.sft --out /tmp/policy            the policy that ships with the package\n"
        "  python -m apps.sft --out /tmp/small --set steps=100 --set shape.num_hidden_layers=2\n"
        "  agentgym eval /tmp/policy/policy --env code_exec   measure it",
    )
    parser.add_argument("--out", default="policy", help="the folder to write (default: policy)")
    parser.add_argument("--recipe", help="a YAML file; the defaults otherwise")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="set a field")
    parser.add_argument("--dry-run", action="store_true", help="show the finished recipe, then end")
    arguments = parser.parse_args()
    try:
        given = read_yaml(arguments.recipe) if arguments.recipe else {}
        recipe = build(SftRecipe, apply_overrides(given, [*arguments.set, f"out={arguments.out}"]))
        if arguments.dry_run:
            print(dump_yaml(to_mapping(recipe)))
            return 0
        began = time.monotonic()
        folder = run(recipe, lambda text: print(text, flush=True))
    except UserError as error:
        print(f"apps.sft: {error}", file=sys.stderr)
        return 2
    size = sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6
    print(f"wrote {folder} ({size:.1f} MB) in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
