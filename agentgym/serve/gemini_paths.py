"""The paths of Google's interface, which name the model and the method, and may have the key in their query."""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from agentgym.serve.calls import CallRoute, Gate, Refused, send_json
from agentgym.serve.counting import CountRoute
from agentgym.serve.gemini import Gemini, google_failure
from agentgym.types import Json

_METHODS = ("generateContent", "streamGenerateContent", "countTokens")
GEMINI_PATHS = ("/v1beta/models", *(f"/v1beta/models/NAME:{method}" for method in _METHODS))


class GeminiRoute:
    """The ASGI app of all paths below /v1beta/models, and of calls below /v1/models."""

    def __init__(self, gate: Gate, model: str) -> None:
        """model: the name under which the policy is listed."""
        self._gate, self._model = gate, model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope, query = with_key_of_query(scope), _query(scope)
        asked = scope["path_params"].get("name", "")
        name, _, method = asked.rpartition(":")
        if scope["method"] == "GET":
            await self._list(scope, send, asked)
        elif scope["method"] != "POST" or method not in _METHODS:
            ways = ", ".join(GEMINI_PATHS)
            await _refuse(send, Refused(404, "path", f"{scope['method']} {scope['path']}: the paths are {ways}"))
        elif method == "countTokens":
            await CountRoute(self._gate, Gemini(name), "totalTokens")(scope, receive, send)
        else:
            streams = method == "streamGenerateContent"
            dialect = Gemini(name, streams=streams, events=streams and query.get("alt") == ["sse"])
            await CallRoute(self._gate, dialect)(scope, receive, send)

    async def _list(self, scope: Scope, send: Send, name: str) -> None:
        """The models, or the one of this name."""
        try:
            self._gate.admitted(dict(scope["headers"]))
        except Refused as error:
            await _refuse(send, error)
        else:
            await send_json(send, 200, google_model(name) if name else {"models": [google_model(self._model)]})


async def _refuse(send: Send, refused: Refused) -> None:
    await send_json(send, refused.failure.status, google_failure(refused.failure))


def google_model(name: str) -> dict[str, Json]:
    return {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": list(_METHODS)}


def with_key_of_query(scope: Scope) -> Scope:
    """The request with `?key=` as a header."""
    key = _query(scope).get("key")
    if not key:
        return scope
    return {**scope, "headers": [*scope["headers"], (b"x-goog-api-key", key[-1].encode("latin-1", "replace"))]}


def _query(scope: Scope) -> dict[str, list[str]]:
    return parse_qs(scope["query_string"].decode("latin-1"))
