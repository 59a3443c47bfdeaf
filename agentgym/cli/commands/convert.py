"""`agentgym convert`: a recipe of ours from one of torchforge."""

from __future__ import annotations

import argparse
from pathlib import Path

from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.errors import UserError

DESCRIPTION = """
Write a recipe from one of torchforge: names and values converted, `${...}` replaced by what it refers to, and a comment
for everything that has no counterpart. It is printed, or written to the file that --out names. What the recipe still
needs before it builds is said on standard error, and the exit code is 1 then.
"""
EXAMPLES = """
agentgym convert qwen3_1_7b.yaml
agentgym convert qwen3_1_7b.yaml --out converted.yaml
"""
TAKES_OVERRIDES = False


def add_arguments(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="torchforge's recipe")
    parser.add_argument("--out", metavar="FILE", help="write the recipe there; a file that exists is left alone")


def run(arguments: argparse.Namespace, shell: Shell) -> int:
    from agentgym.run.layers import finish_recipe
    from agentgym.run.torchforge_recipe import convert
    from agentgym.yaml import read_yaml

    made = convert(read_yaml(arguments.file), arguments.file)
    text = made.text(Path(arguments.file).name)
    if arguments.out:
        try:
            with Path(arguments.out).open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise UserError(f"can't write {arguments.out}: {error.strerror}; give another file as --out") from None
        command = "sft" if "sft" in made.recipe else "train"
        shell.say(f"{arguments.out}: start it with `agentgym {command} {arguments.out}`")
    else:
        shell.say(text.rstrip())
    try:
        finish_recipe(made.recipe, where=arguments.out or "the recipe", plugins=shell.plugins)
    except UserError as error:
        shell.warn(f"It does not build yet: {error}")
        return 1
    return 0
