"""What an engine says about an image."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentgym_sandboxes.docker.profile import ORIGIN_LABEL, PACKAGES_LABEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image that an engine has.

    layers: hashes of its contents, the same on every engine. packages: what was added to it, as numpy==2.3.1.
    env: its variables, as NAME=VALUE. volumes: its folders that the engine puts on a volume. is_frozen: it is a
    container of ours as it was at one moment. parent: what an engine's builder made it of. used: when it was last
    tagged, in ISO format, which for a task's image is when it was last used.
    """

    image_id: str
    layers: tuple[str, ...]
    digests: tuple[str, ...]
    packages: tuple[str, ...] = ()
    architecture: str = ""
    user: str = ""
    folder: str = ""
    env: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    is_frozen: bool = False
    tags: tuple[str, ...] = ()
    parent: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    used: str = ""


def image_of(found: Mapping[str, Any]) -> Image:
    """Of the engine's answer to an inspection."""
    config = found.get("Config") or {}
    labels = config.get("Labels") or {}
    if origin := labels.get(ORIGIN_LABEL):  # its own are those of our agent
        said = json.loads(origin)
        config = {"User": said["user"], "WorkingDir": said["folder"], "Env": said["env"]}
    return Image(
        image_id=str(found["Id"]),
        layers=tuple((found.get("RootFS") or {}).get("Layers") or ()),
        digests=tuple(text.partition("@")[2] for text in found.get("RepoDigests") or ()),
        packages=tuple(json.loads(labels.get(PACKAGES_LABEL, "[]"))),
        architecture=str(found.get("Architecture") or ""),
        user=str(config.get("User") or ""),
        folder=str(config.get("WorkingDir") or ""),
        env=tuple(config.get("Env") or ()),
        volumes=tuple(config.get("Volumes") or ()),
        is_frozen=ORIGIN_LABEL in labels,
        tags=tuple(found.get("RepoTags") or ()),
        parent=str(found.get("Parent") or ""),
        labels=labels,
        used=str((found.get("Metadata") or {}).get("LastTagTime") or ""),
    )
