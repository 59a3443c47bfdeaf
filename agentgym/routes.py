"""Which experts of a mixture computed the tokens of a sequence, as the sampler's routers chose them."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

UNKNOWN = 0xFFFF
"""In place of an expert: nobody recorded the choice. The trainer's own router then decides."""
_BYTES = 2  # of an id


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """Of tokens `start` to `end` of a sequence: the experts through which a token went as the input of the next one.

    width: layers with experts, times the choices of each. ids: [T, width], unsigned 16-bit numbers, little-endian, by
    layer and, within one, in the order of its router. All are `UNKNOWN` for a token that nobody recorded.
    """

    width: int
    ids: bytes
    start: int = 0

    def __post_init__(self) -> None:
        if self.start < 0 or self.width < 1 or len(self.ids) % (_BYTES * self.width):
            raise ValueError(f"{len(self.ids)} bytes from token {self.start} on are no routes of width {self.width}")

    def __len__(self) -> int:
        """Of how many tokens they are."""
        return len(self.ids) // (_BYTES * self.width)

    @property
    def end(self) -> int:
        return self.start + len(self)

    def from_token(self, first: int) -> Routes:
        """Those of tokens from `first` on."""
        cut = max(0, first - self.start)
        return Routes(width=self.width, start=self.start + cut, ids=self.ids[cut * _BYTES * self.width :])

    def to_text(self) -> str:
        """For a file of JSON: `START WIDTH IDS`, packed and in base64."""
        return f"{self.start} {self.width} {base64.b64encode(zlib.compress(self.ids, 1)).decode()}"

    @classmethod
    def of_text(cls, text: str) -> Routes:
        """Raises ValueError or zlib.error for what `to_text` did not make."""
        start, width, packed = text.split(" ")
        return cls(start=int(start), width=int(width), ids=zlib.decompress(base64.b64decode(packed)))


def joined(parts: Iterable[Routes | None], length: int) -> Routes | None:
    """The routes of a sequence of `length` tokens by those of its turns, in order; None if no turn has any.

    A token keeps what was recorded first, when its successor was sampled: a later turn may have computed it again by
    newer weights. Raises ValueError for turns of different widths.
    """
    known = [part for part in parts if part is not None]
    if not known:
        return None
    width = known[0].width
    if any(part.width != width for part in known):
        raise ValueError(f"turns of one sequence have routes of widths {sorted({part.width for part in known})}")
    row, found = _BYTES * width, bytearray()
    for part in known:
        done = len(found) // row
        found += b"\xff" * (row * max(0, part.start - done))
        found += part.from_token(done).ids
    found += b"\xff" * (row * length - len(found))
    return Routes(width=width, ids=bytes(found[: row * length]))
