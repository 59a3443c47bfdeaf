"""Standard output and error that end no work: they may be closed, full, gone, or know few characters."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import Any, TextIO, cast

from agentgym.errors import InfraError

_GONE = (errno.EPIPE, errno.EIO, errno.EBADF)  # nobody reads any more; a terminal's SIGHUP is on its way
_DOTS = {0x2800 + dots: "*" if dots else " " for dots in range(256)}  # of Braille, as curves are drawn
_DRAWN = str.maketrans("█▇▆▅▄▃▂▁┤└─…", "#*+=-:._|+-.") | _DOTS  # where an encoding lacks them


class OutputGone(BrokenPipeError):
    """Nobody reads any more what a command prints."""


class Output(io.TextIOBase):
    """A text stream that writes what its encoding lacks as escapes.

    needed: whether what is printed is what the command is for. Then a failure ends it: OutputGone, or InfraError for a
    full disk. Set to False as soon as there is work that has to go on: then what can't be written is dropped.
    """

    def __init__(self, stream: TextIO | None, *, needed: bool = True) -> None:
        """stream: None, as Python has it for a descriptor that was closed, is nowhere."""
        self.needed = needed
        self._stream = stream
        self.has_failed = False  # but may work again

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self._stream, "encoding", None) or "utf-8"

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def fileno(self) -> int:
        if self._stream is None:
            raise OSError(errno.EBADF, "there is no such stream")
        return self._stream.fileno()

    def write(self, text: str) -> int:
        if self._stream is not None:
            try:
                self._stream.write(encodable(text, self.encoding))
            except (OSError, ValueError) as error:
                self._fail(error)
        return len(text)

    def flush(self) -> None:
        if self._stream is not None:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._fail(error)

    def _fail(self, error: OSError | ValueError) -> None:
        """ValueError: of a stream that was closed."""
        is_gone = isinstance(error, ValueError) or error.errno in _GONE
        why = getattr(error, "strerror", None) or error
        if is_gone:
            self.lose()
        if self.needed:
            if is_gone:
                raise OutputGone(errno.EPIPE, "nobody reads the output") from error
            raise InfraError(f"the output can't be written: {why}. Where is it redirected to?") from error
        if not is_gone and not self.has_failed:
            self.has_failed = True
            if self is not sys.stderr:
                print(f"what is printed is lost: {why}; the work goes on", file=sys.stderr, flush=True)

    def lose(self) -> None:
        """Discards all output from now on, including that of child processes, which share the descriptor."""
        stream, self._stream = self._stream, None
        with contextlib.suppress(OSError, ValueError, AttributeError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, cast(TextIO, stream).fileno())
            os.close(nowhere)


def encodable(text: str, encoding: str) -> str:
    """The text in the encoding's characters: drawings as others, and the rest as escapes."""
    try:
        text.encode(encoding)
        return text
    except UnicodeEncodeError:
        drawn = text if encoding.lower().startswith("utf") else text.translate(_DRAWN)
        return drawn.encode(encoding, "backslashreplace").decode(encoding)


def guarded(stream: TextIO | None, *, needed: bool = False) -> TextIO:
    """The stream as an Output; one that is given stays as it is."""
    found = stream if isinstance(stream, Output) else Output(stream, needed=needed)
    return cast(TextIO, found)


def finish(*streams: TextIO) -> None:
    """Drop what could not be written: Python would try again at its exit, and end with another code."""
    for stream in streams:
        if isinstance(stream, Output):
            stream.needed = False
            stream.flush()
            if stream.has_failed:
                stream.lose()


def hold_descriptors() -> None:
    """Open 0, 1 and 2 where they are closed: a file of the run would get the number, and what others print."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free
