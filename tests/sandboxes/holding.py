"""Containers in which programs go on until their container is gone, so that a test need not be in time."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym.sandbox import Limits
from agentgym.types import Json
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.engine import Engine, OwnedContainer
from agentgym_sandboxes.docker.profile import container_settings

HOLD = "import os, time\nif os.uname().nodename == 'holding': time.sleep(600)\n"
LIMITS = Limits(wall_s=600.0)


@dataclass
class Holding:
    """Settings of containers. Programs that begin with HOLD are held in the next `num` that are made."""

    num: int

    def __call__(self, config: DockerConfig, image: str, owner: str, remapped: bool = False) -> dict[str, Json]:
        self.num -= 1
        settings = container_settings(config, image, owner, remapped)
        return {**settings, "Hostname": "holding"} if self.num >= 0 else settings


async def owned() -> list[OwnedContainer]:
    """The sandbox containers of the usual engine, anyone's."""
    engine = await Engine.connect(None, 10.0)
    try:
        return await engine.owned()
    finally:
        await engine.close()
