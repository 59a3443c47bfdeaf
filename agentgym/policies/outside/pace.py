"""How fast a server is asked: its limits of a minute, and pauses that it asks for."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

MINUTE_S = 60.0


@dataclass(slots=True)
class _Asked:
    at_s: float
    tokens: int


@dataclass(slots=True)
class Pace:
    """No more requests and tokens in any 60 seconds than allowed; 0 is no limit. Whoever comes first goes first."""

    requests: int = 0
    tokens: int = 0
    _window: deque[_Asked] = field(default_factory=deque)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _until_s: float = 0.0

    async def begin(self, tokens: int) -> _Asked:
        """Wait until a request of about so many tokens may be sent. `settle` takes what is returned."""
        async with self._turn:
            while (wait_s := self._wait_s(tokens)) > 0:  # noqa: ASYNC110  until a time, not until a change
                await asyncio.sleep(wait_s)
            asked = _Asked(_now_s(), tokens)
            if self.requests or self.tokens:
                self._window.append(asked)
            return asked

    def settle(self, asked: _Asked, tokens: int) -> None:
        """The request took so many tokens."""
        asked.tokens = tokens

    def pause(self, seconds: float) -> None:
        """No request begins before they have passed."""
        self._until_s = max(self._until_s, _now_s() + seconds)

    def _wait_s(self, tokens: int) -> float:
        now_s = _now_s()
        while self._window and self._window[0].at_s <= now_s - MINUTE_S:
            self._window.popleft()
        full = bool(self.requests) and len(self._window) >= self.requests
        if self.tokens and self._window:  # a request of more tokens than the limit is sent when nothing else was
            full = full or sum(asked.tokens for asked in self._window) + tokens > self.tokens
        return max(self._until_s - now_s, self._window[0].at_s + MINUTE_S - now_s if full else 0.0)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
