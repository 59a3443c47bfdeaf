"""How a conversation looks in the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from agentgym.cli.shown_tools import tool_line
from agentgym.commands.shell import Shell
from agentgym.tools import Schema
from agentgym.types import Episode, Json, Message

_WIDTH = 9  # of the names of roles


def harmless(text: str) -> str:
    """Removes what would move the terminal's cursor or change its state: a policy may write anything."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


class Screen:
    """Writes messages, each under the name of its role."""

    def __init__(self, shell: Shell, policy: str) -> None:
        self._shell, self._policy = shell, policy

    def note(self, text: str) -> None:
        self._shell.say(self._shell.paint.dim(harmless(text)))

    def messages(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self.message(message)

    def message(self, message: Message) -> None:
        paint = self._shell.paint
        colour = {"assistant": paint.green, "tool": paint.yellow, "system": paint.dim}.get(message["role"], paint.cyan)
        name = {"assistant": self._policy, "tool": message.get("name", "tool")}.get(message["role"], message["role"])
        if message["content"] or not message.get("tool_calls"):
            self._shell.say(f"{colour(harmless(name).ljust(_WIDTH))} {_indented(message['content'])}")
        for call in message.get("tool_calls", []):
            self._shell.say(f"{colour(harmless(name).ljust(_WIDTH))} calls {_call_text(call)}")

    def thought(self, text: str) -> None:
        if text:
            self._shell.say(self._shell.paint.dim(f"{'thinks'.ljust(_WIDTH)} {_indented(text)}"))

    def tools(self, schemas: Sequence[Schema]) -> None:
        for schema in schemas:
            self._shell.say(f"  {tool_line(schema)}")

    def result(self, episode: Episode) -> None:
        """How the episode ended, and what it earned."""
        outcome = episode.outcome.value if episode.outcome else "not scored"
        stop = episode.stop.value if episode.stop else "-"
        paint = self._shell.paint
        known = {True: paint.green("success"), False: paint.red("no success"), None: "success unknown"}
        verdict = known[episode.known_success]
        self._shell.say(f"\nthe episode is over: {stop}, {outcome}, {verdict}")
        for name, value in episode.rewards.items():
            self._shell.say(f"  {name:<20} {'not scored' if value is None else f'{value:g}'}")
        if episode.reward is not None:
            self._shell.say(f"  {'reward':<20} {episode.reward:g}")
        if episode.error is not None:
            self._shell.say(harmless(f"  {episode.error.source}: {episode.error.kind}: {episode.error.message}"))


def _indented(text: str) -> str:
    return harmless(text).replace("\n", "\n" + " " * (_WIDTH + 1))


def _call_text(call: Json) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return harmless(json.dumps(call))
    return harmless(f"{function.get('name')} {json.dumps(function.get('arguments'), ensure_ascii=False)}")
