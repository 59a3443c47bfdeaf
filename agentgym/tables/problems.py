"""Why a question about runs has no answer: a mistake of who asked, with an HTTP status for the view."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from agentgym.errors import UserError

STATUS = {"invalid": 400, "forbidden": 403, "not_found": 404, "conflict": 409, "gone": 410, "too_large": 413,
          "unsupported": 415, "too_many": 429, "broken": 503}  # fmt: skip
MAX_NAMED = 20


class Problem(UserError):
    """kind: one of STATUS. nearest: the known name that is nearest to what was asked for, or empty."""

    def __init__(self, kind: str, message: str, nearest: str = "") -> None:
        super().__init__(message)
        self.kind, self.message, self.nearest = kind, message, nearest

    @property
    def status(self) -> int:
        return STATUS[self.kind]

    @classmethod
    def unknown(cls, what: str, given: str, known: Iterable[str]) -> Problem:
        names = list(known)
        shown = ", ".join(names[:MAX_NAMED]) + (f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")
        [close] = difflib.get_close_matches(given, names, n=1, cutoff=0.5) or [""]
        return cls("not_found", f"no {what} {given[:200]!r}. There are: {shown or 'none'}", close)
