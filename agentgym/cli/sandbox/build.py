"""`agentgym sandbox build`: get the image that sandboxes run."""

from __future__ import annotations

from agentgym.cli.parser import Parser
from agentgym.cli.sandbox.action import Request, probe, width_of, wrap
from agentgym.cli.sandbox.images import image_backend, in_use
from agentgym.sandbox import SandboxUnavailable

SUMMARY = "get the image, once a machine"
DESCRIPTION = """
Get the image that sandboxes run, once a machine: pull it by digest, or build it from a Debian root file system,
which needs root and debootstrap and no registry.
"""
EXAMPLES = """
agentgym sandbox build
agentgym sandbox build --pull python@sha256:...
agentgym sandbox build --dry-run
"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--sandbox", metavar="NAME", default="docker", help="default: docker")
    parser.add_argument("--pull", metavar="IMAGE", help="the image with its digest; it must have a python3")
    parser.add_argument(
        "--dry-run", action="store_true", help="only say what would be done, and what there is now"
    )
    parser.add_argument("--json", action="store_true")


async def run(request: Request) -> int:
    arguments, shell = request.arguments, request.shell
    backend, images = image_backend(request, "build")
    if arguments.dry_run:
        how = (
            f"pull {arguments.pull}" if arguments.pull else "build a Debian root file system with debootstrap"
        )
        would = f"would {how} and import it for the sandbox {backend.name!r}; nothing was changed"
        try:
            there, now = True, (await probe(backend)).detail
        except SandboxUnavailable as error:
            there, now = False, str(error)
        if arguments.json:
            shell.say_json({"would": would, "available": there, "detail": now})
        else:
            shell.say(f"{would}\n{'ready now' if there else 'not ready now'}:\n{wrap(now, width_of(shell))}")
        return 0
    async with in_use(backend):
        image = await images.build(shell.warn, pull=arguments.pull)
    shell.say_json({"image": image}) if arguments.json else shell.say(f"image {image}")
    return 0
