"""An environment to play by hand: one tool, a few turns, and what may go wrong in it."""

from __future__ import annotations

import time
from collections.abc import Iterable

from agentgym import Environment, Reply, Task, hookimpl
from agentgym.hooks import PluginRegistry


class Shop:
    """The world: its public methods are the tools."""

    def __init__(self) -> None:
        self.bought: list[str] = []

    def buy(self, item: str) -> str:
        """Buy an item."""
        self.bought.append(item)
        return f"one {item}"


class Shopping(Environment[Shop]):
    """Buy an apple, then say `done`."""

    name = "shopping"
    rewards = {"fruit": 1.0}
    max_turns = 3
    tools = Shop
    open_worlds = 0

    def __init__(self, *, limit: int = 2) -> None:
        """limit: of tasks."""
        self._limit = limit

    def tasks(self, split, seed=0) -> Iterable[Task]:
        for number in range(self._limit):
            prompt = ({"role": "user", "content": f"shop {number}"},)
            yield Task(task_id=f"shop-{number}", prompt=prompt, answer=("apple",), split=split)

    async def start(self, context) -> Shop:
        Shopping.open_worlds += 1
        return Shop()

    async def reply(self, context) -> Reply:
        said = context.messages[-1]["content"]
        if said == "crash":
            raise RuntimeError("the till is broken")
        if said == "block":
            time.sleep(0.4)  # of a careless author
        context.info["success"] = context.state.bought == ["apple"]
        return Reply(messages=({"role": "user", "content": "go on"},), done=said == "done")

    async def finish(self, context) -> None:
        Shopping.open_worlds -= 1


class Plugin:
    @hookimpl
    def environments(self):
        return {"shopping": Shopping}

    @hookimpl
    def rewards(self):
        from agentgym import Reward

        return {"fruit": Reward(name="fruit", function=lambda episode: float(episode.success), inline=True)}


def registry() -> PluginRegistry:
    found = PluginRegistry([])
    found.register(Plugin(), "shops")
    return found
