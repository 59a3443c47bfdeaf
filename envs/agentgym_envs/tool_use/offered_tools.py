"""The tools of one episode: those of its worlds that the task offers, counted as they are used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from agentgym.errors import nearest
from agentgym.tools import Schema, Toolbox, ToolCall, ToolResult, Tools
from agentgym_envs.tool_use.worlds import BUSY, TOOLS, WORLD_OF, WORLDS, World

WITHHELD: Final = "done"


@dataclass(slots=True, kw_only=True)
class OfferedTools:
    """Offers some tools of several worlds. Implements `Tools`.

    needed: the tools that the task needs. withhold: every answer is the same text, whatever the call did.
    calls, wrong: how many, and how many failed or were not needed. traps: those that were called, in order.
    """

    offered: tuple[str, ...]
    bound: Mapping[str, Tools]
    needed: tuple[str, ...]
    withhold: bool = False
    calls: int = 0
    wrong: int = 0
    traps: list[str] = field(default_factory=list)

    def schemas(self) -> Sequence[Schema]:
        return schemas_of(self.offered)

    def is_parallel_safe(self, name: str) -> bool:
        return False

    async def call(self, call: ToolCall) -> ToolResult:
        self.calls += 1
        if call.name not in self.offered:
            text = f"Error: no tool {call.name[:40]!r}.{nearest(call.name[:40], self.offered)}"
            result = ToolResult(text, error="unknown_tool")
        else:
            result = await self.bound[WORLD_OF[call.name]].call(call)
            if TOOLS[call.name].is_trap:
                self.traps.append(call.name)
        failed = result.error and BUSY not in result.text
        self.wrong += bool(failed or call.name not in self.needed)
        return replace(result, text=WITHHELD) if self.withhold else result


def offered_tools(
    offered: tuple[str, ...], worlds: Mapping[str, World], *, needed: tuple[str, ...], withhold: bool = False
) -> OfferedTools:
    bound = {name: Toolbox.of(WORLDS[name]).bind(world) for name, world in worlds.items()}
    return OfferedTools(offered=offered, bound=bound, needed=needed, withhold=withhold)


@lru_cache(maxsize=4096)
def schemas_of(offered: tuple[str, ...]) -> tuple[Schema, ...]:
    """The schemas in the order in which the tools are offered; the same object for the same tools."""
    by_name = _all_schemas()
    return tuple(by_name[name] for name in offered)


@lru_cache(maxsize=1)
def _all_schemas() -> Mapping[str, Schema]:
    found: dict[str, Schema] = {}
    for world in WORLDS.values():
        for schema in Toolbox.of(world).bind(world("schemas")).schemas():
            function = schema["function"]
            assert isinstance(function, Mapping)
            found[str(function["name"])] = schema
    return found
