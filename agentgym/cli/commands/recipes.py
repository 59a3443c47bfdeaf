"""`agentgym recipes`: the recipes that ship with agentgym."""

from __future__ import annotations

import argparse
import re
import textwrap
from pathlib import Path

from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.commands.text import table_lines
from agentgym.errors import UserError
from agentgym.run.recipe_files import extended_files
from agentgym.run.shipped_recipes import FOLDER, find_recipe, shipped_recipes

DESCRIPTION = """
List the recipes that ship with agentgym, or copy some with all that they extend. Commands that take a recipe take the
end of its name, too: `agentgym train qwen3_1.7b gpus/eight`. Nothing is overwritten.
"""
EXAMPLES = """
agentgym recipes
agentgym recipes qwen                          those whose name or text has this word
agentgym recipes --copy qwen3_1.7b             writes recipes/grpo/qwen3_1.7b.yaml, and what it extends
agentgym recipes --copy sft/qwen3_1.7b gpus/eight --folder mine
agentgym recipes --json
"""
TAKES_OVERRIDES = False


def add_arguments(parser: Parser) -> None:
    parser.add_argument("word", nargs="?", default="", metavar="WORD", help="list those that have it in name or text")
    parser.add_argument("--copy", nargs="+", default=[], metavar="NAME", help="copy these")
    parser.add_argument("--folder", default="recipes", metavar="DIR", help="where to (default: recipes)")
    parser.add_argument("--json", action="store_true", help="for scripts: JSON on standard output")


def run(arguments: argparse.Namespace, shell: Shell) -> int:
    if arguments.copy:
        written = _copied([find_recipe(name) for name in arguments.copy], Path(arguments.folder))
        if arguments.json:
            shell.say_json([str(path) for path in written])
        else:
            shell.say("\n".join(["written:", *(f"  {path}" for path in written)]))
        return 0
    rows = [
        [name, about]
        for name, path in shipped_recipes().items()
        if arguments.word in f"{name} {(about := _about(path))}"
    ]
    if not rows:
        raise UserError(f"no shipped recipe has {arguments.word!r} in its name or text; `agentgym recipes` lists all")
    if arguments.json:
        shell.say_json([{"name": name, "about": about, "path": str(shipped_recipes()[name])} for name, about in rows])
        return 0
    shell.say("\n".join([*table_lines(["recipe", "about"], rows), "", "agentgym train NAME, or --copy NAME"]))
    return 0


def _about(path: Path) -> str:
    """The first sentence of the comment that a recipe begins with, or its beginning."""
    comment = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("# ") or line.startswith("# fits:"):
            break
        comment.append(line[2:].strip())
    sentence = re.split(r"(?<=[\w)`]{3})\. ", " ".join(comment))[0].rstrip(".")
    return textwrap.shorten(sentence, 100, placeholder=" ...")


def _copied(recipes: list[Path], folder: Path) -> list[Path]:
    """Copy shipped recipes with all that they extend, as they lie to one another; returns the new files."""
    files = dict.fromkeys(file.resolve() for recipe in recipes for file in (recipe, *extended_files(recipe)))
    outside = [str(path) for path in files if not path.is_relative_to(FOLDER.resolve())]
    if outside:
        raise UserError(f"{outside[0]} does not ship with agentgym; `agentgym recipes` lists what does")
    targets = {path: folder / path.relative_to(FOLDER.resolve()) for path in files}
    if there := [str(target) for target in targets.values() if target.exists()]:
        raise UserError(f"{there[0]!r} exists, and nothing is overwritten; give another --folder")
    for path, target in targets.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    return list(targets.values())
