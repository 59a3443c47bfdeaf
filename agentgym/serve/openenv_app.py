"""An environment as an OpenEnv server: its routes, and many sessions at a time."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from agentgym.errors import InfraError
from agentgym.hooks import PluginRegistry
from agentgym.http_server import Bounds, configure, serve_until_cancelled
from agentgym.rollout.text_episode import TextEpisode, TextGame, TextGameConfig
from agentgym.serve.openenv import Frame, OpenEnvSession, error_frame, schemas_of

log = logging.getLogger(__name__)
API_VERSION = "1.0.0"  # of OpenEnv's interface over HTTP
MAX_FRAME_BYTES = 8 * 2**20
CLOSE_S = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEnvConfig:
    sessions: int = 512
    """Sessions at a time, at most."""
    idle_s: float = 1800.0
    """Seconds after which a session that asks nothing is ended."""
    key: str = ""
    """What clients have to send as a bearer token; empty lets everybody in."""


@dataclass(slots=True)
class OpenEnvApp:
    """The server's state. open: sessions at the moment. played: how many there were."""

    game: TextGame
    has_tools: bool
    config: OpenEnvConfig
    open: int = 0
    played: int = 0

    def starlette(self) -> Starlette:
        schemas, about = schemas_of(has_tools=self.has_tools), self._about()
        openapi = {
            "openapi": "3.1.0",
            "info": {"title": about["name"], "version": API_VERSION},
            "paths": {path: {} for path in ("/health", "/metadata", "/schema", "/reset", "/step", "/state", "/mcp")},
        }
        answers: dict[str, Any] = {
            "/health": {"status": "healthy"},
            "/metadata": about,
            "/schema": schemas,
            "/openapi.json": openapi,
            "/state": {"episode_id": None, "step_count": 0},
        }
        routes = [Route(path, _constant(answer)) for path, answer in answers.items()]
        routes += [Route(path, self._stateless, methods=["POST"]) for path in ("/reset", "/step")]
        return Starlette(
            routes=[*routes, Route("/mcp", self._mcp, methods=["POST"]), WebSocketRoute("/ws", self._play)]
        )

    def _about(self) -> dict[str, Any]:
        environment = self.game.environment
        described = (type(environment).__doc__ or "").strip().partition("\n")[0]
        return {
            "name": environment.name,
            "description": described or environment.name,
            "version": str(environment.version),
            "author": "agentgym",
            "readme_content": None,
            "documentation_url": None,
        }

    def _admits(self, asked: HTTPConnection) -> bool:
        """Whether it has the key, and is not sent by a browser for a page of somewhere else."""
        origin, host = asked.headers.get("origin"), asked.headers.get("host", "")
        given = asked.headers.get("authorization", "").removeprefix("Bearer ").strip()
        is_ours = origin is None or origin.partition("://")[2] == host
        return is_ours and (not self.config.key or hmac.compare_digest(given.encode(), self.config.key.encode()))

    async def _stateless(self, request: Request) -> Response:
        """OpenEnv makes another environment for each request over HTTP, which plays nothing: so does a reset here."""
        if not self._admits(request):
            return JSONResponse({"detail": "give the key, as `Authorization: Bearer KEY`"}, 401)
        body = await _json_of(request)
        if not isinstance(body, dict):
            return JSONResponse({"detail": "the body is not a JSON object"}, 422)
        if request.url.path == "/step":
            return JSONResponse({"detail": "an episode is played in a session, over the WebSocket /ws"}, 409)
        async with contextlib.aclosing(OpenEnvSession(self.game, self.has_tools)) as session:
            answer = await session.answer(json.dumps({"type": "reset", "data": body}))
        assert answer is not None
        return JSONResponse(answer["data"], 422 if answer["type"] == "error" else 200)

    async def _mcp(self, request: Request) -> Response:
        if not self._admits(request):
            return JSONResponse({"detail": "give the key, as `Authorization: Bearer KEY`"}, 401)
        async with contextlib.aclosing(OpenEnvSession(self.game, self.has_tools)) as session:
            return JSONResponse(await session.json_rpc(await _json_of(request)))

    async def _play(self, client: WebSocket) -> None:
        if not self._admits(client):
            await client.close(1008)  # before it is accepted: the handshake is refused with 403
            return
        await client.accept()
        if self.open >= self.config.sessions:
            limit = self.config.sessions
            message = f"all {limit} sessions are in use; `agentgym envs serve --sessions N` allows more"
            await _send(client, error_frame("CAPACITY_REACHED", message, active_sessions=limit, max_sessions=limit))
            await client.close()
            return
        self.open += 1
        self.played += 1
        try:
            async with contextlib.aclosing(OpenEnvSession(self.game, self.has_tools)) as session:
                await self._answer_all(client, session)
        except WebSocketDisconnect:
            return
        except InfraError as error:  # as the episode was closed
            log.warning("%s", error)
        finally:
            self.open -= 1

    async def _answer_all(self, client: WebSocket, session: OpenEnvSession) -> None:
        while True:
            try:
                async with asyncio.timeout(self.config.idle_s):
                    received = await client.receive()
            except TimeoutError:
                await _send(client, error_frame("SESSION_ERROR", f"no message came for {self.config.idle_s:g} s"))
                break
            if received["type"] == "websocket.disconnect":
                return
            answer = await session.answer(received.get("text") or "")
            if answer is None:
                break
            await _send(client, answer)
        await client.close()


async def serve_openenv(
    registry: PluginRegistry,
    game: TextGameConfig,
    config: OpenEnvConfig,
    listening: socket.socket,
    started: Callable[[OpenEnvApp], None],
) -> None:
    """Serve an environment until cancelled. started: called once clients are answered.

    Raises UserError for an environment that is not there, InfraError where its first task cannot be started.
    """
    shared = await TextGame.start(registry, game)
    try:
        app = OpenEnvApp(shared, await _has_tools(shared), config)
        settings = configure(
            app.starlette(),
            Bounds(),
            ws="websockets-sansio",
            ws_max_size=MAX_FRAME_BYTES,
            ws_per_message_deflate=False,
            lifespan="off",
            timeout_graceful_shutdown=CLOSE_S,
        )
        await serve_until_cancelled(settings, listening, lambda: started(app))
    finally:
        await shared.close()


async def _has_tools(game: TextGame) -> bool:
    """Whether the first task has tools; it is started for that, which also shows that it can be."""
    trial = TextEpisode(game)
    try:
        await trial.reset(0)
        return await trial.schemas() is not None
    finally:
        await trial.close()


async def _json_of(request: Request) -> Any:
    """The body; {} where there is none, None for what is not JSON or too large."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_FRAME_BYTES:
            return None
    try:
        return json.loads(body or b"{}")
    except (ValueError, RecursionError):
        return None


def _constant(answer: Any) -> Callable[[Request], Any]:
    async def respond(request: Request) -> Response:
        return JSONResponse(answer)

    return respond


async def _send(client: WebSocket, frame: Frame) -> None:
    await client.send_text(json.dumps(frame, ensure_ascii=False, separators=(",", ":")))
