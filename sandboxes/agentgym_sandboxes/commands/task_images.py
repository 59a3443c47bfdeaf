"""`agentgym sandbox images`: list, build ahead and prune the images of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Literal, cast

from agentgym.commands.parser import Parser
from agentgym.commands.text import table_lines
from agentgym.errors import InfraError, UserError
from agentgym.types import SandboxSpec
from agentgym_sandboxes.commands.action import Request
from agentgym_sandboxes.commands.images import in_use
from agentgym_sandboxes.docker.ahead import AT_A_TIME
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.contexts import BuildContext
from agentgym_sandboxes.docker.image_store import GB
from agentgym_sandboxes.docker.member import Member

SUMMARY = "list, build ahead and prune the images of tasks"
DESCRIPTION = """
List the images that were pulled or built for tasks, the one used longest ago first, with what each takes besides the
image that it was built on. --build and --env pull or build images before a run needs them, two at a time. --prune
removes them, but none that a container uses or another image was built on. Images that you pulled yourself are used,
and neither listed nor removed. Runs keep within sandbox.options.images_gb by themselves.
"""
EXAMPLES = """
agentgym sandbox images
agentgym sandbox images --build debian:12 tasks/hello/environment
agentgym sandbox images --env harbor --env.options.path tasks --tasks 20
agentgym sandbox images --prune --keep-gb 50
agentgym sandbox images --prune --json
"""
ENV_OVERRIDES = True


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--build", nargs="+", metavar="WHAT", help="images by name, or folders with a Dockerfile")
    parser.add_argument("--env", metavar="NAME", help="pull or build those of an environment's tasks")
    parser.add_argument("--split", choices=("train", "test"), default="test", help="of these tasks; default: test")
    parser.add_argument("--tasks", type=int, metavar="N", help="only those of the first N tasks")
    parser.add_argument("--prune", action="store_true", help="remove those that nothing uses")
    parser.add_argument("--keep-gb", type=float, default=0.0, metavar="GB", help="with --prune: keep the latest used")
    parser.add_argument("--json", action="store_true", help="for scripts: JSON on standard output")


async def run(request: Request) -> int:
    arguments, shell = request.arguments, request.shell
    if arguments.prune and (arguments.build or arguments.env):
        raise UserError("--prune removes images, and --build and --env make some; give one of them")
    if (arguments.keep_gb and not arguments.prune) or arguments.keep_gb < 0:
        raise UserError("--keep-gb is for --prune, and 0 or more")
    backend = request.backend("docker")
    assert isinstance(backend, DockerBackend)
    wanted = list(dict.fromkeys([*_named(arguments.build or []), *_of_tasks(request)]))
    failures: list[str] = []

    def say(text: str) -> None:
        shell.warn(text) if arguments.json else shell.say(text)

    shell.goes_on()
    async with in_use(backend), backend.engines() as members:
        for member in members:
            assert member.store is not None
            if arguments.prune:
                await member.store.evict(int(arguments.keep_gb * GB), say=say)
            failures += await _make(member, wanted, say)
        found = [(one.url, image) for one in members if one.store is not None for image in await one.store.listed()]
    rows = [
        {
            "engine": url,
            "name": image.name,
            "id": image.image.image_id,
            "digest": next(iter(image.image.digests), None),
            "gb": round(image.own_bytes / GB, 3),
            "used": image.image.used,
            "in_use": image.in_use,
        }
        for url, image in found
    ]
    if arguments.json:
        shell.say_json({"images": rows, "failed": failures})
    elif not rows:
        shell.say("no image was pulled or built for a task")
    else:
        cells = [
            [str(row["name"]), f"{row['gb']:.3f}", str(row["used"])[:16].replace("T", " "), str(row["id"])[7:19],
             "yes" if row["in_use"] else ""]
            for row in rows
        ]  # fmt: skip
        for line in table_lines(["image", "GB", "last used", "id", "in use"], cells):
            shell.say(line)
        shell.say(f"{len(rows)} images, {sum(image.own_bytes for _, image in found) / GB:.2f} GB")
    return 1 if failures else 0


def _named(names: list[str]) -> Iterator[str | BuildContext]:
    for name in names:
        yield BuildContext(str(Path(name).absolute())) if Path(name).is_dir() else name


def _of_tasks(request: Request) -> Iterator[str | BuildContext]:
    """Raises UserError for an environment whose tasks name no image."""
    arguments = request.arguments
    if arguments.env is None:
        if request.env_options:
            raise UserError("--env.options are for --env NAME, which is missing")
        return
    environment = request.registry.environment(arguments.env)(**request.env_options)
    tasks = environment.tasks(cast("Literal['train', 'test']", arguments.split))
    specs = [task.sandbox for task in islice(tasks, arguments.tasks) if task.sandbox is not None]
    found = [one for one in map(_image_of, specs) if one is not None]
    if not found:
        raise UserError(f"the tasks of {arguments.env!r} name no image; there is nothing to pull or build")
    yield from found


def _image_of(spec: SandboxSpec) -> str | BuildContext | None:
    if spec.context is not None:
        return BuildContext(str(Path(spec.context).absolute()), spec.dockerfile)
    return spec.image


async def _make(member: Member, wanted: list[str | BuildContext], say: Callable[[str], None]) -> list[str]:
    """What failed."""
    images, turns = member.images, asyncio.Semaphore(AT_A_TIME)
    assert images is not None

    async def make(what: str | BuildContext) -> str:
        async with turns:
            try:
                image = await images.provide(what, SandboxSpec().build_timeout_s)
            except InfraError as error:
                say(f"failed: {error}")
                return str(what)
        say(f"ready: {what}, {image.image_id[7:19]}")
        return ""

    return [name for name in await asyncio.gather(*map(make, wanted)) if name]
