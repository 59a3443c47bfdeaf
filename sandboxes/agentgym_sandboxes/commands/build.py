"""`agentgym sandbox build`: get the image that sandboxes run."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from agentgym.commands.parser import Parser
from agentgym.commands.text import wrap
from agentgym.errors import UserError
from agentgym.sandbox import SandboxUnavailable
from agentgym.types import Json
from agentgym_sandboxes.commands.action import Request, probe
from agentgym_sandboxes.commands.images import image_backend, in_use

SUMMARY = "get the image, once per machine"
DESCRIPTION = """
Get the image that sandboxes run, once per machine: pull it by digest, or build it from a Debian root file system,
which needs root and debootstrap and no registry. With --packages, one more image is made, of that one and Python
packages that pip fetches here; runs that name the same packages in sandbox.options.packages use it.
"""
EXAMPLES = """
agentgym sandbox build
agentgym sandbox build --pull python@sha256:...
agentgym sandbox build --packages numpy==2.3.1 sympy
agentgym sandbox build --dry-run
"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--sandbox", metavar="NAME", default="docker", help="default: docker")
    parser.add_argument("--pull", metavar="IMAGE", help="the image with its digest; it must have a python3")
    parser.add_argument(
        "--packages",
        nargs="+",
        metavar="REQUIREMENT",
        help="the same as sandbox.options.packages: Python packages in the image, as numpy==2.3.1",
    )
    parser.add_argument("--dry-run", action="store_true", help="only show what would be done, and what is there now")
    parser.add_argument("--json", action="store_true", help="for scripts: JSON on standard output")


async def run(request: Request) -> int:
    request = _with_packages(request)
    arguments, shell = request.arguments, request.shell
    backend, images = image_backend(request, "build")
    if arguments.dry_run:
        how = f"pull {arguments.pull}" if arguments.pull else "build a Debian root file system with debootstrap"
        packages = cast("list[str]", request.options.get("packages") or [])
        if packages:
            how = how if arguments.pull else f"take the base image, or {how} if it is missing"
            how = f"{how}, fetch {' '.join(packages)} with pip, add that"
        would = f"would {how} and import it for the sandbox {backend.name!r}; nothing was changed"
        try:
            there, now = True, (await probe(backend)).detail
        except SandboxUnavailable as error:
            there, now = False, str(error)
        if arguments.json:
            shell.say_json({"would": would, "available": there, "detail": now})
        else:
            shell.say(f"{would}\n{'ready now' if there else 'not ready now'}:\n{wrap(now, shell.width)}")
        return 0
    async with in_use(backend):
        image = await images.build(shell.warn, pull=arguments.pull)
    shell.say_json({"image": image}) if arguments.json else shell.say(f"image {image}")
    return 0


def _with_packages(request: Request) -> Request:
    """The request with --packages among its options."""
    packages: list[Json] | None = request.arguments.packages
    if packages is None:
        return request
    if "packages" in request.options:
        raise UserError("--packages and --sandbox.options.packages are one setting; give one of the two")
    return replace(request, options={**request.options, "packages": packages})
