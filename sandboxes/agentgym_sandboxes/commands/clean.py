"""`agentgym sandbox clean`: remove what killed runs left behind."""

from __future__ import annotations

from agentgym.commands.parser import Parser
from agentgym_sandboxes.commands.action import Request
from agentgym_sandboxes.commands.images import image_backend, in_use

SUMMARY = "remove what dead owners left, and list it"
DESCRIPTION = """
Remove the containers, or control groups, whose owner, a process of this machine, is gone. What belongs to a
living process, or to one of another machine, is left alone. Runs do this too, when they start; with Docker, also
every minute.
"""
EXAMPLES = """
agentgym sandbox clean
agentgym sandbox clean --json
"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--sandbox", metavar="NAME", default="docker", help="default: docker")
    parser.add_argument("--json", action="store_true", help="for scripts: JSON on standard output")


async def run(request: Request) -> int:
    arguments, shell = request.arguments, request.shell
    backend, images = image_backend(request, "clean")
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if not arguments.json:
            shell.say(text)

    shell.goes_on()
    async with in_use(backend):
        count = await images.clean(say)
    if arguments.json:
        shell.say_json({"removed": count, "what": said})
    else:
        shell.say(f"removed {count} in all" if count else "nothing was left behind")
    return 0
