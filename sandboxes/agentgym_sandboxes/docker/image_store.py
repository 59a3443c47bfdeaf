"""Tasks' images on an engine: which are ours, when each was used last, what they take, and which one has to go.

The engine itself keeps the books, so that all processes and hosts that use it agree. An image of ours has a tag in
one of our repositories, and is tagged again at each use: the time of an image's last tag is that of its last use.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentgym.errors import InfraError
from agentgym_sandboxes.docker.engine import Engine
from agentgym_sandboxes.docker.failures import EngineError
from agentgym_sandboxes.docker.image_facts import Image, image_of
from agentgym_sandboxes.docker.profile import ORIGIN_LABEL, OWNER_LABEL
from agentgym_sandboxes.host.reaper import is_orphan

if TYPE_CHECKING:
    from docker import APIClient

log = logging.getLogger(__name__)

FAMILY = "agentgym"
CONTEXT_LABEL, BASES_LABEL = "agentgym.context", "agentgym.bases"
STORE_TIMEOUT_S, TOUCH_EVERY_S = 300.0, 10.0
GB = 1_000_000_000


def marker_of(name: str, family: str = FAMILY) -> str:
    """The tag of ours that an image has which we pulled by a name."""
    name = name if ":" in name.rpartition("/")[2] or "@" in name else f"{name}:latest"
    repository, _, rest = name.partition("@") if "@" in name else name.rpartition(":")
    return f"{family}-pulled/{repository.replace(':', '_')}:{rest.replace(':', '-')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredImage:
    """A task's image. name: what tasks call it, or the folder that it was built from. own_bytes: what it takes besides
    the image that it was built on. in_use: by a container, or by an image that was built on it."""

    image: Image
    name: str
    own_bytes: int
    in_use: bool


class ImageStore:
    """Of one engine. budget_bytes: what our images may take; None is no bound. num_kept: the latest used that stay even
    beyond it, because a session is about to begin in them. family: what the repositories of our tags begin with."""

    def __init__(
        self, engine: Engine, budget_bytes: int | None = None, num_kept: int = 6, family: str = FAMILY
    ) -> None:
        self._engine = engine
        self._family = family
        self._budget_bytes = budget_bytes
        self._num_kept = num_kept
        self._facts: dict[str, Image] = {}  # by id: layers and parents, which do not change
        self._touched_s: dict[str, float] = {}
        self._evicting = asyncio.Lock()

    def tag_of(self, key: str) -> str:
        """Of an image that is built."""
        return f"{self._family}-task:{key}"

    def marker_of(self, name: str) -> str:
        """Of an image that is pulled by a name."""
        return marker_of(name, self._family)

    async def used(self, image: Image, tag: str) -> None:
        """It is used now, if it is ours."""
        if tag in image.tags:
            await self._engine.tag(image.image_id, *tag.rsplit(":", 1))

    async def touch(self, image_id: str) -> None:
        """A session begins in it: where there is a budget, note that it is used, now and then."""
        now_s = time.monotonic()
        if self._budget_bytes is None or now_s - self._touched_s.get(image_id, -math.inf) < TOUCH_EVERY_S:
            return
        self._touched_s[image_id] = now_s
        image = await self._engine.image(image_id)
        for tag in [one for one in image.tags if self._is_ours(one)] if image is not None else []:
            await self._engine.tag(image_id, *tag.rsplit(":", 1))

    async def made(self, image: Image, tag: str) -> None:
        """It was pulled or built by us. What it takes too much is removed from among the others."""
        await self._engine.tag(image.image_id, *tag.rsplit(":", 1))
        if self._budget_bytes is not None:
            await self.evict(self._budget_bytes, num_kept=self._num_kept)

    async def listed(self) -> list[StoredImage]:
        """Ours, the least recently used first. Raises InfraError."""
        return await self._engine.call_long("list images", self._list, STORE_TIMEOUT_S)

    async def evict(self, to_bytes: int, *, num_kept: int = 0, say: Callable[[str], None] = log.info) -> int:
        """Remove the least recently used until ours take no more than that; how many were removed.

        What a container uses, or another image was built on, stays. Raises InfraError.
        """
        count = 0
        async with self._evicting:
            if not to_bytes:
                await self._engine.call_long("remove steps of builds", _remove_lost_steps, STORE_TIMEOUT_S)
            while True:
                found = await self.listed()
                total = sum(one.own_bytes for one in found)
                last = [one for one in found[: max(0, len(found) - num_kept)] if not one.in_use]
                if total <= to_bytes and (total or to_bytes or not last):
                    return count
                removed = 0
                for one in last:
                    if total <= to_bytes and to_bytes:
                        break
                    if await self._remove(one):
                        say(f"removed image {one.name}, {one.own_bytes / GB:.2f} GB")
                        total, removed = total - one.own_bytes, removed + 1
                count += removed
                if not removed:  # another round may remove what the removed ones were built on
                    log.debug("task images take %d bytes, and all that are left are in use", total)
                    return count

    async def _remove(self, stored: StoredImage) -> bool:
        try:
            await self._engine.call_long("remove an image", lambda client: self._drop(client, stored), STORE_TIMEOUT_S)
        except EngineError as error:
            log.debug("image %s stays: %s", stored.name, error)
            return False
        return True

    def _list(self, client: APIClient) -> list[StoredImage]:
        rows = client.images()
        sizes = {str(row["Id"]): int(row["Size"]) for row in rows}
        ours = [str(row["Id"]) for row in rows if any(self._is_ours(tag) for tag in row["RepoTags"] or ())]
        for image_id in [one for one in sizes if one in ours or one not in self._facts]:
            with contextlib.suppress(Exception):  # it was removed this moment
                self._facts[image_id] = image_of(client.inspect_image(image_id))
        self._facts = {one: fact for one, fact in self._facts.items() if one in sizes}
        used = {str(one.get("ImageID")) for one in client.containers(all=True)}
        used |= {str(row["ParentId"]) for row in client.images(all=True)}
        layers = {one: fact.layers for one, fact in self._facts.items() if fact.tags or fact.digests}
        found = []
        for image_id in ours:
            fact = self._facts.get(image_id)
            if fact is None:
                continue
            below = [sizes[one] for one, other in layers.items() if one != image_id and _is_base(other, fact.layers)]
            has_others = any(_is_base(fact.layers, other) for one, other in layers.items() if one != image_id)
            size = max(0, sizes[image_id] - max(below, default=0))
            in_use = has_others or image_id in used
            found.append(StoredImage(image=fact, name=self._name_of(fact), own_bytes=size, in_use=in_use))
        return sorted(found, key=lambda one: one.image.used)

    def _is_ours(self, tag: str) -> bool:
        return tag.startswith((f"{self._family}-task:", f"{self._family}-pulled/"))

    def _name_of(self, image: Image) -> str:
        folder = image.labels.get(CONTEXT_LABEL)
        pulled = [tag for tag in image.tags if not self._is_ours(tag)]
        marks = [tag.partition("-pulled/")[2] for tag in image.tags if self._is_ours(tag)]
        return folder or next(iter(pulled), marks[0])

    def _drop(self, client: APIClient, stored: StoredImage) -> None:
        """Our tags, the names by which we pulled, and what a build made on the way; another's name keeps the image."""
        image = stored.image
        names = [tag for tag in image.tags if self._is_ours(tag) or self.marker_of(tag) in image.tags]
        for name in names[:-1]:
            client.remove_image(name, noprune=True)
        is_last = len(names) == len(image.tags)
        client.remove_image(image.image_id if is_last else names[-1], noprune=True, force=is_last)
        if is_last and CONTEXT_LABEL in image.labels:
            remove_steps(client, image.parent, set(json.loads(image.labels.get(BASES_LABEL, "[]"))))


def _is_base(layers: tuple[str, ...], of: tuple[str, ...]) -> bool:
    return len(layers) < len(of) and of[: len(layers)] == layers


def remove_steps(client: APIClient, image_id: str, bases: set[str]) -> None:
    """Remove what a build left: images without a name, down to one that others use or that it began with."""
    from docker.errors import APIError

    while image_id:
        try:
            found = image_of(client.inspect_image(image_id))
            if found.image_id in bases or found.tags or found.digests:
                return
            client.remove_image(image_id, noprune=True)
        except APIError:  # others were built on it, or it is gone
            return
        image_id = found.parent


def _remove_lost_steps(client: APIClient) -> None:
    """What builds left that were killed in their last steps, which add our labels one by one."""
    for row in client.images(filters={"dangling": True, "label": [BASES_LABEL]}):
        if CONTEXT_LABEL not in row["Labels"]:
            remove_steps(client, str(row["Id"]), set(json.loads(row["Labels"][BASES_LABEL])))


async def remove_image(engine: Engine, image_id: str) -> None:
    """Fine when it is gone. Raises EngineError where a container uses it."""
    from docker.errors import ImageNotFound

    def remove(client: APIClient) -> None:
        with contextlib.suppress(ImageNotFound):
            client.remove_image(image_id, force=True)

    await engine.call_long("remove an image", remove, STORE_TIMEOUT_S)


async def remove_frozen(engine: Engine, ours: str, say: Callable[[str], None]) -> int:
    """Remove the frozen machines of dead owners; how many there were. ours: our own label, which is alive."""

    def frozen(client: APIClient) -> list[tuple[str, str]]:
        rows = client.images(filters={"label": [ORIGIN_LABEL]})
        return [(str(row["Id"]), str((row["Labels"] or {}).get(OWNER_LABEL))) for row in rows]

    count = 0
    for image_id, owner in await engine.call_long("list images", frozen, STORE_TIMEOUT_S):
        if owner != ours and is_orphan(owner):
            try:
                await remove_image(engine, image_id)
            except InfraError as error:
                log.info("a frozen machine was not removed: %s", error)
            else:
                say(f"removed frozen machine {image_id[7:19]} of {owner}, which is gone")
                count += 1
    return count
