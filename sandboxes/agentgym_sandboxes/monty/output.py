"""What a program prints, cut and counted."""

from __future__ import annotations

from agentgym.sandbox import LimitHit

FLOOD = 128  # times what is kept: a program that prints more is ended


class Output:
    """Takes what a program prints; keeps the first `max_bytes` characters of each stream."""

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._kept: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._sizes = {"stdout": 0, "stderr": 0}

    def __call__(self, stream: str, text: str) -> None:
        room = self._max - self._sizes[stream]
        if room > 0:
            self._kept[stream].append(text[:room])
        self._sizes[stream] += len(text)
        if self.flooded:
            raise MemoryError("too much output")

    def text(self, stream: str) -> str:
        return "".join(self._kept[stream])

    @property
    def truncated(self) -> bool:
        return any(size > self._max for size in self._sizes.values())

    @property
    def flooded(self) -> bool:
        return 0 < FLOOD * self._max < max(self._sizes.values())  # where nothing is kept, nothing is counted

    @property
    def hit(self) -> LimitHit:
        return LimitHit(resource="output_bytes", used=max(self._sizes.values()), allowed=FLOOD * self._max)
