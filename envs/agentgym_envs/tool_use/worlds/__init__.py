"""The five worlds of `tool_use`, and the facts of their tools by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agentgym_envs.tool_use.worlds import calendar, files, mail, shop, units
from agentgym_envs.tool_use.worlds.base import BUSY, ToolFacts, World, harm, snapshot

WORLDS: Final[Mapping[str, type[World]]] = {
    "calendar": calendar.Calendar,
    "files": files.Files,
    "mail": mail.Mail,
    "shop": shop.Shop,
    "units": units.Units,
}
FACTS: Final[Mapping[str, Mapping[str, ToolFacts]]] = {
    "calendar": {facts.name: facts for facts in calendar.FACTS},
    "files": {facts.name: facts for facts in files.FACTS},
    "mail": {facts.name: facts for facts in mail.FACTS},
    "shop": {facts.name: facts for facts in shop.FACTS},
    "units": {facts.name: facts for facts in units.FACTS},
}
TOOLS: Final[Mapping[str, ToolFacts]] = {name: facts for world in FACTS.values() for name, facts in world.items()}
WORLD_OF: Final[Mapping[str, str]] = {name: world for world, tools in FACTS.items() for name in tools}

__all__ = ["BUSY", "FACTS", "TOOLS", "WORLDS", "WORLD_OF", "ToolFacts", "World", "harm", "snapshot"]
