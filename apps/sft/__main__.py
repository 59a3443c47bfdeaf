"""`python -m apps.sft`: makes the tiny policy from scratch, and measures it."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from agentgym.commands.text import table_lines
from agentgym.config import apply_overrides, build, to_mapping
from agentgym.errors import UserError
from agentgym.yaml import dump_yaml, read_yaml
from apps.sft.measure import HEADER, measure, row
from apps.sft.train import PolicyRecipe, run

EXAMPLES = """examples:
  python -m apps.sft --out /tmp/policy                the policy that ships with the package
  python -m apps.sft --out /tmp/small --set steps=100 --set shape.num_hidden_layers=2
  python -m apps.sft --recipe apps/sft/gpu.yaml       on a GPU, in minutes
  python -m apps.sft --out /tmp/three --variant "plain" --variant "sure mix.code.habit_share=0.3"
                                                      several, one after the other, in /tmp/three/NAME
  agentgym eval /tmp/policy/policy --env code_exec    measure it again"""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m apps.sft",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EXAMPLES,
    )
    parser.add_argument("--out", help="the folder to write (default: policy)")
    parser.add_argument("--recipe", help="a YAML file; the defaults otherwise")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="set a field")
    parser.add_argument(
        "--variant", action="append", default=[], metavar="'NAME KEY=VALUE ...'", help="a recipe that differs by these"
    )
    parser.add_argument("--measure", metavar="POLICY", help="only measure the policy in this folder")
    parser.add_argument("--no-measure", action="store_true", help="end when the policy is written")
    parser.add_argument("--dry-run", action="store_true", help="show the finished recipe, then end")
    arguments = parser.parse_args()
    try:
        recipes = _recipes(arguments)
        if arguments.dry_run:
            for recipe in recipes.values():
                print(dump_yaml(to_mapping(recipe)))
            return 0
        measured: list[tuple[str, ...]] = []
        if arguments.measure:
            [recipe] = recipes.values()
            results = measure(Path(arguments.measure), recipe.measure, _say)
            measured = [(arguments.measure, *row(env, result)) for env, result in results.items()]
            recipes = {}
        for name, recipe in recipes.items():
            measured += _make(name, recipe, measured_too=not arguments.no_measure)
    except UserError as error:
        print(f"apps.sft: {error}", file=sys.stderr)
        return 2
    if measured:
        _say("\n" + "\n".join(table_lines(("policy", *HEADER), measured)))
    return 0


def _recipes(arguments: argparse.Namespace) -> dict[str, PolicyRecipe]:
    """The recipes by the name of their variant. Raises UserError for a mistake in any of them, before the first is
    begun.
    """
    given = read_yaml(arguments.recipe) if arguments.recipe else {}
    given = apply_overrides(given, [*arguments.set, *([f"out={arguments.out}"] if arguments.out else [])])
    base = build(PolicyRecipe, given)
    recipes = {}
    for variant in arguments.variant:
        name, *changes = variant.split()
        recipes[name] = build(PolicyRecipe, apply_overrides(given, [*changes, f"out={base.out}/{name}"]), variant)
    return recipes or {"": base}


def _make(name: str, recipe: PolicyRecipe, *, measured_too: bool) -> list[tuple[str, ...]]:
    if name:
        _say(f"== {name}")
    began = time.monotonic()
    folder = run(recipe, _say)
    size = sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6
    _say(f"wrote {folder} ({size:.1f} MB) in {time.monotonic() - began:.0f} s")
    if not measured_too:
        return []
    return [(name or recipe.out, *row(env, result)) for env, result in measure(folder, recipe.measure, _say).items()]


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
