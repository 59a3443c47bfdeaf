"""A small OpenEnv server with the messages that OpenEnv's own sends: guess a number below 10, in words or by a tool."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

GUESS = {
    "title": "GuessAction",
    "type": "object",
    "additionalProperties": False,
    "properties": {"guess": {"type": "integer"}, "metadata": {"type": "object"}},
    "required": ["guess"],
}
TOOL = {
    "title": "CallToolAction",
    "type": "object",
    "properties": {"type": {"const": "call_tool"}, "tool_name": {"type": "string"}, "arguments": {"type": "object"}},
    "required": ["tool_name"],
}


@dataclass
class Guessing:
    """What it did is in `resets`, `steps` and `most`: sessions at a time. change: of each answer, to go wrong."""

    action: dict[str, Any] = field(default_factory=lambda: GUESS)
    max_sessions: int = 100
    change: Callable[[str, dict[str, Any], ServerConnection], Any] = lambda kind, answer, client: answer
    version: str = "0.3"
    resets: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    open: int = 0
    most: int = 0

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Its URL."""
        async with serve(self._session, "127.0.0.1", 0, process_request=self._http) as server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    def _http(self, client: ServerConnection, request: Request) -> Response | None:
        answers: dict[str, Any] = {
            "/health": {"status": "healthy"},
            "/metadata": {"name": "guessing", "description": "Guess a number below 10.", "version": self.version},
            "/schema": {"action": self.action, "observation": {}, "state": {}},
        }
        if request.path not in answers:
            return None
        body = json.dumps(answers[request.path]).encode()
        return Response(HTTPStatus.OK, "OK", Headers({"content-length": str(len(body)), "connection": "close"}), body)

    async def _session(self, client: ServerConnection) -> None:
        if self.open >= self.max_sessions:
            full = {"message": "at capacity", "code": "CAPACITY_REACHED", "max_sessions": self.max_sessions}
            await client.send(json.dumps({"type": "error", "data": full}))
            return
        self.open += 1
        self.most = max(self.most, self.open)
        game = {"number": 0, "step_count": 0, "episode_id": None}
        try:
            async for text in client:
                message = json.loads(text)
                if message["type"] == "close":
                    return
                answer = self.change(message["type"], self._answer(message, game), client)
                if asyncio.iscoroutine(answer):
                    answer = await answer
                await client.send(answer if isinstance(answer, str) else json.dumps(answer))
        finally:
            self.open -= 1

    def _answer(self, message: dict[str, Any], game: dict[str, Any]) -> dict[str, Any]:
        data = message.get("data", {})
        if message["type"] == "state":
            return {"type": "state", "data": {key: game[key] for key in ("episode_id", "step_count")}}
        if message["type"] == "reset":
            self.resets.append(data)
            game |= {"number": data["seed"] * 7 % 10, "step_count": 0, "episode_id": data["episode_id"]}
            return _observed({"hint": f"It leaves {game['number'] % 3} when divided by 3."}, 0.0, False)
        if data.get("type") == "list_tools":
            guess = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
            return _observed(
                {"tools": [{"name": "guess", "description": "Guess.", "input_schema": guess}]}, None, False
            )
        self.steps.append(data)
        game["step_count"] += 1
        guess = data.get("arguments", {}).get("number") if "tool_name" in data else data.get("guess")
        if not isinstance(guess, int) or guess > 9:
            errors = [{"loc": ["guess"], "msg": "Input should be less than 10"}]
            return {
                "type": "error",
                "data": {"message": "Invalid message", "code": "VALIDATION_ERROR", "errors": errors},
            }
        right = guess == game["number"]
        said = "right" if right else "too low" if guess < game["number"] else "too high"
        observation = (
            {"tool_name": "guess", "result": {"data": said}, "error": None} if "tool_name" in data else {"said": said}
        )
        return _observed(observation, 1.0 if right else -0.125, right)


def _observed(observation: dict[str, Any], reward: float | None, done: bool) -> dict[str, Any]:
    return {
        "type": "observation",
        "data": {"observation": {**observation, "metadata": {}}, "reward": reward, "done": done},
    }
