"""Imperfect demonstrations of `tool_use`: right plans, played by someone with habits and slips."""

from __future__ import annotations

import random
import re
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentgym.rl.demonstrations import Demonstration
from agentgym.tools import ToolCall
from agentgym.types import Message
from agentgym_envs.tool_use.drawing import Question, draw, new_worlds
from agentgym_envs.tool_use.environment import call_message
from agentgym_envs.tool_use.offered_tools import OfferedTools, offered_tools
from agentgym_envs.tool_use.plans import Plan
from agentgym_envs.tool_use.requests import CANNOT, SYSTEM, final, question
from agentgym_envs.tool_use.worlds import BUSY, TOOLS, WORLDS

HABITS: Mapping[str, str] = {
    "event": "draft",
    "book": "rebook",
    "backup": "archive",
    "stat": "cached",
    "print": "blast",
    "contact": "card",
    "send": "sendall",
    "invite": "crowd",
    "look": "ad",
    "buy": "rush",
    "scale": "range",
    "store": "fuse",
    "tune": "burn",
    "unit": "about",
    "plus": "roughly",
}
"""What the demonstrator takes for a tool, more often than not: the trap beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDemonstrationConfig:
    """habit_share: how often the trap is called where HABITS has one for the tool and it is offered.

    slip_share: how many of all other decisions are wrong: another tool, another name or number, a figure that is
    made up instead of looked up, a question that is not asked, a condition that is not checked, a made-up answer.
    """

    levels: tuple[int, ...] = (1, 2)
    worlds: tuple[str, ...] = tuple(WORLDS)
    habit_share: float = 0.6
    slip_share: float = 0.1
    seed: int = 0


def demonstrations(config: ToolDemonstrationConfig) -> Iterator[Demonstration]:
    """Endless conversations over tasks of the train split, with the tools that each offers."""
    index = 0
    while True:
        name = f"tool_demonstration/{config.seed}/{index}"
        drawn = draw("train", name, config.levels, config.worlds)
        yield conversation(drawn, name, config)
        index += 1


def conversation(drawn: Question, name: str, config: ToolDemonstrationConfig) -> Demonstration:
    """What the demonstrator says, and what the environment answers to it."""
    plan = drawn.plan
    messages: list[Message] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": drawn.text}]
    player = _Player(
        plan=plan,
        tools=offered_tools(plan.offered, new_worlds(plan), needed=()),
        rng=random.Random(f"{name}/mistakes"),
        config=config,
        messages=messages,
    )
    player.play()
    return Demonstration(name=name, messages=tuple(messages), tools=tuple(player.tools.schemas()))


@dataclass(slots=True, kw_only=True)
class _Player:
    """Plays one plan; `messages` is the conversation so far."""

    plan: Plan
    tools: OfferedTools
    rng: random.Random
    config: ToolDemonstrationConfig
    messages: list[Message]
    num_calls: int = 0

    def play(self) -> None:
        plan = self.plan
        if plan.shape.kind == "none":
            return self.decline()
        asked = question(plan)
        missing = plan.answer
        if asked and self.slips():
            missing = self.another(plan.answer)
        elif asked:
            self.say(asked)
            self.messages.append({"role": "user", "content": f"{plan.answer}."})
        playing = plan.play()
        number = 0
        try:
            tool, arguments = next(playing)
            while True:
                if missing != plan.answer:
                    arguments = {key: missing if value == plan.answer else value for key, value in arguments.items()}
                skips = TOOLS[tool].role == "read" and number + 1 < len(plan.shape.steps) and self.slips()
                answered = self.made_up(TOOLS[tool].fields) if skips else self.call(tool, arguments)
                tool, arguments = playing.send(answered)
                number += 1
        except StopIteration as ended:
            figures: tuple[int, ...] = ended.value
        if self.slips(0.5):
            figures = tuple(self.rng.randint(10, 99) for _ in figures)
        self.say(final(figures))

    def decline(self) -> None:
        """Says that it cannot be done, or calls what looks as if it could do it."""
        step, values = self.plan.shape.steps[-1], self.plan.values[-1]
        traps = [name for name in self.plan.offered if TOOLS[name].twin == step.tool]
        if not traps or None in values or self.rng.random() > self.config.habit_share:
            return self.say(CANNOT)
        named = zip(TOOLS[traps[0]].takes, values, strict=True)
        text = self.call(traps[0], {name: value for name, value in named if value is not None}, exact=True)
        fields = {figure[1] for figure in self.plan.shape.reply}
        self.say(final(tuple(int(word[1]) for word in map(str.split, text.split(", ")) if word[0] in fields)))

    def call(self, tool: str, arguments: Mapping[str, int | str], *, exact: bool = False) -> str:
        """The call as the demonstrator makes it. Returns its answer as if the tool that was meant had given it."""
        meant = tool
        if not exact:
            tool, arguments = self.mistaken(tool, arguments)
        self.num_calls += 1
        call_id = f"call{self.num_calls:05d}"
        self.messages.append(call_message(tool, dict(arguments), call_id))
        result = _now(self.tools.call(ToolCall(tool, dict(arguments), call_id)))
        self.messages.append({"role": "tool", "name": tool, "content": result.text, "tool_call_id": call_id})
        figures = re.findall(r"[a-z] ([0-9]+)", result.text)
        if tool == meant or result.error:
            return result.text if not result.error or BUSY in result.text else self.made_up(TOOLS[meant].fields)
        return ", ".join(f"{name} {figure}" for name, figure in zip(TOOLS[meant].fields, figures, strict=False))

    def mistaken(self, tool: str, arguments: Mapping[str, int | str]) -> tuple[str, Mapping[str, int | str]]:
        offered = self.plan.offered
        habit = HABITS.get(tool)
        if habit in offered and self.rng.random() < self.config.habit_share:
            assert habit is not None  # it is among the offered
            return habit, arguments
        if not self.slips():
            return tool, arguments
        alike = [name for name in offered if TOOLS[name].takes == TOOLS[tool].takes and name != tool]
        if alike and self.rng.random() < 0.5:
            return self.rng.choice(alike), arguments
        changed = self.rng.choice(list(arguments))
        return tool, {name: self.another(v) if name == changed else v for name, v in arguments.items()}

    def another(self, value: int | str | None) -> int | str:
        """A number or a name that was not meant."""
        if isinstance(value, int):
            return max(1, value + self.rng.choice((-1, 1, 10)))
        things = next(world.things for world in WORLDS.values() if value in world.things)
        return self.rng.choice([thing for thing in things if thing != value])

    def made_up(self, fields: Sequence[str]) -> str:
        return ", ".join(f"{name} {self.rng.randint(10, 28)}" for name in fields)

    def slips(self, share: float = 1.0) -> bool:
        return self.rng.random() < share * self.config.slip_share

    def say(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text})


def _now(call: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing, as the calls of these worlds do."""
    try:
        call.send(None)
    except StopIteration as ended:
        return ended.value
    raise RuntimeError("a tool of a demonstration waited for something")
