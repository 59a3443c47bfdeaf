"""The routes of the endpoint."""

from __future__ import annotations

import time

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agentgym.serve.anthropic_messages import AnthropicMessages
from agentgym.serve.calls import CallRoute, Gate, Refused
from agentgym.serve.chat_completions import ChatCompletions, openai_failure
from agentgym.serve.counting import CountRoute
from agentgym.serve.dialect import Failure
from agentgym.serve.gemini_paths import GEMINI_PATHS, GeminiRoute, google_model, with_key_of_query
from agentgym.serve.responses import Responses
from agentgym.types import Json

PATHS = (
    "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/models", *GEMINI_PATHS,
)  # fmt: skip


def make_app(gate: Gate, model: str) -> Starlette:
    """model: the name under which the policy is listed; calls may name any."""
    began = int(time.time())

    async def models(request: Request) -> Response:
        listed: Json = {
            "object": "list",
            "data": [_model(model, began)],
            "has_more": False,
            "models": [google_model(model)],
        }
        return await _respond(gate, request, listed)

    async def one_model(request: Request) -> Response:
        return await _respond(gate, request, _model(request.path_params["name"], began))

    async def alive(request: Request) -> Response:
        return Response()

    gemini, counted = GeminiRoute(gate, model), AnthropicMessages(counts=True)
    routes = [
        Route("/", alive, methods=["HEAD"]),  # Claude Code's question whether there is a server
        Route("/api/hello", alive, methods=["HEAD", "GET"]),
        Route("/v1/chat/completions", CallRoute(gate, ChatCompletions()), methods=["POST"]),
        Route("/v1/responses", CallRoute(gate, Responses()), methods=["POST"]),
        Route("/v1/messages", CallRoute(gate, AnthropicMessages()), methods=["POST"]),
        Route("/v1/messages/count_tokens", CountRoute(gate, counted, "input_tokens"), methods=["POST"]),
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{name:path}", one_model, methods=["GET"]),
        Route("/v1/models/{name:path}", gemini, methods=["POST"]),
        Route("/v1beta/models", gemini),
        Route("/v1beta/models/{name:path}", gemini),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _http_error})


def _model(name: str, created: int) -> dict[str, Json]:
    """A model with the fields of all interfaces."""
    shown = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created))
    return {
        "id": name, "object": "model", "created": created, "owned_by": "agentgym",
        "type": "model", "display_name": name, "created_at": shown, **google_model(name),
    }  # fmt: skip


async def _respond(gate: Gate, request: Request, value: Json) -> Response:
    try:
        gate.admitted(dict(with_key_of_query(request.scope)["headers"]))
    except Refused as error:
        return JSONResponse(openai_failure(error.failure), error.failure.status)
    return JSONResponse(value)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}; the paths are {', '.join(PATHS)}"
    failure = Failure(status=error.status_code, kind="path", message=message)
    return JSONResponse(openai_failure(failure), error.status_code, headers=error.headers)
