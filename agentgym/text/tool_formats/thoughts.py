"""Where the thoughts of a turn end: a call that an agent only thinks about is no call."""

from __future__ import annotations

_OPEN, _CLOSE = "<think>", "</think>"


def after_thoughts(text: str) -> int:
    """Where the text goes on behind the thoughts that it begins with; its end where they never end."""
    if not text.lstrip().startswith(_OPEN):
        return 0
    close = text.find(_CLOSE)
    return close + len(_CLOSE) if close >= 0 else len(text)
