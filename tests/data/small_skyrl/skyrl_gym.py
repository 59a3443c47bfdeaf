"""As much of skyrl-gym as an environment can be played by: its registry, and `make`."""

from dataclasses import dataclass
from typing import Any

registry: dict[str, "EnvSpec"] = {}


@dataclass
class EnvSpec:
    id: str
    entry_point: Any


def register(id, entry_point):
    registry[id] = EnvSpec(id, entry_point)


def make(id, **given):
    return registry[id].entry_point(**given)
