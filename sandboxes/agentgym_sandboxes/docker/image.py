"""The image: pulled by digest, or built from a Debian root file system where nothing can be pulled; then packages."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from agentgym.errors import InfraError, UserError
from agentgym.sandbox import SandboxUnavailable
from agentgym_sandboxes.docker.engine import Engine
from agentgym_sandboxes.docker.image_facts import Image
from agentgym_sandboxes.docker.layer import PackageLayer, add_layer, build_command, tag_of
from agentgym_sandboxes.docker.requirements import Requirement
from agentgym_sandboxes.host.command import run_command

log = logging.getLogger(__name__)

REPOSITORY = "agentgym-sandbox"
BUILD_TIMEOUT_S = 1200.0
PULL_TIMEOUT_S = 1200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What the base image holds: a Python and nothing of ours, which comes with each container.

    packages: Debian's.
    """

    suite: str = "bookworm"
    variant: str = "minbase"
    packages: tuple[str, ...] = ("python3-minimal", "libpython3-stdlib")
    revision: int = 1

    @property
    def tag(self) -> str:
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def reference(self) -> str:
        return f"{REPOSITORY}:{self.tag}"


RECIPE = Recipe()


def reference_of(requirements: Sequence[Requirement]) -> str:
    """Our image with these Python packages; without any, the base."""
    return f"{REPOSITORY}:{tag_of(RECIPE.tag, requirements)}" if requirements else RECIPE.reference


class ImageChoice:
    """The image that a user asked for, or ours: the same one on every engine.

    reference: a name, or better what can't move: an id (sha256:...) or a name with a digest.
    """

    def __init__(self, reference: str | None, requirements: Sequence[Requirement] = ()) -> None:
        self.reference = reference or reference_of(requirements)
        self._is_ours = reference in (None, RECIPE.reference)
        self._requirements = requirements
        self._first: tuple[str, Image] | None = None

    @property
    def packages(self) -> tuple[str, ...]:
        """What was added to it, with versions, as far as an engine has said."""
        return self._first[1].packages if self._first else ()

    async def on(self, engine: Engine) -> str:
        """Its id on an engine. Raises SandboxUnavailable where it is missing, or is another one."""
        found = await engine.image(self.reference)
        if found is None:
            raise SandboxUnavailable(self.missing_text(engine.url))
        digest = self.reference.rpartition("@")[2]
        if digest.startswith("sha256:") and digest not in (found.image_id, *found.digests):
            raise SandboxUnavailable(
                f"the Docker engine at {engine.url} has an image {self.reference} with the id {found.image_id} and "
                f"the digests {', '.join(found.digests) or 'none'}, so it is another one. Pull it again."
            )
        if self._first is None:
            self._first = (engine.url, found)
            if not digest.startswith("sha256:") and not self._is_ours:
                log.warning("image %s is a name, which can move; give its id: %s", self.reference, found.image_id)
        first_url, first = self._first
        # The id alone can differ between two engines' ways of storing an image; its contents can't.
        if found.image_id != first.image_id and found.layers != first.layers:
            raise SandboxUnavailable(
                f"image {self.reference} is not the same on all engines: {first.image_id} at {first_url}, "
                f"{found.image_id} at {engine.url}. {self._cure('gives all of them one')}"
            )
        return found.image_id

    def missing_text(self, url: str) -> str:
        """Says that an engine does not have the image, and what to do."""
        what = f" (Python with {', '.join(map(str, self._requirements))})" if self._requirements else ""
        return f"the Docker engine at {url} has no image {self.reference}{what}. {self._cure('makes it, once')}"

    def _cure(self, effect: str) -> str:
        if self._is_ours:
            return f"`{build_command(self._requirements)}` {effect}."
        return f"`docker pull {self.reference}` there, or load it, or name another in sandbox.options.image."


async def provide_image(
    engines: Sequence[Engine],
    mirror: str,
    pull: str | None,
    say: Callable[[str], None],
    layer: PackageLayer | None = None,
) -> str:
    """Pull the image on every engine, or make it once and give it to all; its id.

    layer: the packages that it is to have; a base image that is there is taken then, unless pull names another.
    """
    first, *others = engines
    if pull is not None and layer is None:
        pulled = [await pull_image(engine, pull, say) for engine in engines]
        return pulled[0]
    reference = reference_of(layer.requirements if layer else ())
    if pull is not None:
        image = await pull_image(first, pull, say)
    elif layer is None or await first.image(RECIPE.reference) is None:
        image = await build_image(first, mirror, say)
    if layer is not None:
        await add_layer(first, RECIPE.reference, layer, reference, say)
        image = await _built_id(first, reference, say)
    if others:
        folder = Path(tempfile.mkdtemp(prefix="agentgym-image-"))
        try:
            archive = folder / "image.tar"
            await first.save(reference, archive, BUILD_TIMEOUT_S)
            for engine in others:
                say(f"giving it to the engine at {engine.url}")
                await engine.load(archive, BUILD_TIMEOUT_S)
                await _built_id(engine, reference, say)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, True)
    return image


async def pull_image(engine: Engine, reference: str, say: Callable[[str], None]) -> str:
    """Pull an image that has a `python3` (3.9 or later), by digest; its id."""
    if "@sha256:" not in reference:
        raise UserError(
            f"cannot pull {reference!r}: name the image by digest, as python@sha256:<64 hex digits>, so that "
            "every machine runs the same. `docker pull python:3.11-slim-bookworm` prints one."
        )
    say(f"pulling {reference}")
    await engine.pull(reference, PULL_TIMEOUT_S)
    await engine.tag(reference, REPOSITORY, RECIPE.tag)
    return await _built_id(engine, RECIPE.reference, say)


async def build_image(engine: Engine, mirror: str, say: Callable[[str], None]) -> str:
    """Build the image with debootstrap; its id. Needs root and debootstrap; about a minute."""
    missing = []
    if shutil.which("debootstrap") is None:
        missing.append("debootstrap is not installed (`sudo apt-get install debootstrap`)")
    if os.geteuid() != 0:
        missing.append("debootstrap needs root (`sudo -E $(command -v agentgym) sandbox build`)")
    if missing:
        raise UserError(
            f"the sandbox image can't be built: {'; '.join(missing)}. Or pull one instead: "
            "`agentgym sandbox build --pull python@sha256:<digest>`."
        )
    folder = Path(tempfile.mkdtemp(prefix="agentgym-image-"))
    try:
        root, archive = folder / "root", folder / "root.tar"
        say(f"building a Debian {RECIPE.suite} root file system from {mirror}")
        included = ",".join(RECIPE.packages)
        bootstrap = ["debootstrap", f"--variant={RECIPE.variant}", f"--include={included}", RECIPE.suite]
        await run_command([*bootstrap, str(root), mirror], BUILD_TIMEOUT_S)
        await asyncio.to_thread(_slim, root)
        pack = ["tar", "--numeric-owner", "--one-file-system", "-C", str(root), "-cf", str(archive), "."]
        await run_command(pack, BUILD_TIMEOUT_S)
        size_mib = archive.stat().st_size / (1 << 20)
        say(f"importing {size_mib:.0f} MiB as {RECIPE.reference}")
        await engine.import_archive(archive, REPOSITORY, RECIPE.tag, BUILD_TIMEOUT_S)
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, True)
    return await _built_id(engine, RECIPE.reference, say)


async def _built_id(engine: Engine, reference: str, say: Callable[[str], None]) -> str:
    image = await engine.image(reference)
    if image is None:
        raise InfraError(f"the engine took the image but does not have {reference}; build it again")
    say(f"the engine at {engine.url} has {reference} ({image.image_id})")
    return image.image_id


def _slim(root: Path) -> None:
    """Drop what no program needs: package lists and archives, manuals, translations."""
    for place in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(root / place, ignore_errors=True)
