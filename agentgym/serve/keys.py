"""Keys: each opens the calls of one handler, until it is concluded."""

from __future__ import annotations

import secrets
from collections import OrderedDict

from agentgym.policies.conversation import CallHandler, CallRequest
from agentgym.serve.retries import Call, Retries

MAX_CONCLUDED = 100_000
"""So many keys are remembered as concluded; an older one is unknown."""


class Admitted:
    """A key's handler and its calls. concluded: they are refused. bug: what its handler must not raise, but raised.

    receiving_bytes: of bodies that have not ended.
    """

    def __init__(self, handler: CallHandler) -> None:
        self.handler = handler
        self.retries = Retries()
        self.concluded = False
        self.bug: BaseException | None = None
        self.receiving_bytes = 0

    def call(self, body: int, request: CallRequest, *, marked: bool) -> tuple[Call, bool]:
        """The call, and whether it is an earlier one, sent again."""
        found = self.retries.find(body, marked=marked)
        return found or self.retries.begin(body, self.handler.call(request)), found is not None

    def conclude(self) -> None:
        self.concluded = True
        for call in self.retries.running():
            call.task.cancel()


class Keys:
    """All keys of an endpoint."""

    def __init__(self) -> None:
        self.admitted: dict[str, Admitted] = {}
        self._concluded: OrderedDict[str, None] = OrderedDict()

    def admit(self, handler: CallHandler, key: str = "") -> str:
        """A new key, random unless it is given. Raises ValueError for one that is taken."""
        key = key or f"sk-{secrets.token_urlsafe(24)}"
        if key in self.admitted or key in self._concluded:
            raise ValueError("this key is taken; give each handler its own")
        self.admitted[key] = Admitted(handler)
        return key

    def conclude(self, key: str) -> Admitted | None:
        """The key's handler, whose calls are cancelled; None where it was concluded before."""
        admitted = self.admitted.pop(key, None)
        if admitted is not None:
            admitted.conclude()
            self._concluded[key] = None
            if len(self._concluded) > MAX_CONCLUDED:
                self._concluded.popitem(last=False)
        return admitted

    def is_concluded(self, key: str) -> bool:
        return key in self._concluded
