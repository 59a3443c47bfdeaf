"""`agentgym sandbox clean`: remove what killed runs left behind."""

from __future__ import annotations

from inspect import signature

from agentgym.commands.parser import Parser
from agentgym.errors import UserError
from agentgym_sandboxes.commands.action import Request
from agentgym_sandboxes.commands.images import image_backend, in_use

SUMMARY = "remove what dead owners left, and list it"
DESCRIPTION = """
Remove the containers, or control groups, whose owner, a process of this machine, is gone. What belongs to a
living process, or to one of another machine, is left alone. Runs do this too, when they start; with Docker, also
every minute. Volumes, the copies of folders that sessions have, are kept for the next run: --volumes removes those
that no container uses.
"""
EXAMPLES = """
agentgym sandbox clean
agentgym sandbox clean --volumes
agentgym sandbox clean --json
"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--sandbox", metavar="NAME", default="docker", help="default: docker")
    parser.add_argument("--volumes", action="store_true", help="also remove the volumes that no container uses")
    parser.add_argument("--json", action="store_true", help="for scripts: JSON on standard output")


async def run(request: Request) -> int:
    arguments, shell = request.arguments, request.shell
    backend, images = image_backend(request, "clean")
    if arguments.volumes and "volumes" not in signature(images.clean).parameters:
        raise UserError(f"sandbox {backend.name!r} has no volumes; leave --volumes out")
    also = {"volumes": True} if arguments.volumes else {}
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if not arguments.json:
            shell.say(text)

    shell.goes_on()
    async with in_use(backend):
        count = await images.clean(say, **also)
    if arguments.json:
        shell.say_json({"removed": count, "what": said})
    else:
        shell.say(f"removed {count} in all" if count else "nothing was left behind")
    return 0
