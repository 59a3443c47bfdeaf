"""What a server's observation says, as the policy reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from agentgym.tools import ToolResult
from agentgym.types import Message

_LINK: Final = re.compile(r"\s*For further information visit https?://\S+")
_HIDDEN: Final = ("done", "reward", "metadata")
_ROLES: Final = ("system", "user", "assistant", "tool")
_ERRORS: Final = {"tool_not_found": "unknown_tool", "invalid_args": "arguments", "timeout": "time_limit"}


def messages_of(observation: Mapping[str, Any]) -> list[Message] | None:
    """The observation as chat messages; None where it is another thing."""
    found = observation.get("messages")
    if not isinstance(found, list) or not all(
        isinstance(one, dict) and one.get("role") in _ROLES and isinstance(one.get("content"), str) for one in found
    ):
        return None
    return [{"role": one["role"], "content": one["content"]} for one in found]


def text_of(observation: Mapping[str, Any], *, field: str = "", with_metadata: bool = False) -> str:
    """One field, or a text alone, or each field on a line; what is empty is left out."""
    if field:
        return _as_text(observation.get(field))
    shown = {
        name: value
        for name, value in observation.items()
        if value not in (None, "", [], {}) and (name not in _HIDDEN or (with_metadata and name == "metadata"))
    }
    if len(shown) == 1 and isinstance(only := next(iter(shown.values())), str):
        return only
    return "\n".join(f"{name}: {_as_text(value)}" for name, value in shown.items())


def tool_result(observation: Mapping[str, Any]) -> ToolResult:
    """What a call of a server's tool returned."""
    error = observation.get("error")
    if isinstance(error, Mapping):
        text, kind = str(error.get("message") or error), str(error.get("error_type"))
        text = _LINK.sub("", text)
        return ToolResult(text if text.startswith("Error") else f"Error: {text}", _ERRORS.get(kind, "tool"))
    result = observation.get("result")
    if not isinstance(result, Mapping):
        return ToolResult(_as_text(result) if result is not None else text_of(observation) or "done")
    content = result.get("content")
    parts = [one.get("text") for one in content if isinstance(one, dict)] if isinstance(content, list) else []
    text = result["data"] if isinstance(result.get("data"), str) else "\n".join(str(part) for part in parts if part)
    text = text or ("done" if content is not None else _as_text(result))
    return ToolResult(text, "tool" if result.get("is_error") else "")


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
