"""Reads a request; what cannot be honoured is dropped where the handler allows it by name, and refused elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from agentgym.policies.conversation import CallRefused
from agentgym.serve.dialect import Asked, Dialect
from agentgym.types import Json


def read_request(dialect: Dialect, body: Mapping[str, Json], drops: Collection[str]) -> Asked:
    """drops: paths of fields, as `output_config.format`. Those that had to be dropped are `Asked.request.dropped`.

    Raises CallRefused.
    """
    dropped: list[str] = []
    while True:
        try:
            asked = dialect.read(body)
        except CallRefused as error:
            if error.param not in drops or error.param in dropped:
                raise
            body = _without(body, error.param.split("."))
            dropped.append(error.param)
        else:
            request = replace(asked.request, dropped=(*dropped, *asked.request.dropped))
            return replace(asked, request=request)


def _without(body: Mapping[str, Json], path: list[str]) -> dict[str, Json]:
    """A copy of the object that lacks the field at this path; Google's may be given with underscores."""
    name, *rest = path
    name = next((key for key in body if key.replace("_", "").lower() == name.lower()), name)
    inner = body.get(name)
    if rest and isinstance(inner, Mapping):
        return {**body, name: _without(inner, rest)}
    return {key: value for key, value in body.items() if key != name}
