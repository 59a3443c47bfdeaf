"""OpenEnv's messages over a WebSocket, and whose fault it is where an answer is not one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from agentgym.errors import InfraError
from agentgym.types import Json

MAX_FRAME_BYTES: Final = 100 * 2**20  # as OpenEnv's own client
CONNECT_S: Final = 10.0
_ANSWERS: Final = {"reset": "observation", "step": "observation", "state": "state"}


class Refused(Exception):
    """The server does not allow an action: the policy's mistake. The session goes on. fields: the wrong ones."""

    def __init__(self, message: str, fields: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.fields = fields


class ServerFault(RuntimeError):
    """The server broke OpenEnv's protocol: the environment's fault, and the same when it is played again."""


class ConnectionLost(InfraError):
    """The session is gone, and what was played in it."""


class ServerFull(InfraError):
    """All sessions of the server are in use. limit: how many it allows; 0 where it does not say."""

    def __init__(self, message: str, limit: int) -> None:
        super().__init__(message)
        self.limit = limit


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer to `reset` or `step`. reward: None where the server gives none for it."""

    observation: Mapping[str, Any]
    reward: float | None
    done: bool

    @classmethod
    def of(cls, data: Any, where: str) -> Answered:
        """where: the beginning of an error. Raises ServerFault that names the field."""
        observation, reward, done = (data.get(name) for name in ("observation", "reward", "done"))
        if not isinstance(observation, dict):
            raise ServerFault(f"{where}: the field `observation` is {observation!r:.80}, not an object")
        if reward is not None and (not isinstance(reward, int | float) or not math.isfinite(reward)):
            raise ServerFault(f"{where}: the field `reward` is {reward!r:.80}, not a finite number or null")
        if not isinstance(done, bool):
            raise ServerFault(f"{where}: the field `done` is {done!r:.80}, not true or false")
        return cls(observation, None if reward is None else float(reward), done)

    def is_like(self, other: Answered) -> bool:
        """Whether the policy and the reward see the same; metadata may have times and ids."""
        seen = [{key: part for key, part in one.observation.items() if key != "metadata"} for one in (self, other)]
        return seen[0] == seen[1] and (self.reward, self.done) == (other.reward, other.done)


class Connection:
    """One session of a server. server: its name, version and address, for errors."""

    def __init__(self, socket: Any, server: str, answer_s: float) -> None:
        self._socket, self._server, self._answer_s = socket, server, answer_s

    @classmethod
    async def open(cls, url: str, server: str, *, key: str, answer_s: float) -> Connection:
        """url: http://HOST:PORT. Raises InfraError, and ServerFault where there is no WebSocket."""
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidHandshake

        try:
            socket = await connect(
                f"ws{url.removeprefix('http')}/ws",
                additional_headers={"Authorization": f"Bearer {key}"} if key else None,
                open_timeout=CONNECT_S,
                max_size=MAX_FRAME_BYTES,
                proxy=None if is_local(url) else True,
                compression=None,
            )
        except InvalidHandshake as error:
            raise ServerFault(f"{server} refuses a WebSocket at {url}/ws, so it can't be played: {error}") from error
        except (OSError, TimeoutError) as error:
            raise ConnectionLost(f"{server} cannot be reached: {error or type(error).__name__}") from error
        return cls(socket, server, answer_s)

    async def play(self, kind: str, data: Mapping[str, Json]) -> Answered:
        """`reset` or `step`. Raises Refused, InfraError and ServerFault."""
        return Answered.of(await self.ask(kind, data), f"{self._server} answered a {kind}")

    async def ask(self, kind: str, data: Mapping[str, Json] | None = None) -> Mapping[str, Any]:
        """The data of the answer to one message."""
        message = {"type": kind} if data is None else {"type": kind, "data": data}
        raw = await self._exchange(kind, json.dumps(message))
        where = f"{self._server} answered a {kind}"
        try:
            answer = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise ServerFault(f"{where} with what is not JSON: {raw[:80]!r}") from error
        if not isinstance(answer, dict) or not isinstance(answer.get("data"), dict):
            raise ServerFault(f"{where} with {raw[:80]!r}; an object with `type` and `data` was expected")
        if answer.get("type") == "error":
            raise self._error(kind, answer["data"])
        if answer.get("type") != _ANSWERS[kind]:
            raise ServerFault(f"{where}: the field `type` is {answer.get('type')!r:.80}, not {_ANSWERS[kind]!r}")
        found: Mapping[str, Any] = answer["data"]
        return found

    async def _exchange(self, kind: str, text: str) -> str:
        from websockets.exceptions import ConnectionClosed

        try:
            async with asyncio.timeout(self._answer_s):
                with contextlib.suppress(ConnectionClosed):  # what the server said last is read all the same
                    await self._socket.send(text)
                return str(await self._socket.recv(decode=True))
        except TimeoutError as error:
            limit = f"env.options.answer_s = {self._answer_s:g} s"
            raise InfraError(f"{self._server} did not answer a {kind} within {limit}") from error
        except ConnectionClosed as error:
            raise ConnectionLost(f"{self._server} ended the session in a {kind}: {error}") from error

    def _error(self, kind: str, data: Mapping[str, Any]) -> Exception:
        code, message = data.get("code"), f"{data.get('message')}"[:1000]
        if code == "VALIDATION_ERROR":
            errors = data.get("errors")
            faults = [one for one in (errors if isinstance(errors, list) else ())[:5] if isinstance(one, dict)]
            fields = tuple(".".join(map(str, one.get("loc", ()))) for one in faults)
            said = "; ".join(f"{name}: {one.get('msg')}" for name, one in zip(fields, faults, strict=True)) or message
            return (
                Refused(said, fields) if kind == "step" else ServerFault(f"{self._server} refuses the {kind}: {said}")
            )
        if code == "CAPACITY_REACHED":
            limit = data.get("max_sessions")
            return ServerFull(f"{self._server}: {message}", limit if isinstance(limit, int) else 0)
        return InfraError(f"{self._server} failed in a {kind} ({code}): {message}")

    async def close(self) -> None:
        """Say goodbye; a server that does not answer is not waited for."""
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed, OSError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._socket.send(json.dumps({"type": "close"}))
                await self._socket.close()
                return
        self._socket.transport.abort()


def is_local(url: str) -> bool:
    return url.partition("://")[2].startswith(("localhost", "127.", "[::1]"))
