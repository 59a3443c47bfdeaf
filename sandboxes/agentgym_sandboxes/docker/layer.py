"""An image with packages: the base with one more layer, which the engine builds without a registry or a network."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shlex
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym_sandboxes.docker.engine import Engine
from agentgym_sandboxes.docker.profile import PACKAGES_LABEL
from agentgym_sandboxes.docker.requirements import Requirement
from agentgym_sandboxes.docker.wheels import ImagePython, fetch

if TYPE_CHECKING:
    from docker import APIClient

LAYER_TIMEOUT_S = 1200.0
_REVISION = 1  # of the layer's recipe
_COMPILE = (
    "import compileall, py_compile; compileall.compile_dir({folder!r}, quiet=2, workers=0, "
    "invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)"
)
AskPython = Callable[[Engine, str], Awaitable[ImagePython]]
"""Finds out about the Python of an image that an engine has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageLayer:
    """What is added to a base image, and how the Python of that is asked about itself."""

    requirements: tuple[Requirement, ...]
    ask: AskPython


def tag_of(base_tag: str, requirements: Sequence[Requirement]) -> str:
    """The tag of a base with packages: the same for the same requirements, in whatever order and spelling."""
    text = json.dumps([base_tag, _REVISION, sorted(map(str, requirements))])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def build_command(requirements: Sequence[Requirement]) -> str:
    """What a person runs to get the image."""
    words = ["agentgym", "sandbox", "build"]
    return shlex.join([*words, "--packages", *map(str, requirements)] if requirements else words)


async def add_layer(engine: Engine, base: str, layer: PackageLayer, reference: str, say: Callable[[str], None]) -> None:
    """Give the engine an image `reference`: the base, by its name, with the packages."""
    python = await layer.ask(engine, base)
    folder = Path(tempfile.mkdtemp(prefix="agentgym-packages-"))
    try:
        site, context = folder / "site", folder / "context.tar"
        say(f"fetching {' '.join(map(str, layer.requirements))} for {python} with pip")
        if f"{sys.version_info[0]}.{sys.version_info[1]}" != ".".join(python.version.split(".")[:2]):
            say(
                f"note: pip runs on Python {sys.version_info[0]}.{sys.version_info[1]} and chooses dependencies that "
                "hang on the version of Python for that one"
            )
        installed = await fetch(python, layer.requirements, site)
        await asyncio.to_thread(_write_context, context, site, base, python.folder)
        say(f"adding {context.stat().st_size / (1 << 20):.0f} MiB to the image: {' '.join(installed)}")
        await engine.call_long(
            "build an image", lambda client: _build(client, context, reference, installed), LAYER_TIMEOUT_S
        )
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, True)
    loose = [str(one) for one in layer.requirements if not one.is_pinned]
    if loose:
        say(
            f"note: {', '.join(loose)} may be another version on another machine or day. For the same everywhere, "
            f"give: {shlex.join(installed)}"
        )


def _write_context(context: Path, site: Path, base: str, folder: str) -> None:
    """What the engine builds from. Any user may read the packages, whatever our umask is; no one may write them."""
    compile_them = _COMPILE.format(folder=folder)
    # Compiled by the image's Python, without -S its packages could run code here; nothing checks them again.
    dockerfile = "\n".join(
        [
            f"FROM {base}",
            "USER 0:0",
            f"COPY {json.dumps(['site', folder])}",
            f"RUN {json.dumps(['python3', '-s', '-S', '-c', compile_them])}",
        ]
    )

    def entry(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
        return info

    text = context.with_name("Dockerfile")
    text.write_text(dockerfile + "\n", encoding="utf-8")
    with tarfile.open(context, "w") as archive:
        archive.add(text, "Dockerfile", filter=entry)
        archive.add(site, "site", filter=entry)


def _build(client: APIClient, context: Path, reference: str, installed: Sequence[str]) -> None:
    from docker.errors import APIError

    with context.open("rb") as file:
        said = client.build(
            fileobj=file,
            custom_context=True,
            tag=reference,
            labels={PACKAGES_LABEL: json.dumps(installed)},
            network_mode="none",
            rm=True,
            forcerm=True,
            decode=True,
        )
        steps = ""
        for line in said:
            steps = (steps + line.get("stream", ""))[-1000:]
            if "error" in line:
                raise APIError(f"{line['error']}\n{steps}")
