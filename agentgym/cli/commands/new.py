"""`agentgym new`: a package of your own, with tests and checks."""

from __future__ import annotations

import argparse
from pathlib import Path

from agentgym.cli.catalogue import OWN
from agentgym.cli.packages import TEMPLATES, PackagePlan, package_name, source_address
from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.components import SEAMS
from agentgym.errors import DISTRIBUTION, UserError

DESCRIPTION = """
Make an installable package: an environment that works, or another part of a run, typed, with tests, an entry point and
a CI workflow. Then change it into yours. Nothing is overwritten.
"""
EXAMPLES = """
agentgym new word_game
agentgym new short_answers --template reward
agentgym new stack_machine --template sandbox --folder packages/stack_machine
agentgym new lamps --template tools
agentgym new my_loss --template loss
agentgym new my_game --template openenv
agentgym new crosswords --source git+https://example.org/me/agentgym@v0.1
"""
TAKES_OVERRIDES = False


def add_arguments(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="of the package, its plugin and what it provides")
    parser.add_argument(
        "--template",
        choices=TEMPLATES,
        default="env",
        help="; ".join(f"{name}: {one.about[0].lower()}{one.about[1:]}" for name, one in TEMPLATES.items())
        + " (default env)",
    )
    parser.add_argument("--folder", metavar="DIR", help="where (default: a folder with the name, here)")
    parser.add_argument(
        "--source",
        default="",
        metavar="URL",
        help="from where the package and its CI install agentgym: git+https://..., a wheel, a checkout (default: "
        f"by its name, {DISTRIBUTION}, and the CI workflow says what to set)",
    )
    parser.add_argument("--json", action="store_true", help="for scripts: JSON on standard output")


def run(arguments: argparse.Namespace, shell: Shell) -> int:
    name = package_name(arguments.name)
    source = source_address(arguments.source) if arguments.source else ""
    plan = PackagePlan(name=name, template=arguments.template, folder=Path(arguments.folder or name), source=source)
    taken = next((record for record in shell.plugins().records if record.name in (name, plan.environment)), None)
    if taken is not None:
        raise UserError(f"there is a plugin {taken.origin} already; give another name")
    about = TEMPLATES[plan.template]
    if name in (SEAMS[about.kind].builtin if about.kind else OWN if plan.template == "command" else ()):
        raise UserError(f"there is a built-in {plan.template} {name!r}; give another name, such as my_{name}")
    written = plan.write()
    if arguments.json:
        files = [str(path) for path in written]
        shell.say_json({"name": name, "environment": plan.environment, "files": files, "commands": plan.commands})
        return 0
    shell.say(f"{about.about}, in {plan.folder}:")
    for path in written:
        shell.say(f"  {path.relative_to(plan.folder)}")
    folder = plan.folder if plan.folder.is_absolute() else f"./{plan.folder}"
    commands = [f"pip install -e '{folder}[test]'", f"pytest {plan.folder}", *plan.commands]
    shell.say("\n  ".join(["\nnext:", *commands]))
    if not source:
        shell.say(
            f"\nThe package depends on {DISTRIBUTION}, agentgym's name for pip. Until PyPI has it, set AGENTGYM in\n"
            ".github/workflows/check.yml to a URL, from which CI installs it. --source URL sets both."
        )
    return 0
