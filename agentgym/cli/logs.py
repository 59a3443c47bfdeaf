"""Warnings of the library, shown with the command's own output."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

LOGGERS = ("agentgym", "agentgym_envs", "agentgym_plugins", "agentgym_sandboxes")


class CallHandler(logging.Handler):
    """Passes each record's text to a function, which must not log itself."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._say(f"{record.levelname.lower()}: {record.getMessage()}")
        except Exception:
            self.handleError(record)


@contextlib.contextmanager
def warnings_to(say: Callable[[str], None]) -> Iterator[None]:
    """Send the library's warnings to `say` while this is open; the innermost one receives them."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    saved = [(logger, logger.handlers[:], logger.propagate) for logger in loggers]
    handler = CallHandler(say)
    for logger in loggers:
        logger.handlers, logger.propagate = [handler], False
    try:
        yield
    finally:
        for logger, handlers, propagate in saved:
            logger.handlers, logger.propagate = handlers, propagate
