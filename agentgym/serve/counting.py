"""The count of the tokens of a request, without a call, as Anthropic's and Google's interfaces have it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, runtime_checkable

from starlette.types import Receive, Scope, Send

from agentgym.policies.conversation import CallRefused, CallRequest
from agentgym.serve.calls import ClientGone, Gate, Refused, failure_of, send_json
from agentgym.serve.dialect import Dialect
from agentgym.serve.dropping import read_request
from agentgym.serve.reading import read_json


@runtime_checkable
class CountingHandler(Protocol):
    """A handler that knows how long a prompt will be."""

    def count(self, request: CallRequest) -> int:
        """The tokens of the prompt that `call` would send. Raises CallRefused."""


class CountRoute:
    """The ASGI app of a dialect's count. name: the field of its answer."""

    def __init__(self, gate: Gate, dialect: Dialect, name: str) -> None:
        self._gate, self._dialect, self._name = gate, dialect, name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            headers = dict(scope["headers"])
            admitted = self._gate.admitted(headers)
            handler = admitted.handler
            drops: Collection[str] = getattr(handler, "drops", ())
            body = read_json(await self._gate.body(admitted, headers, receive))
            asked = read_request(self._dialect, body, drops)
            if not isinstance(handler, CountingHandler):
                raise Refused(404, "path", "tokens are not counted here")
            number = handler.count(asked.request)
        except (CallRefused, Refused) as error:
            failure = failure_of(error)
            await send_json(send, failure.status, self._dialect.failure(failure))
        except ClientGone:
            return
        else:
            await send_json(send, 200, {self._name: number})
