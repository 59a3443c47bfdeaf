"""A server with OpenAI's interface, asked with OpenAI's own package; what it raises says whose fault it is."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Awaitable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar, cast

from agentgym.errors import UserError, pip_install
from agentgym.policies.outside.answers import (
    ContextFull,
    Filtered,
    RequestRefused,
    ServerFault,
    UnknownModel,
    Unsupported,
)
from agentgym.policies.outside.config import OMITTABLE, OPENAI_KEY
from agentgym.types import Json
from agentgym.utf8 import clean, clean_text

Answer = TypeVar("Answer")

_CONTEXT = re.compile(r"context.{0,20}(length|size|window)|maximum (context|prompt|input) length|too many tokens", re.I)
_ASKED_TOKENS = re.compile(r"max_(completion_)?tokens.{0,80}(too large|exceed|greater)", re.I | re.S)
_PERMANENT = ("insufficient_quota", "billing_hard_limit_reached")
_MAX_SHOWN = 300


class OpenAIServer:
    """key: empty sends none that a server would take."""

    def __init__(self, url: str, key: str, *, key_variable: str = "", timeout_s: float = 600.0) -> None:
        """key_variable: where the key is from, for errors. Raises UserError where the package is missing."""
        try:
            import openai
        except ModuleNotFoundError as error:
            if error.name != "openai":
                raise
            raise UserError(
                f"a policy behind a server is asked with the package openai: {pip_install('openai')}"
            ) from error
        self._openai, self._url, self._key_variable, self._timeout_s = openai, url, key_variable, timeout_s
        self._has_key = bool(key)
        self._client = openai.AsyncOpenAI(base_url=url, api_key=key or "none", timeout=timeout_s, max_retries=0)
        if key_variable != OPENAI_KEY:  # OpenAI's own account is no other server's business
            self._client.organization = self._client.project = None

    async def models(self) -> list[str] | None:
        try:
            listed = await self._asked(self._client.models.with_raw_response.list(), "GET /models")
        except (_NotThere, RequestRefused):
            return None
        data = listed.get("data") if isinstance(listed, Mapping) else None
        if not isinstance(data, list):
            raise self._other_kind("GET /models", json.dumps(listed))
        return [str(one["id"]) for one in data if isinstance(one, Mapping) and "id" in one]

    async def complete(self, body: Mapping[str, Json]) -> Json:
        # All fields go in `extra_body`: the package would check some of them against its own lists.
        asked = self._client.chat.completions.with_raw_response.create(
            model=str(body["model"]), messages=cast(Any, body["messages"]), extra_body=dict(body)
        )
        try:
            return await self._asked(asked, "POST /chat/completions")
        except _NotThere as error:
            raise self._other_kind("POST /chat/completions", str(error)) from error

    async def close(self) -> None:
        await self._client.close()

    async def _asked(self, call: Awaitable[Any], what: str) -> Json:
        try:
            raw = await call
            return clean(cast(Json, json.loads(raw.content)))
        except self._openai.APITimeoutError as error:
            raise ServerFault(f"it did not answer within {self._timeout_s:g} s") from error
        except self._openai.APIConnectionError as error:
            raise ServerFault(f"it could not be reached: {_cause(error)}") from error
        except self._openai.APIStatusError as error:
            raise self._refused(error, what) from error
        except UnicodeDecodeError as error:
            raise ServerFault("its answer is not text") from error
        except json.JSONDecodeError as error:
            if error.doc.lstrip()[:1] == "<":
                raise self._other_kind(what, error.doc) from error
            raise ServerFault(f"its answer is not JSON: {error.doc[:_MAX_SHOWN]!r}") from error
        except (ValueError, RecursionError) as error:  # a number of too many digits, or nested too deep
            raise ServerFault(f"its answer is not JSON that can be read: {str(error)[:_MAX_SHOWN]}") from error

    def _refused(self, error: Any, what: str) -> Exception:
        """What a status means."""
        status, code, said = error.status_code, error.code or "", _said(error)
        if code in _PERMANENT:
            return UserError(f"the server at {self._url} takes no more requests of this account: {said}")
        if status in (408, 409, 425, 429) or status >= 500:
            busy = status in (429, 503)
            return ServerFault(f"status {status}: {said}", retry_after_s=_retry_after(error), busy=busy)
        if status in (401, 403):
            return UserError(self._no_entry(status, said))
        if status in (404, 405):
            named = isinstance(error.body, Mapping) and ("model" in said.lower() or code == "model_not_found")
            return UnknownModel(said) if named and what.startswith("POST") else _NotThere(f"status {status}: {said}")
        return self._refused_request(error, said)

    def _refused_request(self, error: Any, said: str) -> Exception:
        code, parameter = error.code or "", (error.param or "").rpartition(".")[2]
        if "content_filter" in code or "content_policy" in code:
            return Filtered(said)
        named = parameter if parameter in OMITTABLE else next((name for name in OMITTABLE if f"'{name}'" in said), "")
        if _ASKED_TOKENS.search(said):
            return UserError(
                f"the server at {self._url} does not take so many tokens for one turn: {said}. "
                "Set rollout.max_turn_tokens lower"
            )
        if code in ("context_length_exceeded", "exceed_context_size_error") or _CONTEXT.search(said):
            return ContextFull(said)
        return Unsupported(named, said) if named else RequestRefused(said)

    def _no_entry(self, status: int, said: str) -> str:
        where = f"the server at {self._url}"
        if self._has_key:
            return f"{where} refuses the key in {self._key_variable} (status {status}): {said}"
        return (
            f"{where} wants a key (status {status}): {said}. Put it into an environment variable and name that with "
            "--api-key-env"
        )

    def _other_kind(self, what: str, answered: str) -> UserError:
        return UserError(
            f"{self._url} is not an OpenAI-compatible server, or not its address, which most often ends in /v1: "
            f"it answered {what} with {answered[:_MAX_SHOWN]!r}"
        )


class _NotThere(Exception):
    """The server does not know the path."""


def _said(error: Any) -> str:
    """The server's own words."""
    body = error.body
    message = body.get("message") if isinstance(body, Mapping) else None
    text = message if isinstance(message, str) and message else error.response.text
    return " ".join(clean_text(text).split())[:_MAX_SHOWN] or "without a word"


def _cause(error: BaseException) -> str:
    """The innermost error: the package wraps it twice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__


def _retry_after(error: Any) -> float | None:
    """Seconds; servers give them as such, as milliseconds, or as a date."""
    headers = error.response.headers
    for name, unit_s in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[name]) * unit_s)
        except (KeyError, ValueError):
            continue
    try:
        return max(0.0, parsedate_to_datetime(headers["retry-after"]).timestamp() - time.time())
    except (KeyError, ValueError, TypeError):
        return None
