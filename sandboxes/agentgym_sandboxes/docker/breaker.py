"""Keeps load off an engine: a circuit breaker after failures in a row, and a limit on starts a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from enum import StrEnum

FIRST_BACKOFF_S, MAX_BACKOFF_S = 1.0, 30.0


class Circuit(StrEnum):
    CLOSED = "closed"  # all goes through
    OPEN = "open"  # nothing goes through until the back-off is over
    HALF_OPEN = "half_open"  # one attempt goes through, and decides


class Breaker:
    """Opens after so many failures in a row; after a back-off, one attempt is let through as a probe.

    Each probe that fails doubles the back-off, up to max_backoff_s. clock: seconds, monotonic.
    """

    def __init__(
        self, max_failures: int, max_backoff_s: float = MAX_BACKOFF_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.last_error: Exception | None = None
        self._max_failures = max_failures
        self._max_backoff_s = max_backoff_s
        self._clock = clock
        self._num_failures = 0
        self._backoff_s = FIRST_BACKOFF_S
        self._open_until_s: float | None = None
        self._probing = False

    @property
    def is_suspect(self) -> bool:
        """Whether the latest attempt failed."""
        return self._num_failures > 0

    @property
    def circuit(self) -> Circuit:
        if self._open_until_s is None:
            return Circuit.CLOSED
        return Circuit.OPEN if self._clock() < self._open_until_s else Circuit.HALF_OPEN

    @property
    def admits(self) -> bool:
        """Whether an attempt may be made now."""
        circuit = self.circuit
        return circuit == Circuit.CLOSED or (circuit == Circuit.HALF_OPEN and not self._probing)

    def begin(self) -> None:
        """An attempt starts; it must end in succeeded, failed or abandoned."""
        self._probing = self._open_until_s is not None

    def succeeded(self) -> None:
        self._num_failures, self._backoff_s, self._open_until_s = 0, FIRST_BACKOFF_S, None
        self._probing = False
        self.last_error = None

    def failed(self, error: Exception) -> None:
        self.last_error = error
        self._num_failures += 1
        self._probing = False
        if self._open_until_s is not None:
            if self._clock() < self._open_until_s:
                return  # of an attempt that began before it opened
            self._backoff_s = min(2 * self._backoff_s, self._max_backoff_s)
        elif self._num_failures < self._max_failures:
            return
        self._open_until_s = self._clock() + self._backoff_s

    def abandoned(self) -> None:
        """An attempt ended that says nothing: its caller was cancelled."""
        self._probing = False


class StartLimit:
    """A token bucket: `burst` starts at once, then `per_s` a second."""

    def __init__(self, per_s: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._burst = float(burst)
        self._clock = clock
        self._tokens = self._burst
        self._filled_s = clock()

    async def take(self) -> None:
        """Return when a start may be made. Those who wait are served in turn."""
        await asyncio.sleep(self.reserve())

    def reserve(self) -> float:
        """Take a token, on credit if need be; the seconds until it is there."""
        now_s = self._clock()
        self._tokens = min(self._burst, self._tokens + (now_s - self._filled_s) * self._per_s)
        self._filled_s = now_s
        self._tokens -= 1
        return max(0.0, -self._tokens / self._per_s)
